"""The interface of every description of S(y)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import Atom


class Polytope(NamedTuple):
    """The hull of S(y) for a batch, in cvxpy's variables.

    ``s``: one expression per score tensor, ``[n, size]`` flattened within the sample; ``offset``: ``[n]``, affine or,
    for a loss with infinitely many atoms, concave: the largest c of each s, −ℓ*(s).
    """

    s: tuple[Any, ...]
    offset: Any
    constraints: list[Any]


class Hull(ABC):
    """The convex hull of S(y) for a batch: all dual points (s_i, c_i) of its samples."""

    @abstractmethod
    def express(self) -> Polytope:
        """The hull in cvxpy, for ``ExactQP``."""

    def best(self, v: Any) -> Atom | None:
        """argmax over (s, c) in the hull of ⟨s, v⟩ + c, the oracle; None where the hull has no formula for it."""
        return None

    def lift(self, s: Any) -> Tensor | None:
        """The largest c of each s of the hull, −ℓ*(s), ``[n]``; None where the hull has no formula for it."""
        return None


class ClosedHull(Hull):
    """A hull of one score tensor with a closed form, which the fast solvers use:

        nearest(v, h) = argmax over (s, c) in the hull of  ⟨s, v⟩ + c − (h/2) ‖s‖²

    As h → 0 it becomes the oracle's vertex, ``best(v)``.
    """

    @abstractmethod
    def best(self, v: Tensor) -> Atom:
        """The oracle's atom."""

    @abstractmethod
    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The atom with a quadratic around it; ``h`` > 0 broadcasts to the scores."""

    @abstractmethod
    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """``rows``, ``[k, *s.shape]``, projected onto the directions in which a nearest s moves within its face."""

    @abstractmethod
    def contains(self, s: Tensor, slack: float) -> bool:
        """Whether s, with its best c, is in the hull, up to a rounding error of ``slack``."""


def cvxpy() -> Any:
    """The package."""
    return load("cvxpy", extra="qp")


def flat(x: Tensor) -> Array:
    """A tensor ``[n, ...]`` as a float64 array ``[n, size]``."""
    return np.asarray(x.detach().reshape(len(x), -1).cpu().double().numpy())
