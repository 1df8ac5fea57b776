"""ℓ1 regression, with an optional insensitive band."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm.losses._targets import RegressionLoss
from proxsvm.losses.base import PiecewiseLinearLoss, Reduction
from proxsvm.losses.hulls import Box


class L1Regression(RegressionLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = Σ_j max(0, |u_j − y_j| − ε), summed over the m outputs of a sample.

    Atoms: every s in {−1, 0, 1}^m, c = −⟨s, y⟩ − ε‖s‖₁. Scores and target ``[n, ...]``, the same shape.
    With ε = 0 it is m times ``torch.nn.L1Loss``; with one output it is the loss of support vector regression.

    >>> L1Regression()(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(3.)
    """

    options = ("epsilon",)

    def __init__(self, epsilon: float = 0.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        if not 0 <= epsilon < float("inf"):
            raise ValueError(f"epsilon is {epsilon}; expected a band of a finite width, 0 or more")
        self.epsilon = epsilon

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        """The box −1 ≤ s ≤ 1 with the band."""
        return Box(-torch.ones_like(scores), torch.ones_like(scores), target, self.epsilon)
