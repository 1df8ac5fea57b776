"""What BlockFW iterates over: a dual point kept sample by sample.

``gram.py`` works on the Gram matrix of a network's scores, ``rows.py`` on the rows of a linear model's features. All of
it is float64 on the CPU (the weights keep the features' dtype), sample-major: scores and s are ``[n, M]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch

from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import Atom, detached, parts
from proxsvm.losses.hulls import ClosedHull
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._arrays import flatten, to_numpy, unflatten


class FlatAtom(NamedTuple):
    """An atom for each sample as arrays: ``s`` is ``[n, M]``, ``offset`` is ``[n]``."""

    s: Array
    offset: Array


class Evaluation(NamedTuple):
    """D and the certified gap of the current point, and by how much each sample's best atom exceeds its own, [n]."""

    dual: float
    gap: float
    gain: Array


class BlockState(ABC):
    """Each sample's own part of the dual point, and its block step.

    ``overhead``: the time of a block step beyond its products with the features, in multiplications for each output.
    """

    overhead = 100.0

    @abstractmethod
    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible atom for each sample, without its rounding errors."""

    @abstractmethod
    def combination(self) -> FlatAtom:
        """The current s and c."""

    @abstractmethod
    def evaluate(self, v: Array) -> tuple[Array, Array]:
        """At the scores v, by how much the best atom exceeds the current one, and c + ½⟨s, v⟩, ``[n]`` both."""

    @abstractmethod
    def sweep(self, model: Any, order: Array) -> Array:
        """Block steps on a linear model; model and gains are defined by :mod:`proxsvm._kernels.block_loops`."""


class Blocks(ABC):
    """A dual point, sample by sample, and a way to improve it sample by sample."""

    state: BlockState
    exhausted = False  # whether further sweeps gain nothing
    v0: Array | None  # the scores of the start, [n, M]; None where they are 0
    mine = slice(None)  # the samples of the problem; the others are those of other ranks

    def __init__(self, problem: ProxProblem) -> None:
        self.problem = problem
        start = problem.start()
        assert start.dual is not None
        self.dual_of_start = float(start.dual)
        self.dual_of_zero = self.dual_of_start - float(start.lam)  # of (0, 0), −½‖r‖²
        self.like = problem.origin.scores
        self.p = to_numpy(problem.origin.coefficients)
        known = problem.origin.lower_bounds()
        self.bounds = np.zeros_like(self.p) if known is None else to_numpy(known)  # c of the start, [n]

    @abstractmethod
    def scores(self) -> Array:
        """v at the current point, ``[n, M]``."""

    @abstractmethod
    def sweep(self, rng: np.random.Generator, now: Evaluation, enough: float) -> None:
        """Improve the blocks, in random order, from ``now``, the current evaluation; a gap of ``enough`` is enough."""

    @abstractmethod
    def point(self, now: Evaluation) -> DualPoint:
        """The current point with its delta, D and gap; ``now`` is its evaluation."""

    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible atom for each sample."""
        self.state.begin(atom)

    def snapshot(self) -> FlatAtom:
        """A copy of the current point, to :meth:`begin` from."""
        s, c = self.state.combination()
        return FlatAtom(s.copy(), c)

    def evaluate(self) -> Evaluation:
        """D and the certified gap. With v = v₀ − G x and x = p·s, D is D(0, 0) + Σ p (c + ½⟨s, v₀ + v⟩)."""
        v = self.scores()
        gain, worth = self.state.evaluate(v)
        dual = self.dual_of_zero + float(self.p @ worth)
        if self.v0 is not None:
            dual += float((self.p * (self.state.combination().s * self.v0).sum(1)).sum()) / 2
        gap, loss = float(self.p @ gain), self.problem.origin.loss
        if gap < 0 and loss.exact and gap < -1e-9 * float(self.p.sum()) * (1.0 + float(np.abs(v).max())):
            raise RuntimeError(
                f"the gap P − D is {gap:.3g}, below 0: either {type(loss).__name__}.oracle does not return the best "
                "atom (proxsvm.verification.check_loss tests it), or the start is not a point of the loss's hull"
            )
        return Evaluation(dual, gap, gain)

    def oracle(self, v: Array) -> FlatAtom:
        """The best atom at the scores v."""
        loss, target = self.problem.origin.loss, self.problem.origin.target
        scores = torch.as_tensor(v).to(parts(self.like)[0].device)
        return flat_atom(loss.oracle(unflatten(scores, self.like), target))

    def atom(self) -> Atom:
        """The current point, in the form of the loss's atoms."""
        s, c = self.state.combination()
        s_ = torch.as_tensor(s[self.mine]).to(parts(self.like)[0])
        c_ = torch.as_tensor(c[self.mine]).to(self.problem.origin.coefficients)
        return Atom(unflatten(s_.detach(), self.like), c_)


def is_feasible(problem: ProxProblem, atom: Atom) -> bool | None:
    """Whether ``atom`` is a dual point of ``problem``; None where the loss's hull cannot decide."""
    origin = problem.origin
    if [s.shape for s in parts(atom.s)] != [u.shape for u in parts(origin.scores)]:
        return False
    hull = origin.loss.hull(detached(origin.scores), origin.target)
    if not isinstance(hull, ClosedHull):
        return None
    s = parts(atom.s)[0].to(parts(origin.scores)[0].device)
    return hull.contains(s, 100 * torch.finfo(s.dtype).eps)


def flat_atom(atom: Atom) -> FlatAtom:
    """An atom as arrays."""
    return FlatAtom(to_numpy(flatten(atom.s)), to_numpy(atom.offset))
