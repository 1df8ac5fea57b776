"""What BlockFW sweeps over on a linear model: the rows of its features, dense or sparse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm.losses.base import Atom, like, parts
from proxsvm.losses.hulls import Box, Simplex
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.solvers.blocks import ROUNDS, Blocks, Hulls, flat, to_numpy
from proxsvm.solvers.kernels import kernels
from proxsvm.solvers.row_loops import Array

SMALL = 0.1  # samples that could gain less than this part of the mean are left out of a pass
NEAR, MANY = 8, 1000  # of MANY sparse rows, NEAR that lie side by side are visited in turn: the memory jumps less
LEFT = 0.1  # a pass ends once its visits gain no more than this part of the gap that it began with


class RowBlocks(Blocks):
    """A linear model on the rows of its features: W = w_t + d is kept, and v_i = W x_i made when it is needed."""

    def __init__(self, problem: ProxProblem, features: Tensor, inner: int) -> None:
        super().__init__(problem)
        (group,), (weight,) = problem.groups, problem.params
        self.eta, self.decay, self.inner = float(group.eta), group.decay, inner
        self.rows = _rows(features)
        self.sparse = features.layout is not torch.strided
        self.step = self.eta * self.p
        # Sparse rows touch all classes of a few features: there the features run slowest in memory.
        order: Any = "F" if self.sparse else "C"
        w = weight.reshape(-1, weight.shape[-1]).cpu().numpy()
        self.w = np.asarray(w, order=order) if w.any() else None
        self.W = (
            np.zeros(w.shape, self.rows[0].dtype, order) if self.w is None else self.w * (1 - self.eta * self.decay)
        )
        origin = problem.origin
        detached = like(origin.scores, tuple(u.detach() for u in parts(origin.scores)))
        hull = origin.loss.hull(detached, origin.target)
        kinds: dict[type, type[_Step]] = {Simplex: _SimplexStep, Box: _BoxStep}
        self.steps = kinds.get(type(hull), _AtomStep)(self, hull)
        self.looks, self.moved = 0, False
        self.gain: Array | None = None
        self.work = (self.rows[0].size + 100 * len(self.p)) * len(self.W)

    @cached_property
    def h(self) -> Array:
        """η p_i ‖x_i‖², the curvature of each block, ``[n]``."""
        data, _, starts = self.rows
        if not self.sparse:
            norms = np.einsum("nf,nf->n", data, data, dtype=np.float64)
        elif self.compiled:
            norms = np.empty(len(self.p))
            self.run().squared_norms(norms, data, starts)
        else:
            norms, filled = np.zeros(len(self.p)), np.flatnonzero(np.diff(starts))
            if len(filled):
                norms[filled] = np.add.reduceat(np.square(data, dtype=np.float64), starts[filled])
        h: Array = self.step * norms
        h = np.maximum(h, 1e-12 * (h.max() or 1.0))  # a row of zeros goes straight to its vertex
        return h

    def begin(self, atom: Atom) -> None:
        """Start from an atom for each sample."""
        self.steps.begin(flat(atom.s), to_numpy(atom.offset))
        self.moved = True
        self._refresh()

    def combination(self) -> tuple[Array, Array]:
        """The present s and c."""
        return self.steps.combination()

    def _refresh(self) -> None:
        """W from s anew: the rounding of many small steps is gone."""
        d = self.problem.displacement(self.problem.vertex(self.atom()))[0]
        self.W[:] = (self.problem.params[0] + d).reshape(self.W.shape).cpu().numpy()

    def scores(self) -> Array:
        """v at the present point."""
        if self.w is None and not self.moved:
            return np.zeros((len(self.p), len(self.W)))
        self.looks += 1
        if self.looks % 20 == 0:
            self._refresh()
        if self.compiled and self.sparse:
            v = np.empty((len(self.p), len(self.W)))
            self.run().products(self.W, v, *self.rows)
            return v
        weight = self.problem.params[0]
        W = torch.as_tensor(self.W).to(weight).reshape(weight.shape)
        return flat(self.problem.linearization.jvp([W]))

    def dual(self, s: Array, c: Array) -> float:
        """D at the present point."""
        lam = self.p @ (c if self.w is None else (s * flat(self.like)).sum(1) + c)
        d = (self.W if self.w is None else self.W - self.w).ravel(order="K")
        return float(lam - np.dot(d, d.astype(np.float64, copy=False)) / (2 * self.eta))

    def look(self) -> tuple[float, float]:
        """D and the certified gap; a closed form tells them without the oracle."""
        v = self.scores()
        known = self.steps.look(v)
        if known is None or self.w is not None:
            s, c = self.combination()
            gain, dual = self.ahead(v, s, c) if known is None else known[0], self.dual(s, c)
            self.gain = None if known is None else gain  # which atoms matter shows in several passes: all are visited
        else:
            self.gain, worth = known
            gain, dual = self.gain, float((self.p * worth).sum())  # from w = 0, ‖d‖² is −η Σ p ⟨s, v⟩
        self.looked = dual, float((self.p * gain).sum())
        return self.looked

    def point(self) -> DualPoint:
        """Straight from the weights, r + delta = −d/η, which saves a product with Xᵀ; exact up to rounding."""
        weight, p, atom = self.problem.params[0], self.problem.origin.coefficients, self.atom()
        W = torch.as_tensor(self.W).to(weight).reshape(weight.shape)
        delta = W / -self.eta if self.w is None else (weight - W) / self.eta - self.decay * weight
        scores = like(self.like, tuple(u.detach() for u in parts(self.like)))
        lam = torch.dot(p, atom.offset if self.w is None else atom.b(scores))
        one = torch.ones_like(lam)
        value, ahead = (one * x for x in self.looked)
        return DualPoint([delta], lam, one, 1, dual=value, gap=ahead, atom=atom)

    def sweep(self, rng: np.random.Generator, enough: float) -> None:
        """Visit the samples that have something to gain, then those that gained, until little of the gap is left."""
        run, gap, self.moved = self.run(), self.eta * self.looked[1], True
        least, enough = SMALL * gap / len(self.p), max(self.eta * enough, LEFT * gap)
        order = np.flatnonzero(self.step if self.gain is None else self.step * self.gain > least)
        for _ in range(1 + self.inner):
            order = _shuffled(order, rng) if self.sparse else rng.permutation(order)
            front, total = self.steps.sweep(run, order, least)
            self.work += (self.rows[0].size + 100 * len(self.p)) * len(self.W) * len(order) // len(self.p)
            order = order[:front]
            if total <= enough:
                return

    def run(self) -> SimpleNamespace:
        """The loops."""
        return kernels(self.compiled, self.sparse)


class _Step(ABC):
    """The block step of one kind of hull on rows, and the state that it needs."""

    def __init__(self, blocks: RowBlocks, hull: Any) -> None:
        self.blocks = blocks

    @abstractmethod
    def begin(self, s: Array, c: Array) -> None: ...

    @abstractmethod
    def combination(self) -> tuple[Array, Array]: ...

    def look(self, v: Array) -> tuple[Array, Array] | None:
        """How much more the best atom at v is worth than the present one, and c + ½⟨s, v⟩ of the present one, ``[n]``
        both; None where the hull has no formula."""
        return None

    @abstractmethod
    def sweep(self, run: SimpleNamespace, order: Array, least: float) -> tuple[int, float]:
        """Visit ``order``; see ``simplex_sweep`` in :mod:`proxsvm.solvers.kernels`."""


class _SimplexStep(_Step):
    def __init__(self, blocks: RowBlocks, hull: Simplex) -> None:
        super().__init__(blocks, hull)
        self.cost, self.target = to_numpy(hull.cost), hull.target.cpu().numpy()
        self.e_y = np.zeros_like(self.cost)
        self.e_y[np.arange(len(self.target)), self.target] = 1.0
        self.alpha = self.e_y.copy()
        n, K = self.cost.shape
        self.live, self.lives = np.zeros((n, K), np.int32), np.zeros(n, np.int32)
        self.gain, self.worth = np.zeros(n), np.zeros(n)

    def begin(self, s: Array, c: Array) -> None:
        self.alpha = np.maximum(s + self.e_y, 0.0)

    def combination(self) -> tuple[Array, Array]:
        return self.alpha - self.e_y, (self.alpha * self.cost).sum(1)

    def look(self, v: Array) -> tuple[Array, Array]:
        state = self.cost, self.alpha, self.target, self.live, self.lives
        self.blocks.run().simplex_look(v, *state, self.gain, self.worth)
        return self.gain, self.worth

    def sweep(self, run: SimpleNamespace, order: Array, least: float) -> tuple[int, float]:
        b = self.blocks
        if b.sparse and len(b.W) == 3:
            front, total = run.three_sweep(order, least, b.step, b.h, self.cost, self.alpha, b.W, *b.rows)
        else:
            state = self.cost, self.alpha, self.live, self.lives
            front, total = run.simplex_sweep(order, least, b.step, b.h, *state, b.W, *b.rows)
        return int(front), float(total)


class _BoxStep(_Step):
    def __init__(self, blocks: RowBlocks, hull: Box) -> None:
        super().__init__(blocks, hull)
        self.low, self.high, self.center = (flat(x) for x in (hull.low, hull.high, hull.center))
        self.band = float(hull.band)
        self.s = np.zeros_like(self.center)

    def begin(self, s: Array, c: Array) -> None:
        self.s = s.copy()

    def combination(self) -> tuple[Array, Array]:
        return self.s, -(self.s * self.center + self.band * np.abs(self.s)).sum(1)

    def look(self, v: Array) -> tuple[Array, Array]:
        residual = v - self.center
        ends = (end * residual - self.band * np.abs(end) for end in (self.low, self.high, self.s))
        at_low, at_high, now = ends
        gain = (np.maximum(np.maximum(at_low, at_high), 0.0) - now).sum(1)
        return gain, (now - self.s * v / 2).sum(1)

    def sweep(self, run: SimpleNamespace, order: Array, least: float) -> tuple[int, float]:
        b = self.blocks
        box = self.low, self.high, self.center, self.band, self.s
        front, total = run.box_sweep(order, least, b.step, b.h, *box, b.W, *b.rows)
        return int(front), float(total)


class _AtomStep(_Step):
    """For any loss: pairwise steps over the atoms that its oracle has found."""

    def __init__(self, blocks: RowBlocks, hull: None) -> None:
        super().__init__(blocks, hull)
        self.hulls = Hulls(len(blocks.p), blocks.W.shape[0])

    def begin(self, s: Array, c: Array) -> None:
        self.hulls.begin(s, c)

    def combination(self) -> tuple[Array, Array]:
        return self.hulls.combination()

    def sweep(self, run: SimpleNamespace, order: Array, least: float) -> tuple[int, float]:
        b, h = self.blocks, self.hulls
        h.add(*b.found)
        run.row_sweep(order, ROUNDS, b.step, b.h, h.A, h.c, h.a, h.counts, b.W, *b.rows)
        return 0, 0.0


def _shuffled(order: Array, rng: np.random.Generator) -> Array:
    """In random order; of many samples, neighbours stay together. The rest goes first, so that these change."""
    if len(order) < MANY:
        return rng.permutation(order)
    whole = order[: len(order) // NEAR * NEAR].reshape(-1, NEAR)
    return np.concatenate([order[whole.size :], whole[rng.permutation(len(whole))].ravel()])


def _rows(features: Tensor) -> tuple[Array, Array, Array]:
    """(data, indices, indptr): CSR for sparse features; dense ones are data alone."""
    if features.layout is torch.strided:
        none = np.zeros(1, np.int64)
        return np.ascontiguousarray(features.cpu().numpy()), none, none
    parts_ = features.values(), features.col_indices(), features.crow_indices()
    data, indices, indptr = (np.ascontiguousarray(x.cpu().numpy()) for x in parts_)
    return data, indices, indptr
