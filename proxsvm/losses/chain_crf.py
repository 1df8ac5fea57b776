"""The conditional random field over chains: the likelihood of a sequence of labels."""

from __future__ import annotations

from proxsvm.losses.base import Reduction
from proxsvm.losses.crf import CRF
from proxsvm.structures import Chain


class ChainCRF(CRF):
    """ℓ(u; y) = −log p(y) = log Σ_ȳ exp(score(ȳ)) − score(y): ``CRF(Chain())``.

        score(y) = Σ_t unary[t, y_t] + Σ_t pairwise[t, y_t, y_{t+1}] + start[y_1] + end[y_T]

    Scores, targets, lengths, masks and scores of −inf: see :class:`~proxsvm.structures.Chain`.

    Args:
        reduction: as in torch, over the sequences; see :class:`~proxsvm.losses.ConvexLoss`.

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
