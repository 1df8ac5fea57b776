"""Labels that are on or off: independent, or tied to each other by a tree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import integer_target, require
from proxsvm.structures._checks import check_pairwise, check_parts, check_tuple
from proxsvm.structures.base import Structure
from proxsvm.structures.forest import Labelling
from proxsvm.structures.semirings import Reduce
from proxsvm.structures.tree import Tree


class Labels(Structure):
    """score(y) = Σ_l u_l y_l over y in {0, 1}^L: scores ``[B, L]``, target ``[B, L]`` of 0 and 1, integer or bool."""

    def prepare(self, name: str, scores: Any, target: Any) -> tuple[Tensor, Tensor]:
        return _checked(name, scores, target)

    def features(self, target: Tensor, scores: Tensor) -> Tensor:
        return target.to(scores)

    def cost(self, target: Tensor, scores: Tensor, table: Tensor | None = None) -> Tensor:
        super().cost(target, scores, table)
        return (1 - 2 * target).to(scores)

    def size(self, target: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores[:, 0], scores.shape[1])

    def total(self, scores: Tensor, target: Tensor, reduce: Reduce) -> Tensor:
        return reduce(torch.stack([torch.zeros_like(scores), scores], 2), 2).sum(1)

    def excess(self, scores: Tensor, target: Tensor, reduce: Reduce) -> Tensor:
        """Switching a label changes the score by ±u_l, so large scores do not cancel."""
        _, truth = self.relative(scores, target)
        return self.total((1 - 2 * target) * scores, target, reduce) - torch.where(truth.isfinite(), 0.0, truth)

    def labels(self, phi: Tensor, target: Tensor) -> Tensor:
        return phi.long()


class LabelTree(Tree):
    """score(y) = Σ_l u_l y_l + Σ_l pairwise[l, y_parent(l), y_l] over y in {0, 1}^L.

    Scores: ``(u, pairwise)`` with u ``[B, L]`` and pairwise ``[L, 2, 2]`` or ``[B, L, 2, 2]``, indexed (parent off or
    on, label off or on), a root's entry not used. Target: ``[B, L]`` of 0 and 1, integer or bool.

    Args:
        parents: L integers, −1 at a root.

    >>> from proxsvm.losses import CRF
    >>> value = CRF(LabelTree([-1, 0]))((torch.zeros(1, 2), torch.zeros(2, 2, 2)), torch.tensor([[1, 1]]))
    >>> torch.exp(-value)                                        # one of four
    tensor(0.2500)
    """

    def __init__(self, parents: Any) -> None:
        self.parents = torch.as_tensor(parents)

    def prepare(self, name: str, scores: Any, target: Any) -> tuple[Any, Labelling]:  # type: ignore[override]
        check_tuple(name, scores, "(u, pairwise)", 2, 2)
        (u, labels), pairwise = _checked(name, scores[0], target), scores[1]
        B, L = u.shape
        if self.parents.shape != (L,):
            raise ValueError(f"{name} has a tree of {tuple(self.parents.shape)} labels, but the scores have {L}")
        check_pairwise(name, pairwise, (L, 2, 2), (B, L, 2, 2))
        self.parents = self.parents.to(u.device)  # copied once
        states = torch.stack([torch.zeros_like(u), u], 2)
        return super().prepare(name, (states, pairwise), (labels, self.parents.expand(B, L)))


def _checked(name: str, u: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Scores ``[B, L]`` and a target of 0 and 1; 0 if None."""
    u = check_parts(name, u, "[B, L]", "label scores", ", and no tuple without a tree")
    y = torch.zeros_like(u, dtype=torch.long) if target is None else integer_target(name, target, u.shape)
    require((y == 0) | (y == 1), f"{name} got a target that is not 0 or 1")
    return u, y
