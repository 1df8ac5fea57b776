"""A tree of labels, each of which is on or off."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import binary_target, require, widened
from proxsvm.structures.forest import Labelling
from proxsvm.structures.tree import Tree


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
        """Every label is a node with the two states off and on."""
        if not isinstance(scores, (tuple, list)) or len(scores) != 2:
            raise TypeError(f"{name} with a tree needs the scores (u, pairwise); got a {type(scores).__name__}")
        u, pairwise = scores
        check_label_scores(name, u)
        B, L = u.shape
        if self.parents.shape != (L,):
            raise ValueError(f"{name} has a tree of {tuple(self.parents.shape)} labels, but the scores have {L}")
        if pairwise.shape not in ((L, 2, 2), (B, L, 2, 2)):
            raise ValueError(
                f"{name} got pairwise scores of shape {tuple(pairwise.shape)}; expected ({L}, 2, 2) or ({B}, {L}, 2, 2)"
            )
        if self.parents.device != u.device:
            self.parents = self.parents.to(u.device)
        labels = torch.zeros(B, L, dtype=torch.long, device=u.device) if target is None else binary(name, u, target)
        states = torch.stack([torch.zeros_like(u), u], 2)
        return super().prepare(name, (states, pairwise), (labels, self.parents.expand(B, L)))


def check_label_scores(name: str, u: Any) -> Tensor:
    """Scores ``[B, L]``; half precision becomes float32."""
    if not isinstance(u, Tensor) or u.dim() != 2 or u.numel() == 0:
        given = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
        raise ValueError(f"{name} got label scores of {given}; expected [B, L], and no tuple without a tree")
    return widened(u)


def binary(name: str, u: Tensor, target: Any) -> Tensor:
    """A target of 0 and 1 of the scores' shape, as integers."""
    y = binary_target(name, target)
    if y.shape != u.shape:
        raise ValueError(f"{name} got a target of shape {tuple(y.shape)}; expected {tuple(u.shape)}")
    require((y == 0) | (y == 1), f"{name} got a target that is not 0 or 1")
    return y
