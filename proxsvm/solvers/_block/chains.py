"""Linear chain models: a dual point kept sequence by sequence, and the passes that improve it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from proxsvm._kernels.tensors import Array
from proxsvm.solvers.base import Callback, Progress


class ChainBlocks(ABC):
    """A dual point of min over w = (W, A) of ½‖w‖² + C Σ_i ℓ(X_i W, A; y_i): expected features μ_i and offsets c_i.

        w = C Σ_i Jᵀ(φ(y_i) − μ_i),      D = C Σ_i c_i − ½‖w‖²,      P(w) − D = C Σ_i (the gap of sequence i)

    ``X``: all positions, CSR ``[N, F]``; sequence i begins at row ``starts[i]``; ``labels``: ``[N]``, below K.
    """

    inner = 0  # further sweeps of a pass, over the sequences whose gap is above the mean
    state: tuple[Array, ...]  # a dual point of sequences of these lengths, whatever their features and labels are

    def __init__(self, X: Any, starts: Array, labels: Array, K: int, C: float) -> None:
        self.X, self.C, self.n = X, C, len(starts) - 1
        self.gaps = np.zeros(self.n)
        from proxsvm._kernels import chain_blocks  # it imports numba

        self.kernels = chain_blocks
        self.rows = chain_blocks.Sequences(X.data, X.indices, X.indptr, starts)
        self.owner = np.repeat(np.arange(self.n), np.diff(starts))
        self.later = np.setdiff1d(np.arange(len(labels)), starts)  # positions that have a predecessor
        self.one_hot = np.eye(K)[labels]
        self.pairs = np.zeros((self.n, K, K))
        np.add.at(self.pairs, (self.owner[self.later], labels[self.later - 1], labels[self.later]), 1.0)

    @abstractmethod
    def sweep(self, order: Array, move: bool) -> None:
        """Improve the sequences in ``order``, and keep their gaps; see :mod:`proxsvm._kernels.chain_blocks`."""

    @abstractmethod
    def expected(self) -> tuple[Array, Array]:
        """μ: of the labels, ``[N, K]``, and of the pairs of labels, summed over all sequences, ``[K, K]``."""

    @abstractmethod
    def offset(self) -> float:
        """Σ_i c_i."""

    def dual(self) -> float:
        """The value of the dual point."""
        return self.C * self.offset() - (float(np.vdot(self.W, self.W)) + float(np.vdot(self.A, self.A))) / 2

    def certify(self) -> tuple[float, float]:
        """D and the gap, from weights without the rounding errors of the steps."""
        mu, e = self.expected()
        self.W: Array = self.C * (self.X.T @ (self.one_hot - mu))
        self.A: Array = self.C * (self.pairs.sum(0) - e)
        self.sweep(np.arange(self.n), False)
        return self.dual(), max(self.C * float(self.gaps.sum()), 0.0)

    def solve(self, rng: Any, *, tol: float, max_passes: int, callback: Callback) -> tuple[int, float, float]:
        """Pass over the sequences until (P − D)/P ≤ tol; returns the number of passes, D and the certified gap.

        The sum of the gaps that the sequences had when they were visited says when it is worth the time to certify.
        """
        progress, passes = Progress(0.0, tol=tol, callback=callback), 0
        dual, gap = self.certify()
        while not progress.stop(passes, dual, gap) and passes < max_passes:
            passes += 1
            self.sweep(rng.permutation(self.n), True)
            gap, dual = self.C * float(self.gaps.sum()), self.dual()
            for _ in range(self.inner):
                self.sweep(rng.permutation(np.flatnonzero(self.gaps > self.gaps.mean())), True)
            if not gap > progress.enough(dual, gap) or passes == max_passes:
                dual, gap = self.certify()
        return passes, dual, gap


class ChainLikelihoodBlocks(ChainBlocks):
    """State: μ of the labels ``[N, K]``, of the pairs ``[n, K, K]``, and c ``[n]``, at most the entropy of μ."""

    def __init__(self, X: Any, starts: Array, labels: Array, K: int, C: float) -> None:
        super().__init__(X, starts, labels, K, C)
        self.state = self.one_hot.copy(), self.pairs.copy(), np.zeros(self.n)

    def sweep(self, order: Array, move: bool) -> None:
        """Two Frank-Wolfe steps per sequence, towards its marginals."""
        self.kernels.sweep_likelihood(self.rows, order, self.gaps, self.W, self.A, self.C, move, *self.state)

    def expected(self) -> tuple[Array, Array]:
        return self.state[0], self.state[1].sum(0)

    def offset(self) -> float:
        return float(self.state[2].sum())


class ChainHingeBlocks(ChainBlocks):
    """State: a working set of at most M labellings for each sequence, ``[N, M]``, and their weights ``[n, M]``."""

    inner = 3

    def __init__(self, X: Any, starts: Array, labels: Array, K: int, C: float) -> None:
        super().__init__(X, starts, labels, K, C)
        self.costs = 1.0 - self.one_hot  # Δ is the number of wrong labels
        self.state = np.repeat(labels[:, None], 8, 1).astype(np.int16), np.repeat(np.eye(1, 8), self.n, 0)

    def sweep(self, order: Array, move: bool) -> None:
        """Pairwise steps; where a working set is full, all of them get twice the space."""
        self.kernels.sweep_hinge(self.rows, order, self.gaps, self.W, self.A, self.C, move, self.costs, self.state)
        paths, weight = self.state
        if weight.all(1).any():
            self.state = np.hstack([paths, paths]), np.hstack([weight, np.zeros_like(weight)])

    def expected(self) -> tuple[Array, Array]:
        mu, e = np.zeros_like(self.one_hot), np.zeros_like(self.pairs[0])
        self.kernels.expected_labels(self.rows, self.state, mu, e)
        return mu, e

    def offset(self) -> float:
        return float(np.vdot(self.costs, self.expected()[0]))
