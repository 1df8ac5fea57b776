"""Quantile regression: the pinball loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proxsvm.losses._targets import RegressionLoss
from proxsvm.losses.base import PiecewiseLinearLoss, Reduction
from proxsvm.losses.hulls import Box


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
        if isinstance(self.tau, list) and isinstance(scores, Tensor) and isinstance(target, Tensor):
            if scores.dim() < 2 or scores.shape[-1] != len(self.tau):
                given = f"QuantileRegression with {len(self.tau)} levels got scores of shape {tuple(scores.shape)}"
                raise ValueError(f"{given}; expected [n, ..., {len(self.tau)}]")
            if target.shape == scores.shape[:-1]:
                target = target[..., None].expand(scores.shape)
        return super().prepare(scores, target)

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        levels = self.tau if isinstance(self.tau, list) else [self.tau]
        # Filled on the device: copying them there would synchronise.
        tau = torch.stack([scores.new_full((), level) for level in levels]).expand(scores.shape)
        return Box(-tau, 1 - tau, target)
