"""The structured hinge over chains: sequences with scores for labels and for transitions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.structures import Chain


class ChainHinge(StructuredHinge):
    """ℓ(u; y) = max over sequences ȳ of score(ȳ) − score(y) + Δ(ȳ, y): ``StructuredHinge(Chain())``.

        score(y) = Σ_t unary[t, y_t] + Σ_t pairwise[t, y_t, y_{t+1}] + start[y_1] + end[y_T]

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
