"""A point of the dual, as the two aggregates that matter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from proxsvm.losses.base import Atom


class Deferred(Sequence[Tensor]):
    """Tensors that are computed when the first of them is read: a single step keeps no copy of the gradients.

    >>> import torch
    >>> Deferred(lambda: [torch.ones(())])[0]
    tensor(1.)
    """

    def __init__(self, make: Callable[[], Sequence[Tensor]]) -> None:
        self._make = make

    @functools.cached_property
    def _made(self) -> Sequence[Tensor]:
        return self._make()

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, i: Any) -> Any:
        return self._made[i]


def scaled(factor: float | Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """factor · tensors, when they are read."""
    return Deferred(lambda: [factor * x.detach() for x in tensors])


@dataclass(frozen=True)
class DualPoint:
    """A point of the dual: a convex combination of atoms for each sample, as its two aggregates.

    ``delta``: one tensor per parameter; ``lam``: a scalar; ``gamma``: the mass moved away from the start,
    1 − Π(1 − γ_t); ``steps``: how many; ``dual``: D as tracked along the way; ``gap``: where the solver knows it;
    ``atom``: each sample's own combination (s_i, c_i), where the solver keeps it. Scalars are 0-dim tensors.
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
