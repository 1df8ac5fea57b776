"""The multi-label hinge: every label is on or off, independently or tied to others by a tree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.tensors import widened
from proxsvm.losses._forest import FORBIDDEN, Forest, ForestScores, forbid
from proxsvm.losses._hulls import Box, Hull
from proxsvm.losses._targets import binary_target
from proxsvm.losses._trees import trees
from proxsvm.losses.base import Atom, PiecewiseLinearLoss, Reduction, require
from proxsvm.losses.tree_hinge import TreeHinge


class MultiLabelHinge(TreeHinge):
    """ℓ(u; y) = max over ȳ in {0, 1}^L of score(ȳ) − score(y) + Δ(ȳ, y), with Δ the number of wrong labels.

        score(y) = Σ_l u_l y_l + Σ_l pairwise[l, y_parent(l), y_l]

    Without a tree the labels are independent, ℓ = Σ_l max(0, 1 − (2y_l − 1) u_l), the sum of L binary hinges.
    Scores: u ``[B, L]``; with a tree ``(u, pairwise)``, pairwise ``[L, 2, 2]`` or ``[B, L, 2, 2]`` indexed
    (parent off or on, label off or on), a root's entry not used. Target: ``[B, L]`` of 0 and 1, integer or bool.
    A score of −inf keeps a label off; −inf, +inf and NaN are treated as in :class:`~proxsvm.losses.ChainHinge`.

    Args:
        parents: the tree of labels, L integers, −1 at a root; None for independent labels.
        normalize: divide Δ by L.
        smooth: train with the marginals (the sigmoid, for independent labels) where that can raise the dual.
        reduction: as in torch, see :class:`~proxsvm.losses.PiecewiseLinearLoss`.

    >>> MultiLabelHinge()(torch.tensor([[2.0, 0.5, 0.5]]), torch.tensor([[1, 1, 0]]))    # 0 + 0.5 + 1.5
    tensor(2.)
    >>> together = torch.tensor([[0.0, 0.0], [0.0, 3.0]]).expand(2, 2, 2)               # 3 for both labels on
    >>> MultiLabelHinge([-1, 0]).decode((torch.tensor([[-1.0, -1.0]]), together))
    tensor([[1, 1]])
    """

    parents: Tensor | None

    def __init__(
        self,
        parents: Any = None,
        *,
        normalize: bool = False,
        smooth: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(normalize=normalize, smooth=smooth, reduction=reduction)
        self.register_buffer("parents", None if parents is None else torch.as_tensor(parents))

    def prepare(self, scores: Any, target: Any) -> tuple[Any, Any]:
        """Check everything; with a tree, labels become nodes with the two states off and on."""
        if isinstance(target, Forest):
            return scores, target  # already prepared
        if self.parents is not None:
            return super().prepare(scores, target)
        u = forbid(self._check_scores(scores)[0])
        target = self._check_target(u, target)
        return torch.where((u <= FORBIDDEN / 2) & (target == 1), -torch.inf, u), target

    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        u, pairwise = self._check_scores(scores)
        assert self.parents is not None
        labels = None if target is None else self._check_target(u, target)
        states = torch.stack([torch.zeros_like(u), u], 2)
        return trees(type(self).__name__, (states, pairwise), labels, self.parents.expand(*u.shape), None)

    def _check_scores(self, scores: Any) -> tuple[Tensor, ...]:
        """The scores (u,) or, with a tree, (u, pairwise); half precision becomes float32."""
        name = type(self).__name__
        if self.parents is not None and (not isinstance(scores, (tuple, list)) or len(scores) != 2):
            raise TypeError(f"{name} with a tree needs the scores (u, pairwise); got a {type(scores).__name__}")
        u, *pairwise = scores if self.parents is not None else (scores,)
        if not isinstance(u, Tensor) or u.dim() != 2 or u.numel() == 0:
            given = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(f"{name} got label scores of {given}; expected [B, L], and no tuple without a tree")
        B, L = u.shape
        if self.parents is not None and self.parents.shape != (L,):
            raise ValueError(f"{name} has a tree of {tuple(self.parents.shape)} labels, but the scores have {L}")
        if self.parents is not None and pairwise[0].shape not in ((L, 2, 2), (B, L, 2, 2)):
            raise ValueError(
                f"{name} got pairwise scores of shape {tuple(pairwise[0].shape)}; expected ({L}, 2, 2) or "
                f"({B}, {L}, 2, 2)"
            )
        return widened(u), *pairwise

    def _check_target(self, u: Tensor, target: Any) -> Tensor:
        name = type(self).__name__
        labels = binary_target(name, target)
        if target.shape != u.shape:
            raise ValueError(f"{name} got a target of shape {tuple(target.shape)}; expected {tuple(u.shape)}")
        require((target == 0) | (target == 1), f"{name} got a target that is not 0 or 1")
        return labels

    def decode(self, scores: Any, target: Any = None) -> Tensor:  # type: ignore[override]
        """The best labels ``[B, L]``: a prediction, or augmented with a target."""
        if self.parents is not None:
            prepared, forest = self._arrange(scores, None) if target is None else self.prepare(scores, target)
            return self._labels(prepared, forest, augmented=target is not None)[:, : scores[0].shape[1]]
        u = self._check_scores(scores)[0].detach()
        on: Tensor = (u if target is None else u + self._gain(u, self._check_target(u, target))) > 0
        return on.long()

    # Independent labels, in closed form.

    def _gain(self, u: Tensor, target: Tensor) -> Tensor:
        """How much Δ grows when a label is switched on, ``[B, L]``."""
        return (1 - 2 * target).to(u) / (u.shape[1] if self.normalize else 1)

    def oracle(self, scores: Any, target: Any) -> Atom:
        """The best labelling's atom; without a tree, label by label."""
        if self.parents is not None:
            return super().oracle(scores, target)
        return PiecewiseLinearLoss.oracle(self, scores, target)

    def smoothed(self, scores: Any, target: Any) -> Atom:
        """s = p − y with the marginals p, and the expected Δ."""
        if self.parents is not None:
            return super().smoothed(scores, target)
        s = scores.sigmoid() - target
        return Atom(s, (s * self._gain(scores, target)).sum(1))

    def hull(self, scores: Any, target: Any) -> Hull | None:
        """The tree's flow polytope, or a box: −y ≤ s ≤ 1 − y, c = ⟨gain, s⟩."""
        if self.parents is not None:
            return super().hull(scores, target)
        y = target.to(scores)
        return Box(-y, 1 - y, -self._gain(scores, target))
