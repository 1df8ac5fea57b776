"""The squared error."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm.losses._targets import RegressionLoss, summed
from proxsvm.losses.hulls import QuadraticBox
from proxsvm.losses.smooth_loss import SmoothLoss


class SquaredError(RegressionLoss, SmoothLoss):
    """ℓ(u; y) = Σ_j (u_j − y_j)², summed over the m outputs of a sample: m times ``torch.nn.MSELoss``.

    Atoms: every s, with c = −⟨s, y⟩ − ‖s‖²/4. Scores and target ``[n, ...]``, the same shape.

    >>> SquaredError()(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(5.)
    """

    def formula(self, scores: Tensor, target: Tensor) -> Tensor:
        """Σ_j (u_j − y_j)²."""
        return summed((scores - target).square())

    def hull(self, scores: Tensor, target: Tensor) -> QuadraticBox:
        """All s, under a paraboloid."""
        infinite = torch.full_like(target, torch.inf)
        return QuadraticBox(-infinite, infinite, target, ridge=0.5)
