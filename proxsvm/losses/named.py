"""Short names of the losses of chains, trees, binary images and labels that are on or off."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from proxsvm.losses.base import Reduction
from proxsvm.losses.crf import CRF
from proxsvm.losses.hulls import Box, Hull
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.structures import Chain, Grid, LabelTree, Tree, scipy_cut
from proxsvm.structures.combinatorial import Cut
from proxsvm.structures.label_tree import Labels

Negative = Literal["refuse", "project"]


class ChainHinge(StructuredHinge):
    """``StructuredHinge(Chain(), cost=cost, ...)``: max over sequences ȳ of score(ȳ) − score(y) + Δ(ȳ, y).

    Scores, targets, lengths, masks and scores of −inf: see :class:`~proxsvm.structures.Chain`. Options: see
    :class:`~proxsvm.losses.StructuredHinge`; Δ is the number of wrong labels, or the sum of ``cost``.

    >>> import torch
    >>> ChainHinge().decode((torch.tensor([[[2.0, 0.0], [0.0, 0.5]]]), torch.eye(2)))
    tensor([[0, 0]])
    """

    def __init__(self, cost: Tensor | None = None, **options: Any) -> None:
        super().__init__(Chain(), cost=cost, **options)


class ChainCRF(CRF):
    """``CRF(Chain())``: −log p(y), the likelihood of a sequence of labels.

    >>> import torch
    >>> unary, agree = torch.zeros(1, 2, 2), torch.eye(2) * 2.0**0.5
    >>> value = ChainCRF()((unary, agree), torch.tensor([[0, 0]]))          # p = e^√2 / (2 e^√2 + 2) = 0.402
    >>> torch.exp(-value)
    tensor(0.4022)
    >>> node, edge = ChainCRF().marginals((unary, agree))
    >>> edge[0, 0]
    tensor([[0.4022, 0.0978],
            [0.0978, 0.4022]])
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(Chain(), reduction=reduction)


class TreeHinge(StructuredHinge):
    """``StructuredHinge(Tree(), cost=cost, ...)``, for a tree given with each sample.

    Scores, targets, sizes and masks: see :class:`~proxsvm.structures.Tree`. Options: see
    :class:`~proxsvm.losses.StructuredHinge`; a chain is the tree with parents −1, 0, 1, …

    >>> import torch
    >>> unary = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]]])
    >>> star = torch.tensor([[-1, 0, 0]])                                       # node 0 is the parent of both others
    >>> TreeHinge()((unary, torch.eye(2)), (torch.tensor([[0, 0, 0]]), star))   # [1, 0, 1]: 3 + 2 + 1 + Δ = 2, y: 5
    tensor(3.)
    """

    def __init__(self, cost: Tensor | None = None, **options: Any) -> None:
        super().__init__(Tree(), cost=cost, **options)


class TreeCRF(CRF):
    """``CRF(Tree())``: −log p(y), the likelihood of a labelled tree."""

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(Tree(), reduction=reduction)


class GridHinge(StructuredHinge):
    """``StructuredHinge(Grid(...))``: max over binary images ȳ of score(ȳ) − score(y) + Δ(ȳ, y), by a minimum cut.

    Scores, targets, masks, ``negative`` and ``cut``: see :class:`~proxsvm.structures.Grid`. Δ is the number of wrong
    pixels; ``normalize`` divides it by their number.

    >>> import torch
    >>> unary = torch.tensor([[[2.0, -1.0], [2.0, 2.0]]])
    >>> GridHinge().decode((unary, torch.tensor(1.0), torch.tensor(1.0)))    # two agreements outweigh the -1
    tensor([[[1, 1],
             [1, 1]]])
    >>> GridHinge()((unary, torch.tensor(0.0), torch.tensor(0.0)), torch.tensor([[[1, 1], [1, 1]]]))
    tensor(2.)
    """

    def __init__(self, *, negative: Negative = "refuse", cut: Cut = scipy_cut, **options: Any) -> None:
        super().__init__(Grid(negative=negative, cut=cut), **options)


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
