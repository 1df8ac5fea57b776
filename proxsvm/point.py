"""A point of the dual, as the two aggregates that matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from torch import Tensor

from proxsvm.losses.base import Atom


class Scaled(Sequence[Tensor]):
    """factor · tensors, multiplied only when read: a single step keeps no copy of the gradients."""

    def __init__(self, factor: Tensor, tensors: Sequence[Tensor]) -> None:
        if isinstance(tensors, Scaled):  # one product, not two
            self.factor: Tensor = factor * tensors.factor
            self.tensors: Sequence[Tensor] = tensors.tensors
        else:
            self.factor, self.tensors = factor, tensors

    def __len__(self) -> int:
        return len(self.tensors)

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        chosen = self.tensors[i]
        return self.factor * chosen.detach() if isinstance(chosen, Tensor) else Scaled(self.factor, chosen)


@dataclass(frozen=True)
class DualPoint:
    """A point of the dual: a convex combination of atoms for each sample, as its two aggregates.

    ``delta``: one tensor a parameter; ``lam``: a 0-dim tensor; ``gamma``: the mass moved away from the start,
    1 − Π(1 − γ_t); ``steps``: how many; ``dual``: D as tracked along the way; ``gap``: where the solver knows it;
    ``atom``: each sample's own combination (s_i, c_i), where the solver keeps it.
    """

    delta: Sequence[Tensor]
    lam: Tensor
    gamma: Tensor
    steps: int
    dual: Tensor | None = None
    gap: Tensor | None = None
    atom: Atom | None = None


def certified(point: DualPoint, gap: Tensor) -> DualPoint:
    """``point`` with its ``gap`` noted."""
    return replace(point, gap=gap)
