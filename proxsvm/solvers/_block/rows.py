"""BlockFW on a linear model, on the rows of its features, dense or sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import detached
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._block.atoms import AtomStep
from proxsvm.solvers._block.base import Blocks, Evaluation, FlatAtom, flat, kernels
from proxsvm.solvers._block.box import BoxStep
from proxsvm.solvers._block.entropy import EntropyStep
from proxsvm.solvers._block.row_step import LinearModel, RowStep
from proxsvm.solvers._block.simplex import SimplexStep

SMALL = 0.1  # samples that could gain less than this fraction of the mean are left out of a pass
NEAR, MANY = 8, 1000  # of MANY sparse rows, NEAR contiguous ones follow each other, for cache locality
EXACT: tuple[Any, ...] = (SimplexStep, BoxStep, EntropyStep)  # each declares the hull that it needs
LEFT = 0.1  # a pass ends once its block steps gain at most this fraction of the gap at its start


class RowBlocks(Blocks):
    """W = w_t + d is kept, and v_i = W x_i evaluated where it is needed. The metric must be H⁻¹ = ``scale`` · 1."""

    def __init__(self, problem: ProxProblem, features: Tensor, inner: int) -> None:
        super().__init__(problem)
        scale = problem.geometry.scale()
        if scale is None:
            raise ValueError(
                "BlockFW on features needs one η and the Euclidean metric, in which a sample's curvature is one scalar "
                f"for all classes; the groups have {[(g.eta, g.metric) for g in problem.groups]}. Use CorrectiveFW or "
                "MultiStepFW"
            )
        self.scale, self.inner = scale, inner
        self.rows = _rows(features)
        self.sparse = features.layout is not torch.strided
        # Sparse rows access all classes of a few features: there the features are the slowest dimension in memory.
        order: Any = "F" if self.sparse else "C"
        weight = problem.params[0]
        w = weight.reshape(-1, weight.shape[-1]).cpu().numpy()
        self.w = np.asarray(w, order=order) if w.any() else None
        self.W = np.zeros(w.shape, self.rows[0].dtype, order)
        if self.w is not None:
            self._set(problem.start())
        self.model: LinearModel | None = None  # created by the first sweep
        self.step = self._step()
        self.evaluations, self.moved = 0, False
        self.work = self._work_of(len(self.p))

    def _step(self) -> RowStep:
        origin = self.problem.origin
        hull = origin.loss.hull(detached(origin.scores), origin.target)
        exact = next((kind for kind in EXACT if isinstance(hull, kind.needs)), None)
        return AtomStep(self.bounds, len(self.W)) if exact is None else exact(hull)

    def _work_of(self, visits: int) -> int:
        return (self.rows[0].size + 100 * len(self.p)) * len(self.W) * visits // len(self.p)

    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible atom for each sample."""
        self.step.begin(atom)
        self.moved = True
        self._refresh()

    def combination(self) -> FlatAtom:
        """The current s and c."""
        return self.step.combination()

    def _refresh(self) -> None:
        """W recomputed from s, without the rounding errors of many small steps."""
        self._set(self.problem.vertex(self.atom()))

    def _set(self, point: DualPoint) -> None:
        d = self.problem.displacement(point)[0]
        self.W[:] = (self.problem.params[0] + d).reshape(self.W.shape).cpu().numpy()

    def _scores(self, compiled: bool) -> Array:
        """v at the current point, ``[n, M]``."""
        if self.w is None and not self.moved:
            return np.zeros((len(self.p), len(self.W)))
        self.evaluations += 1
        if self.evaluations % 20 == 0:
            self._refresh()
        if compiled and self.sparse:
            v = np.empty((len(self.p), len(self.W)))
            kernels(compiled).products(self.W, v, *self.rows)
            return v
        return flat(self.problem.linearization.jvp([self._weight()]))

    def _weight(self) -> Tensor:
        """W as a tensor of the weight's shape."""
        weight = self.problem.params[0]
        return torch.as_tensor(self.W).to(weight).reshape(weight.shape)

    def _dual(self, now: FlatAtom) -> float:
        lam = self.p @ (now.offset if self.w is None else now.b(flat(self.like)))
        d = (self.W if self.w is None else self.W - self.w).ravel(order="K")
        return float(lam - np.dot(d, d.astype(np.float64, copy=False)) / (2 * self.scale))

    def evaluate(self, compiled: bool) -> Evaluation:
        """D and the certified gap; a closed form gives them without the oracle."""
        v = self._scores(compiled)
        known = self.step.evaluate(compiled, v)
        if known is None:
            now, best = self.combination(), self.oracle(v)
            gap = float((self.p * (best.b(v) - now.b(v))).sum())
            return Evaluation(self._dual(now), self.certified(gap, v), best=best)
        gain, worth = known
        # From w = 0, ⟨d, H d⟩ is −Σ p ⟨s, v⟩.
        dual = float((self.p * worth).sum()) if self.w is None else self._dual(self.combination())
        return Evaluation(dual, self.certified(float((self.p * gain).sum()), v), gain=gain)

    def point(self, now: Evaluation) -> DualPoint:
        """From the weights, r + delta = −H d, which saves a product with Xᵀ; exact up to rounding."""
        weight, p, atom, W = self.problem.params[0], self.problem.origin.coefficients, self.atom(), self._weight()
        delta = W / -self.scale
        if self.w is not None:
            delta = (weight - W) / self.scale - self.problem.geometry.r()[0]
        lam = torch.dot(p, atom.offset if self.w is None else atom.b(detached(self.like)))
        one = torch.ones_like(lam)
        return DualPoint([delta], lam, one, 1, dual=one * now.dual, gap=one * now.gap, atom=atom)

    def sweep(self, compiled: bool, rng: np.random.Generator, now: Evaluation, enough: float) -> None:
        """Iterate over the samples that can gain, then over those that gained, until little of the gap is left."""
        self.model = model = self.model or self._model(compiled)
        gap, self.moved = self.scale * now.gap, True
        least, enough = SMALL * gap / len(self.p), max(self.scale * enough, LEFT * gap)
        order = np.flatnonzero(model.step if now.gain is None else model.step * now.gain > least)
        self.step.prepare(now)
        for _ in range(1 + self.inner):
            order = shuffled(order, rng) if self.sparse else rng.permutation(order)
            front, total = self.step.sweep(compiled, model, order, least)
            self.work += self._work_of(len(order))
            order = order[:front]
            if total <= enough:
                return

    def _model(self, compiled: bool) -> LinearModel:
        data, _, starts = self.rows
        if self.sparse:
            norms = np.empty(len(self.p))
            kernels(compiled).squared_norms(norms, data, starts)
        else:
            norms = np.einsum("nf,nf->n", data, data, dtype=np.float64)
        step = self.scale * self.p
        h: Array = step * norms
        h = np.maximum(h, 1e-12 * (h.max() or 1.0))  # a row of zeros moves straight to its vertex
        return LinearModel(self.W, self.rows, step, h)


def shuffled(order: Array, rng: np.random.Generator) -> Array:
    """In random order; of many samples, neighbours stay together. The remainder comes first, so that blocks vary."""
    if len(order) < MANY:
        return rng.permutation(order)
    whole = order[: len(order) // NEAR * NEAR].reshape(-1, NEAR)
    return np.concatenate([order[whole.size :], whole[rng.permutation(len(whole))].ravel()])


def _rows(features: Tensor) -> tuple[Array, Array, Array]:
    """(data, indices, row starts): CSR for sparse features; dense ones are data alone."""
    if features.layout is torch.strided:
        none = np.zeros(1, np.int64)
        return np.ascontiguousarray(features.cpu().numpy()), none, none
    parts_ = features.values(), features.col_indices(), features.crow_indices()
    data, indices, starts = (np.ascontiguousarray(x.cpu().numpy()) for x in parts_)
    return data, indices, starts
