"""The regression losses. The dual set of each is a box: its bounds, a band and a ridge are the whole loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm.losses._targets import RegressionLoss, summed
from proxsvm.losses.base import PiecewiseLinearLoss, Reduction
from proxsvm.losses.hulls import Box
from proxsvm.losses.smooth_loss import SmoothLoss


class BandLoss(RegressionLoss):
    """A regression loss for which errors of at most ``epsilon`` do not count."""

    options = ("epsilon",)

    def __init__(self, epsilon: float = 0.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        if not 0 <= epsilon < float("inf"):
            raise ValueError(f"epsilon is {epsilon}; expected a band of a finite width, 0 or more")
        self.epsilon = epsilon


class L1Regression(BandLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = Σ_j max(0, |u_j − y_j| − ε), summed over the m outputs of a sample.

    Atoms: every s in {−1, 0, 1}^m, c = −⟨s, y⟩ − ε‖s‖₁. Scores and target ``[n, ...]``, the same shape.
    With ε = 0 it is m times ``torch.nn.L1Loss``; with one output it is the loss of support vector regression.

    >>> L1Regression()(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.0, 0.0]]))
    tensor(3.)
    """

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        return Box.between(-1.0, 1.0, target, self.epsilon)


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


class Huber(RegressionLoss, SmoothLoss):
    """ℓ(u; y) = Σ_j h(u_j − y_j), with h(x) = x²/2 for |x| ≤ δ and δ (|x| − δ/2) beyond: m times ``nn.HuberLoss``.

    Atoms: every s with |s_j| ≤ δ, c = −⟨s, y⟩ − ‖s‖²/2. Scores and target ``[n, ...]``, the same shape.

    Reference: Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 1964.

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


class QuantileRegression(RegressionLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = Σ_j max(τ (y_j − u_j), (1 − τ) (u_j − y_j)): the minimiser is the τ-quantile.

    Atoms: every s in {−τ, 1 − τ}^m, c = −⟨s, y⟩. Scores and target ``[n, ...]``, the same shape.
    With several levels, ``tau=[0.1, 0.5, 0.9]``, the scores' last dimension runs over them, and a target without
    that dimension is compared with each. At τ = 1/2 it is half of :class:`L1Regression`.

    Reference: Koenker and Bassett, Regression Quantiles, Econometrica 1978.

    >>> QuantileRegression(0.9)(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -1.0]))
    tensor(0.5000)
    """

    options = ("tau",)

    def __init__(self, tau: float | Sequence[float], *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        levels = torch.as_tensor(tau, dtype=torch.float64)
        if levels.dim() > 1 or not bool(((levels > 0) & (levels < 1)).all()):
            raise ValueError(f"tau is {tau}; expected one level in (0, 1), or a list of them")
        self.tau: float | list[float] = levels.tolist()

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The target is repeated for each level."""
        if isinstance(self.tau, list) and isinstance(scores, Tensor) and isinstance(target, Tensor):
            if scores.dim() < 2 or scores.shape[-1] != len(self.tau):
                given = f"QuantileRegression with {len(self.tau)} levels got scores of shape {tuple(scores.shape)}"
                raise ValueError(f"{given}; expected [n, ..., {len(self.tau)}]")
            if target.shape == scores.shape[:-1]:
                target = target[..., None].expand(scores.shape)
        return super().prepare(scores, target)

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        """The box −τ ≤ s ≤ 1 − τ."""
        levels = self.tau if isinstance(self.tau, list) else [self.tau]
        # Filled on the device: copying them there would synchronise.
        tau = torch.stack([scores.new_full((), level) for level in levels]).expand(scores.shape)
        return Box(-tau, 1 - tau, target)
