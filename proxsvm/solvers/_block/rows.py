"""BlockFW on a linear model, on the rows of its features, dense or sparse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels import block_loops as loops
from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import detached, parts
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._arrays import flatten, to_numpy
from proxsvm.solvers._block import newton
from proxsvm.solvers._block.base import Blocks, BlockState, Evaluation, FlatAtom
from proxsvm.solvers._block.states import AtomState, exact_state

SMALL_GAIN = 0.1  # samples that could gain less than this fraction of the mean are left out of a pass
SMALL_REST = 0.1  # a pass ends once its block steps gain at most this fraction of the gap at its start
GROUP, MANY_ROWS = 8, 1000  # of many sparse rows, a group of contiguous ones stays together, for cache locality
PASSES = 5  # of block descent, before its progress is judged
ROUNDING = 1e-15  # of D
REFRESH = 20  # evaluations until W is recomputed from s, without the rounding errors of many small steps


class RowBlocks(Blocks):
    """W = w_t + d is kept, and v_i = W x_i evaluated where it is needed. The metric must be H⁻¹ = ``scale`` · 1."""

    def __init__(self, problem: ProxProblem, inner: int, max_passes: int = 1000) -> None:
        super().__init__(problem)
        scale, features = problem.geometry.scale(), problem.linearization.features
        assert features is not None
        if scale is None:
            raise ValueError(
                "BlockFW on features needs one η and the Euclidean metric, in which a sample's curvature is one scalar "
                f"for all classes; the groups have {[(g.eta, g.metric) for g in problem.groups]}. Use CorrectiveFW or "
                "MultiStepFW"
            )
        self.scale, self.inner, self.max_passes, self.features = float(scale), inner, max_passes, features
        self.sparse = features.layout is not torch.strided
        weight, start, origin = problem.params[0], problem.start(), problem.origin
        moved = bool(weight.any())
        self.v0 = to_numpy(flatten(problem.linearised_scores(start))) if moved else None
        # Sparse rows access all classes of a few features: there the features are the slowest dimension in memory.
        order: Any = "F" if self.sparse else "C"
        self.W = np.zeros((weight[..., 0].numel(), weight.shape[-1]), weight.cpu().numpy().dtype, order)
        if moved:
            self._set(start)
        self.model = self._model(features)
        self.hull = origin.loss.hull(detached(origin.scores), origin.target)
        exact = exact_state(self.hull)
        self.state: BlockState = exact or AtomState(self.bounds, len(self.W), self.oracle)
        self.evaluations, self.work = 0, 0.0
        self.least_gap, self.idle = math.inf, 0  # and the Newton steps since then
        self.history: list[tuple[float, float]] = []  # the work before each pass, and the least gap
        self.newton: newton.Newton | None = None  # takes over where block steps are slow
        able = exact is not None and features.device.type == "cpu" and self.scale > 0
        quadratic = getattr(self.hull, "ridge", 0.0) > 0
        self.newton_work = newton.work(quadratic, len(self.p), *self.W.shape) if able else math.inf
        if self.scale == 0:  # d = 0, and the dual is linear: the best atoms at the start are its solution
            self.state.begin(self.oracle(self.scores()))

    def _model(self, features: Tensor) -> loops.LinearModel:
        if self.sparse:
            arrays = features.values(), features.col_indices(), features.crow_indices()
            data, indices, starts = (np.ascontiguousarray(x.cpu().numpy()) for x in arrays)
            filled = np.flatnonzero(np.diff(starts))
            norms = np.zeros(len(self.p))
            norms[filled] = np.add.reduceat(np.square(data, dtype=np.float64), starts[filled]) if len(filled) else 0.0
        else:
            data = np.ascontiguousarray(features.cpu().numpy())
            indices = starts = np.zeros(1, np.int32)
            norms = np.einsum("nf,nf->n", data, data, dtype=np.float64)
        step = self.scale * self.p
        h: Array = step * norms
        h = np.maximum(h, 1e-12 * (h.max() or 1.0))  # a row of zeros moves straight to its vertex
        return loops.LinearModel(self.W, step, h, data, indices, starts)

    def begin(self, atom: FlatAtom) -> None:
        super().begin(atom)
        self._refresh()

    def _refresh(self) -> None:
        self._set(self.problem.vertex(self.atom()))

    def _set(self, point: DualPoint) -> None:
        d = self.problem.displacement(point)[0]
        self.W[:] = (self.problem.params[0] + d).reshape(self.W.shape).cpu().numpy()

    def scores(self) -> Array:
        self.evaluations += 1
        if self.evaluations % REFRESH == 0 and self.newton is None:
            self._refresh()
        if not self.sparse:
            return to_numpy(self.features @ torch.as_tensor(self.W).to(self.features).t())
        v = np.empty((len(self.p), len(self.W)))
        loops.sparse_products(self.W, v, *self.model[-3:])
        return v

    def _weight(self) -> Tensor:
        """W as a tensor of the weight's shape."""
        weight = self.problem.params[0]
        return torch.as_tensor(self.W).to(weight).reshape(weight.shape)

    def point(self, now: Evaluation) -> DualPoint:
        """From the weights, r + delta = −H d, which saves a product with Xᵀ; exact up to rounding."""
        if self.scale == 0:
            found = self.problem.vertex(self.atom())
        else:
            weight, p, atom = self.problem.params[0], self.problem.origin.coefficients, self.atom()
            delta = (weight - self._weight()).div_(self.scale)
            if self.v0 is not None:  # at w_t = 0, r is 0
                delta.sub_(self.problem.geometry.r()[0])
            lam = torch.dot(p, atom.offset if self.v0 is None else atom.b(detached(self.like)))
            found = DualPoint([delta], lam, torch.ones_like(lam), 1, atom=atom)
        return replace(found, dual=found.gamma * now.dual, gap=found.gamma * now.gap)

    def sweep(self, rng: np.random.Generator, now: Evaluation, enough: float) -> None:
        """Iterate over the samples that can gain, then over those that gained, until little of the gap is left."""
        if self.newton is not None or self._is_slow(now.gap, enough):
            return self._newton_step(now, enough)
        self.work += 5e4  # the evaluation, and what Python takes
        gap = self.scale * now.gap
        least, enough = SMALL_GAIN * gap / len(self.p), max(self.scale * enough, SMALL_REST * gap)
        order = np.flatnonzero(self.model.step * now.gain > least)
        for _ in range(1 + self.inner):
            order = shuffled(order, rng) if self.sparse else rng.permutation(order)
            gains = self.state.sweep(self.model, order)
            self.work += len(order) * len(self.W) * (self.state.overhead + self.model.data.size / len(self.p))
            order = order[gains > least]
            if gains.sum() <= enough:
                return

    def _is_slow(self, gap: float, enough: float) -> bool:
        """Whether, at the rate of the last half of them, further block steps would take longer than Newton's method, or
        more passes than allowed."""
        self.least_gap = min(gap, self.least_gap)
        self.history.append((self.work, self.least_gap))
        passes = len(self.history)
        if passes < PASSES or 10 * self.work < self.newton_work or not 0 < self.least_gap < math.inf:
            return False
        work, before = self.history[passes // 2]
        decades, missing = math.log(before / self.least_gap), math.log(self.least_gap / max(enough, 1e-300))
        times = missing / decades if decades > 0 else math.inf
        return times * (self.work - work) > self.newton_work or passes * (1 + times / 2) > self.max_passes

    def _newton_step(self, now: Evaluation, enough: float) -> None:
        """Steps of Newton's method; their point becomes the current one where D rises."""
        if self.newton is None:
            X, s = self.features.to_dense().double(), torch.as_tensor(self.state.combination().s)
            u = torch.zeros_like(s) if self.v0 is None else torch.as_tensor(self.v0)
            shape = parts(self.like)[0].shape
            self.newton = newton.Newton(self.hull, X, torch.as_tensor(self.p), self.scale, u, s, shape)
        s_, c, dual = self.newton.solve(enough)
        if self.dual_of_zero + dual > now.dual - ROUNDING * abs(now.dual):  # s gets more digits where D has all
            self.begin(FlatAtom(s_.numpy(), c.numpy()))
            V, of_s = self.newton.V, self.newton.displacement(self.newton.s)
            # By how much D and the gap are wrong where V takes the place of V(s), whose sums lose digits.
            error = (abs(float((of_s * (V - of_s)).sum())) + float((V - of_s).square().sum())) / (2 * self.scale)
            if self.v0 is None and V.shape == self.W.shape and error <= 1e-3 * enough:
                self.W[:] = V.numpy()
        self.idle += 1
        if now.gap < 0.9 * self.least_gap:
            self.least_gap, self.idle = now.gap, 0
        elif self.idle > newton.IDLE and self.newton.h == self.newton.floor:
            self.exhausted, self.idle = not self.newton.relax(), 0


class ShardBlocks(RowBlocks):
    """Block steps on some rows, against a W that the caller keeps in :attr:`W`; the other rows are elsewhere.

    ``state``: that of an earlier visit to these rows.
    """

    def __init__(self, problem: ProxProblem, inner: int, state: BlockState | None) -> None:
        super().__init__(problem, inner)
        self.newton_work = math.inf  # Newton's method needs all rows
        self.state = state or self.state

    def _refresh(self) -> None:
        """W does not follow from the s of these rows alone."""


def shuffled(order: Array, rng: np.random.Generator) -> Array:
    """In random order; of many samples, groups stay together. The remainder comes first, so that groups vary."""
    if len(order) < MANY_ROWS:
        return rng.permutation(order)
    whole = order[: len(order) // GROUP * GROUP].reshape(-1, GROUP)
    return np.concatenate([order[whole.size :], whole[rng.permutation(len(whole))].ravel()])
