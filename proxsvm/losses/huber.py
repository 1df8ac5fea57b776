"""Huber's loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from proxsvm.losses._targets import RegressionLoss, summed
from proxsvm.losses.base import Reduction
from proxsvm.losses.hulls import Box
from proxsvm.losses.smooth_loss import SmoothLoss


class Huber(RegressionLoss, SmoothLoss):
    """ℓ(u; y) = Σ_j h(u_j − y_j), with h(x) = x²/2 for |x| ≤ δ and δ (|x| − δ/2) beyond: m times ``nn.HuberLoss``.

    Atoms: every s with |s_j| ≤ δ, c = −⟨s, y⟩ − ‖s‖²/2. Scores and target ``[n, ...]``, the same shape.

    Reference: Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 1964.

    >>> import torch
    >>> Huber(1.0)(torch.tensor([[0.5, -2.0]]), torch.tensor([[0.0, 0.0]]))     # 0.125 + 1.5
    tensor(1.6250)
    """

    options = ("delta",)

    def __init__(self, delta: float = 1.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        if not 0 < delta < float("inf"):
            raise ValueError(f"delta is {delta}; expected a finite number above 0")
        self.delta = delta

    def formula(self, scores: Tensor, target: Tensor) -> Tensor:
        return summed(F.huber_loss(scores, target, delta=self.delta, reduction="none"))

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        return Box.between(-self.delta, self.delta, target, ridge=1.0)
