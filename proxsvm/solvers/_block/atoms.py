"""Any hull, from the atoms that the loss's oracle has found so far."""

from __future__ import annotations

import numpy as np

from proxsvm._kernels.tensors import Array
from proxsvm.solvers._block.base import ROUNDS, Evaluation, FlatAtom, kernels
from proxsvm.solvers._block.row_step import LinearModel, RowStep

MANY = 16  # atoms per sample; above, those without weight are dropped


class AtomWeights:
    """For each sample the atoms found so far and their weights: ``A`` [n, T, M], ``c`` and ``a`` [n, T], ``counts``."""

    def __init__(self, bounds: Array, M: int) -> None:
        n = len(bounds)
        self.A, self.c, self.a = np.zeros((n, 4, M)), np.zeros((n, 4)), np.zeros((n, 4))
        self.a[:, 0], self.c[:, 0] = 1.0, bounds  # the first atom is (0, f), which every hull contains
        self.counts = np.ones(n, np.int64)

    def add(self, atom: FlatAtom) -> None:
        """Add an atom for each sample; known ones are not stored twice."""
        s, c = atom
        if self.counts.max() == self.A.shape[1] >= MANY:
            self._drop_idle()
        T = self.A.shape[1]
        known = ((s[:, None] == self.A).all(2) & (self.c == c[:, None]) & (np.arange(T) < self.counts[:, None])).any(1)
        rows = np.flatnonzero(~known)
        if len(rows) and self.counts[rows].max() == T:
            self.A = np.concatenate([self.A, np.zeros_like(self.A)], 1)
            self.c, self.a = np.hstack([self.c, np.zeros_like(self.c)]), np.hstack([self.a, np.zeros_like(self.a)])
        at = self.counts[rows]
        self.A[rows, at], self.c[rows, at] = s[rows], c[rows]
        self.counts[rows] += 1

    def _drop_idle(self) -> None:
        """Drop the atoms without weight; a smooth loss never finds the same one twice."""
        kept = self.a > 0
        kept[:, 0] = True
        order = np.argsort(~kept, axis=1, kind="stable")
        self.A = np.take_along_axis(self.A, order[:, :, None], 1)
        self.c, self.a = (np.take_along_axis(x, order, 1) for x in (self.c, self.a))
        self.counts = kept.sum(1)

    def begin(self, atom: FlatAtom) -> None:
        """Put all the weight on one feasible point."""
        self.add(atom)
        last = np.arange(len(atom.offset)), self.counts - 1
        self.a[:] = 0.0
        self.a[last] = 1.0

    def combination(self) -> FlatAtom:
        """Σ_t a_t (A_t, c_t)."""
        return FlatAtom(np.einsum("nt,ntm->nm", self.a, self.A), (self.a * self.c).sum(1))

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """The arguments of the loops."""
        return self.A, self.c, self.a, self.counts


class AtomStep(RowStep):
    """Pairwise steps over the atoms of each sample, a new one from the oracle every pass."""

    def __init__(self, bounds: Array, M: int) -> None:
        self.weights = AtomWeights(bounds, M)

    def begin(self, atom: FlatAtom) -> None:
        """Put all the weight on ``atom``."""
        self.weights.begin(atom)

    def combination(self) -> FlatAtom:
        """The current s and c."""
        return self.weights.combination()

    def prepare(self, now: Evaluation) -> None:
        """Add the oracle's new atom."""
        assert now.best is not None
        self.weights.add(now.best)

    def sweep(self, compiled: bool, model: LinearModel, order: Array, least: float) -> tuple[int, float]:
        """One block step per sample; it takes several passes to see which atoms matter, so none is left out."""
        kernels(compiled).atom_sweep(order, ROUNDS, model.step, model.h, *self.weights.arrays, model.W, *model.rows)
        return 0, 0.0
