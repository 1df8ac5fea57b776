"""What BlockFW sweeps over: the Gram matrix of a network's scores here, the rows of the features in ``rows.py``.

All of it is float64 on the CPU (the weights keep the features' dtype), sample-major: scores and s are ``[n, M]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from proxsvm.losses.base import Atom, Scores, like, parts
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.solvers.kernels import kernels
from proxsvm.solvers.row_loops import Array

ROUNDS = 10  # pairwise steps a visit of a block, where its hull has no closed form


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
        self.found = flat(best.s), to_numpy(best.offset)
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
        self.v0 = flat(problem.linearised_scores(problem.start()))
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
        self.hulls.begin(flat(atom.s), to_numpy(atom.offset))

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


def to_numpy(x: Tensor) -> Array:
    """A tensor as a float64 array."""
    array: Array = x.detach().cpu().double().numpy()
    return array


def flat(scores: Scores) -> Array:
    """Scores as ``[n, M]``."""
    arrays = [to_numpy(u).reshape(len(u), -1) for u in parts(scores)]
    return np.ascontiguousarray(arrays[0] if len(arrays) == 1 else np.hstack(arrays))
