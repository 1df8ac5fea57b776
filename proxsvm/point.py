"""A point of the dual, as the two aggregates that matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

from torch import Tensor

from proxsvm._numbers import Number, minus, plus, times
from proxsvm.losses.base import Atom


class Products(NamedTuple):
    """⟨r, delta⟩ and ‖delta‖² in the inner product of the dual, and D(0, 0) = −½‖r‖²."""

    r_delta: Number
    delta_delta: Number
    start: Number

    def scaled(self, factor: Number) -> Products:
        """Those of factor · delta.

        >>> Products(1.0, 2.0, -3.0).scaled(10.0)
        Products(r_delta=10.0, delta_delta=200.0, start=-3.0)
        """
        return Products(times(factor, self.r_delta), times(factor * factor, self.delta_delta), self.start)


class Scaled(Sequence[Tensor]):
    """factor · tensors, multiplied only when read: a single step keeps no copy of the gradients."""

    def __init__(self, factor: Number, tensors: Sequence[Tensor]) -> None:
        inner, self.tensors = factored(tensors)
        self.factor = times(factor, inner)

    def __len__(self) -> int:
        return len(self.tensors)

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        chosen = self.tensors[i]
        return self.factor * chosen.detach() if isinstance(chosen, Tensor) else Scaled(self.factor, chosen)


def factored(delta: Sequence[Tensor]) -> tuple[Number, Sequence[Tensor]]:
    """(factor, tensors) with delta = factor · tensors, without a multiplication."""
    return (delta.factor, delta.tensors) if isinstance(delta, Scaled) else (1.0, delta)


@dataclass(frozen=True)
class DualPoint:
    """A point of the dual: a convex combination of atoms for each sample, as its two aggregates.

    ``delta``: one tensor per parameter; ``lam``: a scalar; ``gamma``: the mass moved away from the start,
    1 − Π(1 − γ_t); ``steps``: how many; ``dual``: D as tracked along the way; ``gap``: where the solver knows it;
    ``atom``: each sample's own combination (s_i, c_i), where the solver keeps it; ``products``: the inner products of
    delta, where they are known. Scalars are 0-dim tensors or, in a training step on the CPU, Python floats.
    """

    delta: Sequence[Tensor]
    lam: Number
    gamma: Number
    steps: int
    dual: Number | None = None
    gap: Number | None = None
    atom: Atom | None = None
    products: Products | None = None

    def shrunk(self, factor: Number, floor: Number = 0.0) -> DualPoint:
        """The point at ``factor`` in [0, 1] of the way from the start (0, ``floor``): feasible, because that is."""
        known = None if self.products is None else self.products.scaled(factor)
        lam, gamma = plus(floor, factor * minus(self.lam, floor)), times(factor, self.gamma)
        return DualPoint(Scaled(factor, self.delta), lam, gamma, self.steps, products=known)


def certified(point: DualPoint, gap: Number) -> DualPoint:
    """``point`` with its ``gap`` noted."""
    return replace(point, gap=gap)
