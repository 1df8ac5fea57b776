"""What BlockFW sweeps over: the rows of the features, or the Gram matrix of a network's scores.

All of it is float64 on the CPU (the weights keep the features' dtype), sample-major: scores and s are ``[n, M]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm.losses.base import Atom, Scores, like, parts
from proxsvm.losses.hulls import Box, Simplex
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.solvers.kernels import Array, kernels

ROUNDS = 10  # pairwise steps a visit of a block, where its hull has no closed form
SMALL = 0.1  # samples that could gain less than this part of the mean are left out of a pass
LEFT = 0.1  # a pass ends once its visits gain no more than this part of the gap that it began with


class Blocks(ABC):
    """A dual point by its samples, and a way to improve it sample by sample."""

    def __init__(self, problem: ProxProblem) -> None:
        self.problem = problem
        start = problem.start()
        assert start.dual is not None
        self.dual_of_start = float(start.dual)
        self.like = problem.origin.scores
        self.p = to_numpy(problem.origin.coefficients)
        self.compiled = False
        self.work = 0  # what the sweeps have cost or, before the first one, what it is going to

    @abstractmethod
    def begin(self, atom: Atom) -> None:
        """Start from an atom for each sample."""

    @abstractmethod
    def sweep(self, rng: np.random.Generator, enough: float) -> None:
        """Improve the blocks, in random order; a gap of ``enough`` would do."""

    @abstractmethod
    def combination(self) -> tuple[Array, Array]:
        """The present s, ``[n, M]``, and c, ``[n]``."""

    @abstractmethod
    def scores(self) -> Array:
        """v = u + J d at the present point, ``[n, M]``."""

    @abstractmethod
    def dual(self, s: Array, c: Array) -> float:
        """D at the present point."""

    def look(self) -> tuple[float, float]:
        """D and the certified gap."""
        s, c = self.combination()
        self.looked = self.dual(s, c), float(self.p @ self.ahead(self.scores(), s, c))
        return self.looked

    def ahead(self, v: Array, s: Array, c: Array) -> Array:
        """What the best atom at v is worth more than the present one, ``[n]``; the atom is kept in ``found``."""
        origin = self.problem.origin
        best = origin.loss.oracle(self._shaped(v), origin.target)
        self.found = _flat(best.s), to_numpy(best.offset)
        gain: Array = (self.found[0] * v).sum(1) + self.found[1] - (s * v).sum(1) - c
        return gain

    def point(self) -> DualPoint:
        """The present point with its delta, D and gap."""
        point = self.problem.vertex(self.atom())
        return replace(point, dual=self.problem.dual(point), gap=self.problem.gap(point))

    def atom(self) -> Atom:
        """The present point, as the loss writes atoms."""
        s, c = self.combination()
        return Atom(self._shaped(s, parts(self.like)[0].dtype), torch.as_tensor(c).to(self.problem.origin.coefficients))

    def _shaped(self, flat: Array, dtype: torch.dtype = torch.double) -> Scores:
        device = parts(self.like)[0].device
        sizes = [u[0].numel() for u in parts(self.like)]
        pieces = torch.split(torch.as_tensor(flat).to(device, dtype), sizes, 1)
        return like(self.like, tuple(x.reshape(u.shape) for x, u in zip(pieces, parts(self.like), strict=True)))


class Hulls:
    """For each sample the atoms seen so far and their weights: ``A`` [n, T, M], ``c`` and ``a`` [n, T], ``counts``."""

    def __init__(self, n: int, M: int) -> None:
        self.A, self.c, self.a = np.zeros((n, 4, M)), np.zeros((n, 4)), np.zeros((n, 4))
        self.a[:, 0] = 1.0  # the first atom is (0, 0), which every hull has
        self.counts = np.ones(n, np.int64)

    def add(self, s: Array, c: Array) -> None:
        """See an atom for each sample; one that is known already is not kept twice."""
        T = self.A.shape[1]
        known = ((s[:, None] == self.A).all(2) & (self.c == c[:, None]) & (np.arange(T) < self.counts[:, None])).any(1)
        rows = np.flatnonzero(~known)
        if len(rows) and self.counts[rows].max() == T:
            self.A = np.concatenate([self.A, np.zeros_like(self.A)], 1)
            self.c, self.a = np.hstack([self.c, np.zeros_like(self.c)]), np.hstack([self.a, np.zeros_like(self.a)])
        at = self.counts[rows]
        self.A[rows, at], self.c[rows, at] = s[rows], c[rows]
        self.counts[rows] += 1

    def begin(self, s: Array, c: Array) -> None:
        """Put all the weight on one feasible point."""
        self.add(s, c)
        last = np.arange(len(s)), self.counts - 1
        self.a[:] = 0.0
        self.a[last] = 1.0

    def combination(self) -> tuple[Array, Array]:
        """Σ_t a_t (A_t, c_t)."""
        return np.einsum("nt,ntm->nm", self.a, self.A), (self.a * self.c).sum(1)


class GramBlocks(Blocks):
    """A network in the space of its scores: v = v₀ − G x with x = p·s and G = J diag(η) Jᵀ."""

    def __init__(self, problem: ProxProblem, max_entries: int) -> None:
        super().__init__(problem)
        n, M = len(self.p), sum(u[0].numel() for u in parts(self.like))
        P = sum(w.numel() for w in problem.params)
        if n * M * (P + n * M) > max_entries:
            raise ValueError(
                f"BlockFW on a network of {P:,} parameters with {n * M:,} score entries needs a Jacobian and a Gram "
                f"matrix of {n * M * (P + n * M):,} numbers, more than max_entries={max_entries:,}: take fewer "
                "samples, raise max_entries, or use CorrectiveFW, which needs neither"
            )
        self.G = self._gram(n)
        self.v0 = _flat(problem.linearised_scores(problem.start()))
        self.hulls = Hulls(n, M)
        self.work = (n * M) ** 2

    def _gram(self, n: int) -> Array:
        problem = self.problem
        root_eta = torch.cat(
            [
                torch.as_tensor(g.eta, dtype=w.dtype, device=w.device).sqrt().expand(w.numel())
                for g in problem.groups
                for w in (problem.params[i] for i in g.at)
            ]
        )
        J = problem.linearization.jacobian().detach() * root_eta
        places = torch.split(torch.arange(len(J), device=J.device), [u.numel() for u in parts(self.like)])
        J = J[torch.cat([place.reshape(n, -1) for place in places], 1).reshape(-1)]  # sample-major
        return to_numpy(J @ J.t())

    def begin(self, atom: Atom) -> None:
        """Start from an atom for each sample."""
        self.hulls.begin(_flat(atom.s), to_numpy(atom.offset))

    def combination(self) -> tuple[Array, Array]:
        """The present s and c."""
        return self.hulls.combination()

    def _gx(self, s: Array) -> Array:
        gx: Array = (self.G @ (self.p[:, None] * s).reshape(-1)).reshape(s.shape)
        return gx

    def scores(self) -> Array:
        """v at the present point."""
        return self.v0 - self._gx(self.combination()[0])

    def dual(self, s: Array, c: Array) -> float:
        """D at the present point."""
        x = self.p[:, None] * s
        return self.dual_of_start + float((x * self.v0).sum() + self.p @ c - (x * self._gx(s)).sum() / 2)

    def sweep(self, rng: np.random.Generator, enough: float) -> None:
        """Improve every block once."""
        h = self.hulls
        h.add(*self.found)
        v = self.scores().reshape(-1)
        self.work += (len(self.p) + 100) * v.size
        kernels(self.compiled).gram_sweep(
            rng.permutation(len(self.p)), ROUNDS, self.G, self.p, h.A, h.c, h.a, h.counts, v
        )


class RowBlocks(Blocks):
    """A linear model on the rows of its features: W = w_t + d is kept, and v_i = W x_i made when it is needed."""

    def __init__(self, problem: ProxProblem, features: Tensor, inner: int) -> None:
        super().__init__(problem)
        (group,), (weight,) = problem.groups, problem.params
        self.eta, self.decay, self.inner = float(group.eta), group.decay, inner
        self.rows = _rows(features)
        self.sparse = features.layout is not torch.strided
        self.step = self.eta * self.p
        h = self.step * _squared_norms(features)
        self.h = np.maximum(h, 1e-12 * (h.max() or 1.0))  # a row of zeros goes straight to its vertex
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

    def begin(self, atom: Atom) -> None:
        """Start from an atom for each sample."""
        self.steps.begin(_flat(atom.s), to_numpy(atom.offset))
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
        weight = self.problem.params[0]
        W = torch.as_tensor(self.W).to(weight).reshape(weight.shape)
        return _flat(self.problem.linearization.jvp([W]))

    def dual(self, s: Array, c: Array) -> float:
        """D at the present point."""
        lam = self.p @ (c if self.w is None else (s * _flat(self.like)).sum(1) + c)
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
        lam = torch.dot(p, atom.b(like(self.like, tuple(u.detach() for u in parts(self.like)))))
        one = torch.ones_like(lam)
        value, ahead = (one * x for x in self.looked)
        return DualPoint([delta], lam, one, 1, dual=value, gap=ahead, atom=atom)

    def sweep(self, rng: np.random.Generator, enough: float) -> None:
        """Visit the samples that have something to gain, then those that gained, until little of the gap is left."""
        run, gap, self.moved = self.run(), self.eta * self.looked[1], True
        least, enough = SMALL * gap / len(self.p), max(self.eta * enough, LEFT * gap)
        order = np.flatnonzero(self.step if self.gain is None else self.step * self.gain > least)
        for _ in range(1 + self.inner):
            rng.shuffle(order)
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
        state = self.cost, self.alpha, self.live, self.lives
        front, total = run.simplex_sweep(order, least, b.step, b.h, *state, b.W, *b.rows)
        return int(front), float(total)


class _BoxStep(_Step):
    def __init__(self, blocks: RowBlocks, hull: Box) -> None:
        super().__init__(blocks, hull)
        self.low, self.high, self.center = (_flat(x) for x in (hull.low, hull.high, hull.center))
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


def to_numpy(x: Tensor) -> Array:
    """A tensor as a float64 array."""
    array: Array = x.detach().cpu().double().numpy()
    return array


def _flat(scores: Scores) -> Array:
    """Scores as ``[n, M]``."""
    arrays = [to_numpy(u).reshape(len(u), -1) for u in parts(scores)]
    return np.ascontiguousarray(arrays[0] if len(arrays) == 1 else np.hstack(arrays))


def _rows(features: Tensor) -> tuple[Array, Array, Array]:
    """(data, indices, indptr): CSR for sparse features; dense ones are data alone."""
    if features.layout is torch.strided:
        none = np.zeros(1, np.int64)
        return np.ascontiguousarray(features.cpu().numpy()), none, none
    parts_ = features.values(), features.col_indices(), features.crow_indices()
    data, indices, indptr = (np.ascontiguousarray(x.cpu().numpy()) for x in parts_)
    return data, indices, indptr


def _squared_norms(features: Tensor) -> Array:
    if features.layout is torch.strided:
        X = features.cpu().numpy()
        return np.asarray(np.einsum("nf,nf->n", X, X, dtype=np.float64))
    data, _, starts = _rows(features)
    norms, filled = np.zeros(len(features)), np.flatnonzero(np.diff(starts))
    if len(filled):
        norms[filled] = np.add.reduceat(np.square(data, dtype=np.float64), starts[filled])
    return norms
