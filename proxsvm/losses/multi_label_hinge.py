"""The multi-label hinge: every label is on or off, independently or tied to others by a tree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN
from proxsvm.losses.base import Atom, PiecewiseLinearLoss
from proxsvm.losses.hulls import Box, Hull
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.structures import LabelTree
from proxsvm.structures.label_tree import binary, check_label_scores


class MultiLabelHinge(StructuredHinge):
    """ℓ(u; y) = max over ȳ in {0, 1}^L of score(ȳ) − score(y) + Δ(ȳ, y), with Δ the number of wrong labels.

        score(y) = Σ_l u_l y_l + Σ_l pairwise[l, y_parent(l), y_l]

    Without a tree the labels are independent, ℓ = Σ_l max(0, 1 − (2y_l − 1) u_l), the sum of L binary hinges.
    Scores: u ``[B, L]``; with a tree ``(u, pairwise)``, see :class:`~proxsvm.structures.LabelTree`. Target: 0 and 1,
    ``[B, L]``, integer or bool. A score of −inf keeps a label off; −inf, +inf and NaN are treated as in
    :class:`~proxsvm.structures.Chain`.

    Args:
        parents: the tree of labels, L integers, −1 at a root; None for independent labels.
        options: ``normalize`` (divide Δ by L), ``smooth`` (by the marginals, or the sigmoid) and ``reduction``, as in
            :class:`~proxsvm.losses.StructuredHinge`.

    >>> MultiLabelHinge()(torch.tensor([[2.0, 0.5, 0.5]]), torch.tensor([[1, 1, 0]]))    # 0 + 0.5 + 1.5
    tensor(2.)
    >>> together = torch.tensor([[0.0, 0.0], [0.0, 3.0]]).expand(2, 2, 2)               # 3 for both labels on
    >>> MultiLabelHinge([-1, 0]).decode((torch.tensor([[-1.0, -1.0]]), together))
    tensor([[1, 1]])
    """

    def __init__(self, parents: Any = None, **options: Any) -> None:
        super().__init__(None if parents is None else LabelTree(parents), **options)

    def prepare(self, scores: Any, target: Any) -> tuple[Any, Any]:
        """Check everything; with a tree, labels become nodes with the two states off and on."""
        if self.structure is not None:
            return super().prepare(scores, target)
        name = type(self).__name__
        u = check_label_scores(name, scores)
        y = binary(name, u, target)
        return torch.where((u <= FORBIDDEN / 2) & (y == 1), -torch.inf, u.clamp(min=FORBIDDEN)), y

    def decode(self, scores: Any, target: Any = None) -> Tensor:  # type: ignore[override]
        """The best labels ``[B, L]``: a prediction, or augmented with a target."""
        if self.structure is not None:
            labels: Tensor = super().decode(scores, target)
            return labels
        u = check_label_scores(type(self).__name__, scores).detach()
        on: Tensor = (u if target is None else u + self._gain(u, binary(type(self).__name__, u, target))) > 0
        return on.long()

    # Independent labels, in closed form.

    def _gain(self, u: Tensor, target: Tensor) -> Tensor:
        """How much Δ grows when a label is switched on, ``[B, L]``."""
        return (1 - 2 * target).to(u) / (u.shape[1] if self.normalize else 1)

    def oracle(self, scores: Any, target: Any) -> Atom:
        """The best labelling's atom; without a tree, label by label."""
        if self.structure is not None:
            return super().oracle(scores, target)
        return PiecewiseLinearLoss.oracle(self, scores, target)

    def smoothed(self, scores: Any, target: Any) -> Atom:
        """s = p − y with the marginals p, and the expected Δ."""
        if self.structure is not None:
            return super().smoothed(scores, target)
        s = scores.sigmoid() - target
        return Atom(s, (s * self._gain(scores, target)).sum(1))

    def hull(self, scores: Any, target: Any) -> Hull | None:
        """The tree's flow polytope, or a box: −y ≤ s ≤ 1 − y, c = ⟨gain, s⟩."""
        if self.structure is not None:
            return super().hull(scores, target)
        y = target.to(scores)
        return Box(-y, 1 - y, -self._gain(scores, target))
