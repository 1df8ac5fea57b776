"""The conditional random field over trees: the likelihood of a labelled tree."""

from __future__ import annotations

from proxsvm.losses.base import Reduction
from proxsvm.losses.crf import CRF
from proxsvm.structures import Tree


class TreeCRF(CRF):
    """ℓ(u; y) = −log p(y) = log Σ_ȳ exp(score(ȳ)) − score(y), for a tree given with each sample: ``CRF(Tree())``.

        score(y) = Σ_v unary[v, y_v] + Σ_v pairwise[v, y_parent(v), y_v]

    Scores, targets, sizes and masks: see :class:`~proxsvm.structures.Tree`.

    Args:
        reduction: as in torch, over the trees; see :class:`~proxsvm.losses.ConvexLoss`.

    >>> import torch
    >>> star = torch.tensor([[-1, 0, 0]])                         # node 0 is the parent of both others
    >>> scores = torch.zeros(1, 3, 2), torch.zeros(2, 2)
    >>> value = TreeCRF()(scores, (torch.tensor([[0, 0, 1]]), star))        # one of eight
    >>> torch.exp(-value)
    tensor(0.1250)
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(Tree(), reduction=reduction)
