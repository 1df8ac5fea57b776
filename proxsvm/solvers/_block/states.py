"""The block steps: exact on the hulls that have one, and over the atoms found so far on any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from proxsvm._kernels import block_loops as loops
from proxsvm._kernels.tensors import Array
from proxsvm.losses.hulls import Box, EntropySimplex, Hull, Rivals, Simplex
from proxsvm.solvers._arrays import to_numpy
from proxsvm.solvers._block.base import BlockState, FlatAtom

ROUNDS = 10  # pairwise steps per block step, where the hull has no closed form
ATOMS = 16  # per sample


class ExactState(BlockState):
    """s of each sample, in a hull with an exact block step; ``hull`` is what the compiled loops know of it."""

    gains: Callable[..., None]  # (v, hull, s, gain, worth): see BlockState.evaluate
    steps: Callable[..., Array]  # (order, model, hull, s): see BlockState.sweep

    def __init__(self, s: Array, *hull: Any) -> None:
        self.s, self.hull, self.gain, self.worth = s, hull, np.zeros(len(s)), np.zeros(len(s))

    def evaluate(self, v: Array) -> tuple[Array, Array]:
        type(self).gains(v, self.hull, self.s, self.gain, self.worth)
        return self.gain, self.worth

    def sweep(self, model: Any, order: Array) -> Array:
        return type(self).steps(order, model, self.hull, self.s)


class SimplexState(ExactState):
    """s = α − e_y; the classes that are not ``live`` cannot gain weight before the next evaluation."""

    gains, steps = loops.simplex_gains, loops.simplex_sweep

    def __init__(self, hull: Simplex) -> None:
        self.target, self.cost = hull.target.cpu().numpy(), to_numpy(hull.cost)
        n, K = self.cost.shape
        live, lives = np.zeros((n, K), np.int32), np.zeros(n, np.int32)
        super().__init__(np.zeros((n, K)), self.target, self.cost, live, lives)

    def begin(self, atom: FlatAtom) -> None:
        rows = np.arange(len(self.s))
        rest = np.maximum(atom.s, 0.0)
        rest[rows, self.target] = 0.0
        moved = rest.sum(1)
        self.s = rest / np.maximum(moved, 1.0)[:, None]
        self.s[rows, self.target] = -np.minimum(moved, 1.0)

    def combination(self) -> FlatAtom:
        return FlatAtom(self.s, (self.s * self.cost).sum(1))  # ⟨cost, s⟩: the target's own cost is 0


class RivalState(ExactState):
    """s = α − σ e_y with 0 ≤ α ≤ 1 and σ = Σ_j α_j."""

    gains, steps = loops.rival_gains, loops.rival_sweep

    def __init__(self, hull: Rivals) -> None:
        self.target, self.cost = hull.target.cpu().numpy(), to_numpy(hull.cost)
        super().__init__(np.zeros(self.cost.shape), self.target, self.cost)

    def begin(self, atom: FlatAtom) -> None:
        rows = np.arange(len(self.s))
        self.s = np.clip(atom.s, 0.0, 1.0)
        self.s[rows, self.target] = 0.0
        self.s[rows, self.target] = -self.s.sum(1)

    def combination(self) -> FlatAtom:
        return FlatAtom(self.s, (self.s * self.cost).sum(1))  # the target's own cost is 0


class BoxState(ExactState):
    """low ≤ s ≤ high, c = −⟨s, center⟩ − band ‖s‖₁ − (ridge/2) ‖s‖²."""

    gains, steps = loops.box_gains, loops.box_sweep

    def __init__(self, hull: Box) -> None:
        low, high, center = (to_numpy(x).reshape(len(x), -1) for x in (hull.low, hull.high, hull.center))
        super().__init__(np.zeros(center.shape), low, high, center, float(hull.band), float(hull.ridge))

    def begin(self, atom: FlatAtom) -> None:
        self.s = np.clip(atom.s, *self.hull[:2])

    def combination(self) -> FlatAtom:
        _, _, center, band, ridge = self.hull
        return FlatAtom(self.s, -(self.s * (center + ridge / 2 * self.s) + band * np.abs(self.s)).sum(1))


class EntropyState(ExactState):
    """α of each sample in the place of s = m α − q; c = m · entropy(α)."""

    overhead = 500.0  # exponentials and logarithms
    steps = loops.entropy_sweep

    def __init__(self, hull: EntropySimplex) -> None:
        self.q = to_numpy(hull.q)
        self.mass = self.q.sum(1)
        super().__init__(np.zeros_like(self.q), self.mass)
        self.begin(FlatAtom(self.s, self.mass))

    def begin(self, atom: FlatAtom) -> None:
        alpha = np.maximum(atom.s + self.q, 0.0)
        total = alpha.sum(1, keepdims=True)
        even = np.full_like(alpha, 1 / alpha.shape[1])  # for a sample without weight
        self.s = np.divide(alpha, total, out=even, where=total > 0)

    def combination(self) -> FlatAtom:
        entropy = torch.special.entr(torch.as_tensor(self.s)).numpy() @ np.ones(self.s.shape[1])
        return FlatAtom(self.mass[:, None] * self.s - self.q, self.mass * entropy)

    def evaluate(self, v: Array) -> tuple[Array, Array]:
        """See :meth:`BlockState.evaluate`; the gain is the divergence of α from the softmax."""
        s, c = self.combination()
        logs = torch.as_tensor(v).log_softmax(1).numpy()  # faster than a loop
        return -self.mass * np.einsum("nk,nk->n", self.s, logs) - c, c + np.einsum("nk,nk->n", s, v) / 2


class AtomState(BlockState):
    """For each sample some atoms that the oracle has found, and their weights: pairwise steps over these.

    ``A`` is [n, T, M], ``c`` and ``a`` are [n, T].
    """

    def __init__(self, bounds: Array, M: int, oracle: Callable[[Array], FlatAtom]) -> None:
        n, self.oracle = len(bounds), oracle
        self.A, self.a = np.zeros((n, ATOMS, M)), np.repeat(np.eye(1, ATOMS), n, 0)
        self.c = np.repeat(bounds[:, None], ATOMS, 1)  # all are (0, f) at first, which every hull contains

    def add(self, atom: FlatAtom) -> None:
        """Replace the atom with the least weight, which the next one absorbs, unless the new one is known."""
        known = ((atom.s[:, None] == self.A).all(2) & (self.c == atom.offset[:, None])).any(1)
        rows = np.flatnonzero(~known)
        last, next_ = np.argsort(self.a[rows], 1)[:, :2].T
        weight, total = self.a[rows, last], self.a[rows, last] + self.a[rows, next_]
        share = np.divide(weight, total, out=np.zeros_like(total), where=total > 0)
        self.A[rows, next_] += share[:, None] * (self.A[rows, last] - self.A[rows, next_])
        self.c[rows, next_] += share * (self.c[rows, last] - self.c[rows, next_])
        self.a[rows, next_] = total
        self.A[rows, last], self.c[rows, last], self.a[rows, last] = atom.s[rows], atom.offset[rows], 0.0

    def begin(self, atom: FlatAtom) -> None:
        """Put all the weight on one feasible point."""
        self.A[:, 0], self.c[:, 0] = atom
        self.a[:] = np.eye(1, ATOMS)

    def combination(self) -> FlatAtom:
        return FlatAtom(np.einsum("nt,ntm->nm", self.a, self.A), (self.a * self.c).sum(1))

    def evaluate(self, v: Array) -> tuple[Array, Array]:
        """See :meth:`BlockState.evaluate`; adds the oracle's new atom, without weight."""
        best, (s, c) = self.oracle(v), self.combination()
        self.add(best)
        return ((best.s - s) * v).sum(1) + best.offset - c, c + (s * v).sum(1) / 2

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """The arguments of the loops."""
        return self.A, self.c, self.a

    def sweep(self, model: Any, order: Array) -> Array:
        """One block step per sample: it takes a new atom to gain more."""
        loops.atom_sweep(order, ROUNDS, model, *self.arrays)
        return np.zeros(len(order))


def exact_state(hull: Hull | None) -> BlockState | None:
    """The state with an exact block step on this hull, if there is one."""
    if isinstance(hull, Rivals) and hull.k is not None:
        return None
    kinds: Any = {Simplex: SimplexState, Rivals: RivalState, Box: BoxState, EntropySimplex: EntropyState}
    return next((state(hull) for kind, state in kinds.items() if isinstance(hull, kind)), None)
