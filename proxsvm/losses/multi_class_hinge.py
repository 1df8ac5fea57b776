"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from proxsvm.extras import load
from proxsvm.losses.base import Atom, Polytope, Reduction
from proxsvm.losses.classes import ClassLoss, as_cost, one_hot
from proxsvm.losses.hulls import Simplex


class MultiClassHinge(ClassLoss):
    """ℓ(u; y) = max_k  u_k − u_y + Δ(k, y).

    Atoms: s = e_k − e_y, c = Δ(k, y). Scores ``[n, K]``, target ``[n]``.

    Args:
        cost: Δ as a ``[K, K]`` matrix indexed (predicted k, true y), non-negative with a zero diagonal; 0/1 if None.
        smooth: train with the direction of the cross-entropy, s = softmax(u) − e_y, for every sample where that
            can raise the dual (⟨s, u⟩ + c > 0), and with the hinge's own atom for the others (appendix A.6).
        reduction: as in torch, see :class:`~proxsvm.losses.PiecewiseLinearLoss`.

    >>> MultiClassHinge()(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]))
    tensor(0.5000)
    """

    cost: Tensor | None

    def __init__(self, cost: Tensor | None = None, *, smooth: bool = False, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("cost", None if cost is None else as_cost(cost))
        self.smooth = smooth

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """As every loss over classes; a cost matrix must have the scores' K."""
        scores, target = super().prepare(scores, target)
        if self.cost is not None and len(self.cost) != scores.shape[1]:
            raise ValueError(f"cost is for {len(self.cost)} classes, but the scores have {scores.shape[1]}")
        return scores, target

    def _task_loss(self, scores: Tensor, target: Tensor) -> Tensor | float:
        """Δ(k, y_i) for each sample and class, ``[n, K]``, or 1 for all k ≠ y."""
        return 1.0 if self.cost is None else self.cost.to(scores).T[target]

    def _rival(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best wrong class k, its Δ(k, y) and whether u_k − u_y + Δ(k, y) > 0; each ``[n, 1]``."""
        y = target[:, None]
        delta = self._task_loss(scores, target)
        best, k = (scores + delta).scatter_(1, y, -torch.inf).max(1, keepdim=True)
        margin = best - scores.gather(1, y)
        return k, best - scores.gather(1, k), margin > 0

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """The class of the largest augmented score."""
        k, delta, active = self._rival(scores, target)
        one = active.to(scores)
        s = torch.zeros_like(scores).scatter_(1, k, one).scatter_(1, target[:, None], -one)
        return Atom(s, torch.where(active, delta, 0.0).squeeze(1))

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy."""
        p, y = scores.softmax(1), target[:, None]
        wrong = p.gather(1, y).neg_().add_(1)  # 1 − p_y
        expected = wrong if self.cost is None else (p * self._task_loss(scores, target)).sum(1, keepdim=True)
        return Atom(p.scatter_(1, y, -wrong), expected.squeeze(1))

    def direction(self, scores: Tensor, target: Tensor) -> Atom:
        """As for every loss; written out, because the hinge's own atom has only two entries to mix in."""
        if not self.smooth:
            return self.oracle(scores, target)
        soft = self.smoothed(scores, target)
        helps = (soft.b(scores) > 0)[:, None]
        k, delta, active = self._rival(scores, target)
        back = (active & ~helps).to(scores)
        s = cast(Tensor, soft.s) * helps
        s.scatter_add_(1, k, back).scatter_add_(1, target[:, None], -back)
        return Atom(s, torch.where(helps, soft.offset[:, None], back * delta).squeeze(1))

    def hull(self, scores: Tensor, target: Tensor) -> Simplex:
        """The simplex of the classes."""
        return Simplex(target, self._task_loss(scores, target) * (1 - one_hot(scores, target)))

    def polytope(self, scores: Tensor, target: Tensor) -> Polytope:
        """The simplex: α ≥ 0, Σ_k α_k = 1, s = α − e_y, c = Σ_k α_k Δ(k, y)."""
        cp = load("cvxpy", extra="qp")
        alpha = cp.Variable(tuple(scores.shape), nonneg=True)
        y = one_hot(scores, target)
        delta = (self._task_loss(scores, target) * (1 - y)).cpu().numpy()
        return Polytope(
            (alpha - y.cpu().numpy(),),
            cp.sum(cp.multiply(delta, alpha), axis=1),
            [cp.sum(alpha, axis=1) == 1],
        )
