"""The multi-label hinge: every label is on or off, independently or tied to others by a tree."""

from __future__ import annotations

from typing import Any

from proxsvm.losses.hulls import Box, Hull
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.structures.label_tree import Labels, LabelTree


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

    >>> import torch
    >>> MultiLabelHinge()(torch.tensor([[2.0, 0.5, 0.5]]), torch.tensor([[1, 1, 0]]))    # 0 + 0.5 + 1.5
    tensor(2.)
    >>> together = torch.tensor([[0.0, 0.0], [0.0, 3.0]]).expand(2, 2, 2)               # 3 for both labels on
    >>> MultiLabelHinge([-1, 0]).decode((torch.tensor([[-1.0, -1.0]]), together))
    tensor([[1, 1]])
    """

    def __init__(self, parents: Any = None, **options: Any) -> None:
        super().__init__(Labels() if parents is None else LabelTree(parents), **options)

    def hull(self, scores: Any, target: Any) -> Hull | None:
        """The tree's flow polytope; for independent labels a box, −y ≤ s ≤ 1 − y with c = ⟨cost, s⟩."""
        if not isinstance(self.structure, Labels):
            return super().hull(scores, target)
        y = target.to(scores)
        return Box(-y, 1 - y, -self._part_costs(target, scores))
