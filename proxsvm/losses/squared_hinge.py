"""The squared hinge of independent labels."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm._scores import require
from proxsvm.losses._targets import RegressionLoss, summed
from proxsvm.losses.hulls import Box
from proxsvm.losses.smooth_loss import SmoothLoss


class SquaredHinge(RegressionLoss, SmoothLoss):
    """ℓ(u; y) = Σ_j max(0, 1 − t_j u_j)² with t = 2y − 1, summed over the m labels of a sample.

    Atoms: s = −t β, c = Σ_j (β_j − β_j²/4) for every β ≥ 0. Scores and target ``[n, ...]`` have the same shape, the
    target is 0 or 1 (also bool or integer). With one label for each class it is the loss of scikit-learn's
    ``LinearSVC``, one class against the rest.

    >>> SquaredHinge()(torch.tensor([[0.5, 0.5]]), torch.tensor([[1, 0]]))     # 0.5² + 1.5²
    tensor(2.5000)
    """

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        scores, target = super().prepare(scores, target)
        require((target == 0) | (target == 1), f"{type(self).__name__} got a target that is not 0 or 1")
        return scores, target

    def formula(self, scores: Tensor, target: Tensor) -> Tensor:
        return summed((1 - (2 * target - 1) * scores).clamp(min=0).square())

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        bound = torch.inf * torch.ones_like(target)
        return Box((-bound).where(target == 1, 0.0), bound.where(target == 0, 0.0), 2 * target - 1, ridge=0.5)
