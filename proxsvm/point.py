"""A point of the dual, as the two aggregates that matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import overload

from torch import Tensor

from proxsvm.losses.base import Atom


class Deferred(Sequence[Tensor]):
    """Tensors that are computed when the first of them is read.

    >>> import torch
    >>> Deferred(lambda: [torch.ones(())])[0]
    tensor(1.)
    """

    def __init__(self, make: Callable[[], Sequence[Tensor]]) -> None:
        self._make = make
        self._made: Sequence[Tensor] | None = None

    def __len__(self) -> int:
        return len(self._tensors())

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        return self._tensors()[i]

    def _tensors(self) -> Sequence[Tensor]:
        if self._made is None:
            self._made = self._make()
        return self._made


class Combination(Sequence[Tensor]):
    """Σ_k factor_k · tensors_k, formed only when it is read: a single step keeps no copy of the gradients.

    >>> import torch
    >>> Combination((2.0, [torch.tensor(3.0)]), (-1.0, [torch.tensor(1.0)]))[0]
    tensor(5.)
    """

    def __init__(self, *terms: tuple[float | Tensor, Sequence[Tensor]]) -> None:
        self.terms = terms

    def multiple_of(self, other: Sequence[Tensor]) -> float | Tensor | None:
        """c where this is c · other; None where it is not known to be."""
        if self is other:
            return 1.0
        (factor, tensors), *rest = self.terms
        inner = 1.0 if tensors is other else tensors.multiple_of(other) if isinstance(tensors, Combination) else None
        return None if rest or inner is None else factor * inner

    def __len__(self) -> int:
        return len(self.terms[0][1])

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        (factor, tensors), *rest = self.terms
        return sum((c * x[i].detach() for c, x in rest), start=factor * tensors[i].detach())


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

    def shrunk(self, factor: float | Tensor, floor: float | Tensor = 0.0) -> DualPoint:
        """The point at ``factor`` in [0, 1] of the way from the start (0, ``floor``): feasible, because that is."""
        lam = floor + factor * (self.lam - floor)
        return DualPoint(Combination((factor, self.delta)), lam, factor * self.gamma, self.steps)


def certified(point: DualPoint, gap: Tensor) -> DualPoint:
    """``point`` with its ``gap`` noted."""
    return replace(point, gap=gap)
