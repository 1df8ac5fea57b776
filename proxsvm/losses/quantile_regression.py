"""Quantile regression: the pinball loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proxsvm.extras import load
from proxsvm.losses.base import Atom, Polytope, Reduction
from proxsvm.losses.hulls import Box
from proxsvm.losses.regression import RegressionLoss, per_sample


class QuantileRegression(RegressionLoss):
    """ℓ(u; y) = Σ_j max(τ (y_j − u_j), (1 − τ) (u_j − y_j)): the minimiser is the τ-quantile.

    Atoms: every s in {−τ, 1 − τ}^m, c = −⟨s, y⟩. Scores and target ``[n, ...]``, one shape.
    With several levels, ``tau=[0.1, 0.5, 0.9]``, the scores' last dimension runs over them, and a target without
    that dimension is compared with each. At τ = 1/2 it is half of :class:`L1Regression`.

    Reference: Koenker and Bassett, Regression Quantiles, Econometrica 1978.

    >>> QuantileRegression(0.9)(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -1.0]))
    tensor(0.5000)
    """

    tau: Tensor

    def __init__(self, tau: float | Sequence[float], *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        levels = torch.as_tensor(tau, dtype=torch.get_default_dtype())
        if levels.dim() > 1 or not bool(((levels > 0) & (levels < 1)).all()):
            raise ValueError(f"tau is {tau}; expected one level in (0, 1), or a list of them")
        self.register_buffer("tau", levels)

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """As every regression; the target is repeated over several levels."""
        if self.tau.dim() == 1:
            if scores.dim() < 2 or scores.shape[-1] != len(self.tau):
                raise ValueError(
                    f"QuantileRegression with {len(self.tau)} levels got scores of shape {tuple(scores.shape)}; "
                    f"expected [n, ..., {len(self.tau)}]"
                )
            if target.shape == scores.shape[:-1]:
                target = target[..., None].expand(scores.shape)
        return super().prepare(scores, target)

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """−τ below the target, 1 − τ above it."""
        s = (scores > target).to(scores) - self.tau.to(scores)
        return Atom(s, -per_sample(s * target))

    def hull(self, scores: Tensor, target: Tensor) -> Box:
        """The box −τ ≤ s ≤ 1 − τ."""
        tau = self.tau.to(scores).expand(scores.shape)
        return Box(-tau, 1 - tau, target)

    def polytope(self, scores: Tensor, target: Tensor) -> Polytope:
        """The box −τ ≤ s ≤ 1 − τ."""
        cp = load("cvxpy", extra="qp")
        y = target.reshape(len(target), -1).cpu().numpy()
        tau = self.tau.to(scores).expand(scores.shape).reshape(y.shape).cpu().numpy()
        s = cp.Variable(y.shape)
        return Polytope((s,), -cp.sum(cp.multiply(y, s), axis=1), [s >= -tau, s <= 1 - tau])

    def extra_repr(self) -> str:
        """With τ."""
        return f"tau={self.tau.tolist()}, {super().extra_repr()}"
