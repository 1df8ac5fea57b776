"""ℓ1 regression, with an optional insensitive band."""

from __future__ import annotations

from torch import Tensor

from proxsvm.losses._targets import BandLoss
from proxsvm.losses.base import PiecewiseLinearLoss
from proxsvm.losses.hulls import Box


class L1Regression(BandLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = Σ_j max(0, |u_j − y_j| − ε), summed over the m outputs of a sample.

    Atoms: every s in {−1, 0, 1}^m, c = −⟨s, y⟩ − ε‖s‖₁. Scores and target ``[n, ...]``, the same shape.
    With ε = 0 it is m times ``torch.nn.L1Loss``; with one output it is the loss of support vector regression.

    >>> import torch
    >>> L1Regression()(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(3.)
    """

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        return Box.between(-1.0, 1.0, target, self.epsilon)
