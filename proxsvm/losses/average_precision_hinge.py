"""The average-precision hinge: a convex loss of rankings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import inner, known
from proxsvm.losses._targets import BinaryLoss
from proxsvm.losses.base import Atom


class AveragePrecisionHinge(BinaryLoss):
    """ℓ(u; y) = max over rankings R of 1 − AP(R) + (2/|P||N|) Σ (u_j − u_i) over the pairs that R ranks wrongly.

    A pair (i, j) of a positive i in P and a negative j in N is ranked wrongly where j is above i. The sum is
    score(R) − score(y) with score(R) = (1/|P||N|) Σ_ij ± (u_i − u_j), so ℓ is the structured hinge of rankings: an
    upper bound on 1 − AP, with AP the average precision of the order of the scores.

    The worst ranking is found by sorting (Yue, Finley, Radlinski, Joachims: "A support vector method for optimizing
    average precision", SIGIR 2007; Mohapatra, Rolínek, Jawahar, Kolmogorov, Kumar: "Efficient optimization for
    rank-based loss functions", CVPR 2018): it interleaves the sorted positives with the sorted negatives, and each
    negative chooses its position independently. Cost per sample: O(|P||N|) time, O(|P| + |N|) memory.

    Scores: ``[n, m]``, the m items that each of n samples ranks. Target: ``[n, m]`` of 1 (relevant) and 0, integer or
    bool; items of ``ignore_index`` are left out. A sample without positives or without negatives has the loss 0.
    To rank the samples of a batch for each label of a multi-label problem, pass ``scores.T`` and ``target.T``.
    NaN or infinite scores make the loss NaN or infinite, and the optimizer skips the step.

    >>> AveragePrecisionHinge()(torch.tensor([[1.0, 1.0]]), torch.tensor([[1, 0]]))      # the wrong order: AP = 1/2
    tensor(0.5000)
    >>> AveragePrecisionHinge()(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([[1, 0, 0]]))   # 1 - 1/2 - 2/2 · 0.5
    tensor(0.)
    >>> AveragePrecisionHinge()(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[1, 0, 0]]))   # 1 - 1/3 + 2/2 · 1
    tensor(1.6667)
    """

    def prepare(self, scores: Any, target: Any) -> tuple[Tensor, Tensor]:
        scores, y = super().prepare(scores, target)
        if scores.dim() != 2:
            given = f"{type(self).__name__} got scores of shape {tuple(scores.shape)}"
            raise ValueError(f"{given}; expected [n, m]: m items per sample")
        return scores, y

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """Put each negative at the position among the positives that costs the most."""
        k = torch.arange(1, scores.shape[1] + 1, device=scores.device)
        P, N = ((target == label).sum(1, keepdim=True) for label in (1, 0))
        pair = 2 / (P * N).clamp(min=1).to(scores)
        u_pos, positives = torch.where(target == 1, scores, -torch.inf).sort(1, descending=True)
        u_neg, negatives = torch.where(target == 0, scores, -torch.inf).sort(1, descending=True)
        first = self._highest_overtaken(u_pos, u_neg, pair, P)
        count = first.new_zeros(len(first), len(k) + 2).scatter_add_(1, first, torch.ones_like(first))
        above = count.cumsum(1)[:, 1:-1]  # how many negatives are above the k-th positive
        precision = torch.where(k <= P, k / (k + above).to(scores), 0.0)
        s = torch.zeros_like(scores).scatter_add_(1, negatives, pair * (P + 1 - first))
        s = s.scatter_add_(1, positives, torch.where(k <= P, -pair * above, 0.0))
        c = torch.where(P > 0, 1 - precision.sum(1, keepdim=True) / P.clamp(min=1), 0.0)[:, 0]
        best = u_pos[:, :1].clamp(min=torch.finfo(scores.dtype).min / 2)  # −∞ where there is no positive
        return Atom(s, c, inner(s, scores - best) + c)  # every wrong pair adds 1 and −1: s sums to 0

    def _highest_overtaken(self, u_pos: Tensor, u_neg: Tensor, pair: Tensor, P: Tensor) -> Tensor:
        """The highest positive that the j-th negative is above, in 1 … P, or P + 1 for none, ``[n, m]``.

        Overtaking the positive k adds (k/(k + j − 1) − k/(k + j))/P to 1 − AP: the negatives 1 … j − 1 are above k
        already, because the gain from overtaking decreases with j.
        """
        j = torch.arange(1, u_neg.shape[1] + 1, device=u_neg.device)
        gain, best, first = torch.zeros_like(u_neg), torch.zeros_like(u_neg), (P + 1).expand(u_neg.shape)
        for k in range(known(P.max()) or len(j), 0, -1):
            precision = (k / ((k + j - 1) * (k + j)).to(u_neg)) / P.clamp(min=1)
            real = k <= P
            gain = torch.where(real, gain + precision + pair * (u_neg - u_pos[:, k - 1 : k]), gain)
            better = real & (gain > best)
            best, first = torch.where(better, gain, best), torch.where(better, k, first)
        return first.cummax(1).values  # increasing, except for rounding
