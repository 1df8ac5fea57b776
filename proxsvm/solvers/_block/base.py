"""What BlockFW iterates over: a dual point kept sample by sample, in one of two representations.

``gram.py`` has the Gram matrix of a network's scores, ``rows.py`` the rows of the features of a linear model. All of it
is float64 on the CPU (the weights keep the features' dtype), sample-major: scores and s are ``[n, M]``.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels import block_loops, jit, row_loops
from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import Atom, Scores, detached, like, parts
from proxsvm.losses.hulls import ClosedHull
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem

ROUNDS = 10  # pairwise steps per block step, where the hull has no closed form


@functools.cache
def kernels(compiled: bool) -> Any:
    """The loops of :mod:`proxsvm._kernels.block_loops`, compiled or interpreted."""
    return jit.compiled(block_loops, row_loops) if compiled else block_loops


class FlatAtom(NamedTuple):
    """An atom for each sample as arrays: ``s`` is ``[n, M]``, ``offset`` is ``[n]``."""

    s: Array
    offset: Array

    def b(self, v: Array) -> Array:
        """⟨s, v⟩ + c, ``[n]``."""
        value: Array = (self.s * v).sum(1) + self.offset
        return value


class Evaluation(NamedTuple):
    """D and the certified gap of the current point.

    ``gain``: what each sample can gain, ``[n]``, where the hull has a closed form; ``best``: the oracle's atom, where
    the oracle was called.
    """

    dual: float
    gap: float
    gain: Array | None = None
    best: FlatAtom | None = None


class Blocks(ABC):
    """A dual point, sample by sample, and a way to improve it sample by sample."""

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
        self.work = 0  # multiplications: of the sweeps so far or, before the first, of the first

    @abstractmethod
    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible atom for each sample."""

    @abstractmethod
    def evaluate(self, compiled: bool) -> Evaluation:
        """D and the certified gap."""

    @abstractmethod
    def sweep(self, compiled: bool, rng: np.random.Generator, now: Evaluation, enough: float) -> None:
        """Improve the blocks, in random order, from ``now``, the current evaluation; a gap of ``enough`` is enough."""

    @abstractmethod
    def combination(self) -> FlatAtom:
        """The current s and c."""

    @abstractmethod
    def point(self, now: Evaluation) -> DualPoint:
        """The current point with its delta, D and gap; ``now`` is its evaluation."""

    def oracle(self, v: Array) -> FlatAtom:
        """The best atom at the scores v."""
        loss, target = self.problem.origin.loss, self.problem.origin.target
        return flat_atom(loss.oracle(self._shaped(v, torch.double), target))

    def certified(self, gap: float, v: Array) -> float:
        """``gap``, evaluated at v; below 0 by more than rounding it is an error."""
        loss = self.problem.origin.loss
        if gap < 0 and loss.exact and gap < -1e-9 * float(self.p.sum()) * (1.0 + float(np.abs(v).max())):
            raise RuntimeError(
                f"the gap P − D is {gap:.3g}, below 0: either {type(loss).__name__}.oracle does not return the best "
                "atom (proxsvm.verification.check_loss tests it), or the start is not a point of the loss's hull"
            )
        return gap

    def atom(self) -> Atom:
        """The current point, in the form of the loss's atoms."""
        s, c = self.combination()
        return Atom(self._shaped(s, parts(self.like)[0].dtype), torch.as_tensor(c).to(self.problem.origin.coefficients))

    def _shaped(self, flat: Array, dtype: torch.dtype) -> Scores:
        device = parts(self.like)[0].device
        sizes = [u[0].numel() for u in parts(self.like)]
        pieces = torch.split(torch.as_tensor(flat).to(device, dtype), sizes, 1)
        return like(self.like, tuple(x.reshape(u.shape) for x, u in zip(pieces, parts(self.like), strict=True)))


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


def to_numpy(x: Tensor) -> Array:
    """A tensor as a float64 array."""
    array: Array = x.detach().cpu().double().numpy()
    return array


def flat(scores: Scores) -> Array:
    """Scores as ``[n, M]``."""
    arrays = [to_numpy(u).reshape(len(u), -1) for u in parts(scores)]
    return np.ascontiguousarray(arrays[0] if len(arrays) == 1 else np.hstack(arrays))


def flat_atom(atom: Atom) -> FlatAtom:
    """An atom as arrays."""
    return FlatAtom(flat(atom.s), to_numpy(atom.offset))
