"""The structured hinge over trees: every sample has its own tree."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.structures import Tree


class TreeHinge(StructuredHinge):
    """ℓ(u; y) = max over labellings ȳ of score(ȳ) − score(y) + Δ(ȳ, y), for a tree given with each sample.

        score(y) = Σ_v unary[v, y_v] + Σ_v pairwise[v, y_parent(v), y_v]

    ``StructuredHinge(Tree())``. Scores, targets, sizes and masks: see :class:`~proxsvm.structures.Tree`. Options: see
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
