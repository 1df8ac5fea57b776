"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxsvm.extras import load
from proxsvm.losses.base import Atom, Polytope, Reduction, in_slices, in_transform
from proxsvm.losses.classes import ClassLoss, as_cost, one_hot
from proxsvm.losses.compiled_hinge import compiled_value
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

    def forward(self, scores: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """As every loss; with nothing but the 0/1 cost on the CPU, by compiled loops where numba is installed."""
        if self.cost is None and sample_weight is None and self.reduction != "none" and type(self) is MultiClassHinge:
            value = compiled_value(self, scores, target)
            if value is not None:
                return value
        return super().forward(scores, target, sample_weight)

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """As every loss over classes; a cost matrix must have the scores' K."""
        scores, target = super().prepare(scores, target)
        if self.cost is not None and len(self.cost) != scores.shape[1]:
            raise ValueError(f"cost is for {len(self.cost)} classes, but the scores have {scores.shape[1]}")
        return scores, target

    def _task_loss(self, scores: Tensor, target: Tensor) -> Tensor | float:
        """Δ(k, y_i) for each sample and class, ``[n, K]``, or 1 for all k ≠ y."""
        return 1.0 if self.cost is None else self.cost.to(scores).T[target]

    def _rival(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float, Tensor]:
        """The wrong class k of the largest u_k + Δ(k, y), ``[n, 1]``; its Δ(k, y); and u_k − u_y + Δ(k, y), ``[n]``.

        Gradients flow through the last: to two scores a sample, so that the whole of s is never made.
        """

        def best(u: Tensor, y: Tensor) -> Tensor:
            augmented = u if self.cost is None else u + self._task_loss(u, y)
            return augmented.scatter(1, y[:, None], -torch.inf).max(1, keepdim=True).indices

        k = in_slices(best, scores.detach(), target)
        u_k, u_y = scores.gather(1, torch.cat([k, target[:, None]], 1)).unbind(1)
        if self.cost is None:
            delta: Tensor | float = float(scores.shape[1] > 1)  # a lone class is no rival of itself
        else:
            delta = self.cost.to(scores)[k.squeeze(1), target]
        return k, delta, u_k - u_y + delta

    def values(self, scores: Tensor, target: Tensor) -> Tensor | None:
        """max(0, u_k − u_y + Δ(k, y)) with the best wrong class k; not for a subclass with an oracle of its own."""
        if self.smooth or type(self).oracle is not MultiClassHinge.oracle:
            return None
        return self._rival(scores, target)[2].relu()

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """The class of the largest augmented score."""
        k, delta, margin = self._rival(scores, target)
        one = (margin > 0).to(scores)
        s = torch.zeros_like(scores).scatter_(1, k, one[:, None]).scatter_(1, target[:, None], -one[:, None])
        return Atom(s, one * delta)

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy."""
        p, y = scores.softmax(1), target[:, None]
        wrong = 1 - p.gather(1, y)
        expected = wrong if self.cost is None else (p * self._task_loss(scores, target)).sum(1, keepdim=True)
        return Atom(p.scatter_(1, y, -wrong), expected.squeeze(1))

    def direction(self, scores: Tensor, target: Tensor) -> Atom:
        """As for every loss; without a cost matrix the two atoms are mixed on one copy of the scores."""
        if not self.smooth or self.cost is not None or in_transform():
            return super().direction(scores, target)
        s = torch.empty_like(scores)
        return Atom(s, in_slices(_mix, scores, target, s))

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


def _mix(scores: Tensor, target: Tensor, s: Tensor) -> Tensor:
    """Write the direction of ``MultiClassHinge(smooth=True)`` into ``s``, and return its c, ``[n]``.

    exp keeps the order of the scores, so the largest u_k + Δ(k, y) is the largest p_k, with p_y / e for p_y.
    """
    y = target[:, None]
    p = torch.softmax(scores, 1, out=s)
    p_y = p.gather(1, y)
    helps = torch.linalg.vecdot(p, scores)[:, None] - scores.gather(1, y) - p_y > -1  # ⟨s, u⟩ + c > 0
    best = p.scatter_(1, y, torch.where(helps, p_y, p_y / math.e)).amax(1, keepdim=True)
    floor = best.nextafter(-best).masked_fill_(helps, 0)  # above it is all of p, or what ties with the largest
    alpha = p.sub_(floor).relu_()
    alpha.mul_(alpha.sum(1, keepdim=True).reciprocal_())
    wrong = 1 - alpha.gather(1, y)
    alpha.scatter_(1, y, -wrong)
    return wrong.squeeze(1)
