"""The squared error."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm.losses._targets import BandLoss, summed
from proxsvm.losses.hulls import Box
from proxsvm.losses.smooth_loss import SmoothLoss


class SquaredError(BandLoss, SmoothLoss):
    """ℓ(u; y) = Σ_j max(0, |u_j − y_j| − ε)², summed over the m outputs of a sample.

    Atoms: every s, with c = −⟨s, y⟩ − ε‖s‖₁ − ‖s‖²/4. Scores and target ``[n, ...]``, the same shape. With ε = 0 it is
    m times ``torch.nn.MSELoss``; else the squared ε-insensitive loss of scikit-learn's ``LinearSVR``.

    >>> SquaredError()(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(5.)
    """

    def formula(self, scores: Tensor, target: Tensor) -> Tensor:
        error = scores - target
        return summed((F.softshrink(error, self.epsilon) if self.epsilon else error).square())

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        return Box.between(-torch.inf, torch.inf, target, self.epsilon, ridge=0.5)
