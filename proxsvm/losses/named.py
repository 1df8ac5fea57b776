"""Short names of the losses of chains, trees and binary images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from proxsvm.losses.base import Reduction
from proxsvm.losses.crf import CRF
from proxsvm.losses.hulls import Array
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.structures import Chain, Grid, Tree, scipy_cut

Cut = Callable[[Array, Array, Array], Array]
Negative = Literal["refuse", "project"]


class ChainHinge(StructuredHinge):
    """``StructuredHinge(Chain(), cost=cost, ...)``: max over sequences ȳ of score(ȳ) − score(y) + Δ(ȳ, y).

    Scores, targets, lengths, masks and scores of −inf: see :class:`~proxsvm.structures.Chain`. Options: see
    :class:`~proxsvm.losses.StructuredHinge`; Δ is the number of wrong labels, or the sum of ``cost``.

    >>> import torch
    >>> unary = torch.tensor([[[2.0, 0.0], [0.0, 0.5]]])
    >>> agree = torch.eye(2)
    >>> ChainHinge()((unary, agree), torch.tensor([[0, 0]]))     # the best is [0, 1]: 2 + 0.5 + Δ = 1 against 3
    tensor(0.5000)
    >>> ChainHinge().decode((unary, agree))
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
    >>> star = torch.tensor([[-1, 0, 0]])                         # node 0 is the parent of both others
    >>> TreeHinge().decode((unary, torch.eye(2)), parents=star)   # either root agrees with one child
    tensor([[0, 0, 1]])
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
