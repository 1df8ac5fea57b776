"""The squared hinge of independent labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm.losses._targets import RegressionLoss, per_sample
from proxsvm.losses.base import Atom, require
from proxsvm.losses.hulls import Hull, Polytope, cvxpy, flat
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
        """As for every loss with a target of the scores' shape; y is 0 or 1."""
        scores, target = super().prepare(scores, target)
        require((target == 0) | (target == 1), f"{type(self).__name__} got a target that is not 0 or 1")
        return scores, target

    def formula(self, scores: Tensor, target: Tensor) -> Tensor:
        """The definition."""
        return per_sample((1 - (2 * target - 1) * scores).clamp(min=0).square())

    def hull(self, scores: Tensor, target: Tensor) -> RidgeBox:
        """s on the side of −t, under a paraboloid."""
        t = 2 * target - 1
        infinite = torch.full_like(scores, torch.inf)
        return RidgeBox(torch.where(t > 0, -infinite, 0.0), torch.where(t > 0, 0.0, infinite), t, ridge=0.5)


@dataclass(frozen=True)
class RidgeBox(Hull):
    """low ≤ s ≤ high, c ≤ −⟨s, center⟩ − (ridge/2) ‖s‖²; bounds of the scores' shape, some of them infinite.

    >>> hull = RidgeBox(torch.tensor([0.0]), torch.tensor([torch.inf]), torch.tensor([-1.0]), ridge=0.5)
    >>> hull.best(torch.tensor([0.5]))                                   # β = 2 (1 + 0.5)
    Atom(s=tensor([3.]), offset=tensor([0.7500]))
    """

    low: Tensor
    high: Tensor
    center: Tensor
    ridge: float

    def best(self, v: Tensor) -> Atom:
        """(v − center)/ridge, clipped."""
        s = torch.minimum(torch.maximum((v - self.center) / self.ridge, self.low), self.high)
        return Atom(s, self.lift(s))

    def lift(self, s: Tensor) -> Tensor:
        """−⟨s, center⟩ − (ridge/2) ‖s‖²."""
        return -(s * (self.center + self.ridge / 2 * s)).reshape(len(s), -1).sum(1)

    def express(self) -> Polytope:
        """s itself as the variable."""
        cp, center, low, high = cvxpy(), *(flat(x) for x in (self.center, self.low, self.high))
        s = cp.Variable(center.shape)
        offset = -cp.sum(cp.multiply(center, s) + self.ridge / 2 * cp.square(s), axis=1)
        bounds = [s[low > -torch.inf] >= low[low > -torch.inf], s[high < torch.inf] <= high[high < torch.inf]]
        return Polytope((s,), offset, [b for b in bounds if b.size])
