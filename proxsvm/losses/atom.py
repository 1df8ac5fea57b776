"""An atom: one affine piece of a loss for each sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import Scores, inner, like, parts


@dataclass(frozen=True)
class Atom:
    """A piece of the loss for each sample: the affine function u ↦ ⟨s, u⟩ + c.

    ``s`` has the structure and shapes of the scores (first dimension: the n samples), ``offset`` is c, ``[n]``.
    ``value``, ``[n]``, is ⟨s, u⟩ + c at the scores where the oracle found the atom, if it was computed directly: at
    large scores ⟨s, u⟩ and c cancel.

    >>> atom = Atom(s=torch.tensor([[1.0, -1.0]]), offset=torch.tensor([1.0]))
    >>> atom.b(torch.tensor([[0.5, 2.0]]))
    tensor([-0.5000])
    """

    s: Scores
    offset: Tensor
    value: Tensor | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Any]:
        """s, c = atom."""
        return iter((self.s, self.offset))

    def b(self, scores: Scores) -> Tensor:
        """The atom's value at each sample, b = ⟨s, u⟩ + c, ``[n]``."""
        return self.offset + inner(self.s, scores)

    def value_at(self, scores: Scores) -> Tensor:
        """b at the scores where the oracle found this atom, ``[n]``."""
        return self.b(scores) if self.value is None else self.value

    def about(self, scores: Tensor, reference: Tensor) -> Atom:
        """With its value at ``scores`` as ⟨s, u − reference⟩ + c, which does not cancel; ⟨s, reference⟩ must be 0.

        A reference of −∞, the score of a true class that is masked, makes the value very large and not NaN.
        """
        finite = reference.clamp(min=torch.finfo(scores.dtype).min / 2)
        return replace(self, value=self.b(scores - finite))

    def at(self, scores: Scores) -> Tensor:
        """b as a function of the scores where the oracle found this atom; its gradient is s."""
        b = self.b(scores)
        return b if self.value is None else self.value + (b - b.detach()).nan_to_num()  # ∞ − ∞, where b is infinite

    def where(self, chosen: Tensor, other: Atom) -> Atom:
        """This atom for the samples that are ``chosen`` (bool, ``[n]``), ``other`` for the rest."""

        def mix(a: Tensor, b: Tensor) -> Tensor:
            return torch.where(chosen.reshape(-1, *[1] * (a.dim() - 1)), a, b)

        mixed = tuple(mix(a, b) for a, b in zip(parts(self.s), parts(other.s), strict=True))
        value = None if self.value is None or other.value is None else mix(self.value, other.value)
        return Atom(like(self.s, mixed), mix(self.offset, other.offset), value)
