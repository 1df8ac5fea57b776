"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from proxsvm._kernels.class_rows import Kind
from proxsvm._kernels.tensors import in_transform
from proxsvm.losses._classes import ClassLoss, as_cost, one_hot
from proxsvm.losses._hulls import Simplex
from proxsvm.losses._rows import in_slices, relative
from proxsvm.losses.base import Atom, PiecewiseLinearLoss, Reduction


class MultiClassHinge(ClassLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = max_k  u_k − u_y + Δ(k, y).

    Atoms: s = e_k − e_y, c = Δ(k, y). Scores ``[n, K]`` or ``[n, K, d1, ...]``, target ``[n]`` or ``[n, d1, ...]``.

    Args:
        cost: Δ as a ``[K, K]`` matrix indexed (predicted k, true y), finite and non-negative with a zero diagonal; 0/1
            if None.
        smooth: train with the direction of the cross-entropy, s = softmax(u) − e_y, for every sample where that
            can raise the dual (⟨s, u⟩ + c > 0), and with the hinge's own atom for the others (appendix A.6).
        weight: ``[K]``, how much a sample of each class counts; the mean is the weighted mean, as in torch.
        ignore_index: samples of this class do not count.
        reduction: as in torch, see :class:`~proxsvm.losses.ConvexLoss`.

    >>> MultiClassHinge()(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]))
    tensor(0.5000)
    """

    cost: Tensor | None

    def __init__(
        self,
        cost: Tensor | None = None,
        *,
        smooth: bool = False,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        self.register_buffer("cost", None if cost is None else as_cost(cost))
        self.smooth = smooth

    def row_kernel(self) -> Kind | None:
        """The compiled loop supports the 0/1 cost."""
        return None if self.cost is not None else "smooth hinge" if self.smooth else "hinge"

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """As for every loss over classes; a cost matrix must have the scores' K."""
        scores, target = super().prepare(scores, target)
        if self.cost is not None and len(self.cost) != scores.shape[1]:
            raise ValueError(f"cost is for {len(self.cost)} classes, but the scores have {scores.shape[1]}")
        return scores, target

    def _task_loss(self, scores: Tensor, y: Tensor) -> Tensor | float:
        """Δ(k, y_i) for each sample and class, ``[n, K]``, or 1 for all k ≠ y."""
        return 1.0 if self.cost is None else self.cost.to(scores).T[y]

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """The wrong class k with the largest u_k + Δ(k, y), or 0 where its margin u_k − u_y + Δ(k, y) is ≤ 0."""

        def best(u: Tensor, y: Tensor) -> Tensor:
            augmented = u if self.cost is None else u + self._task_loss(u, y)
            return augmented.scatter(1, y[:, None], -torch.inf).max(1, keepdim=True).indices

        y = self.classes(scores, target)
        k = in_slices(best, scores, y)
        u_k, u_y = scores.gather(1, torch.stack([k.squeeze(1), y], 1)).unbind(1)
        if self.cost is None:
            delta: Tensor | float = float(scores.shape[1] > 1)  # a single class has no rival
        else:
            delta = self.cost.to(scores)[k.squeeze(1), y]
        margin = u_k - u_y + delta
        one = (margin > 0).to(scores)[:, None]
        s = torch.zeros_like(scores).scatter_(1, k, one).scatter_(1, y[:, None], -one)
        return Atom(s, one.squeeze(1) * delta, margin.clamp(min=0))

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy."""
        p, y = scores.softmax(1), self.classes(scores, target)
        wrong = 1 - p.gather(1, y[:, None])
        expected = wrong if self.cost is None else (p * self._task_loss(scores, y)).sum(1, keepdim=True)
        s = p.scatter_(1, y[:, None], -wrong)
        return Atom(s, expected.squeeze(1)).about(scores, scores.gather(1, y[:, None]))

    def direction(self, scores: Tensor, target: Tensor) -> Atom:
        """As for every loss; without a cost matrix the two atoms are mixed on one copy of the scores."""
        if not self.smooth or self.cost is not None or in_transform():
            return super().direction(scores, target)
        s = torch.empty_like(scores)
        return Atom(s, *in_slices(_mix, scores, self.classes(scores, target), s).unbind(1))

    def hull(self, scores: Tensor, target: Tensor) -> Simplex:
        """The simplex of the classes."""
        y = self.classes(scores, target)
        return Simplex(y, self._task_loss(scores, y) * (1 - one_hot(scores, y)))


def _mix(scores: Tensor, target: Tensor, s: Tensor) -> Tensor:
    """Write the direction of ``MultiClassHinge(smooth=True)`` into ``s``, and return its c and its value, ``[n, 2]``.

    exp keeps the order of the scores, so the largest u_k + Δ(k, y) is the largest p_k, with p_y / e for p_y.
    """
    y = target[:, None]
    p = torch.softmax(scores, 1, out=s)
    p_y, margins = p.gather(1, y), relative(scores, scores.gather(1, y))
    helps = torch.linalg.vecdot(p, margins)[:, None] - p_y > -1  # ⟨s, u⟩ + c > 0
    best = p.scatter_(1, y, torch.where(helps, p_y, p_y / math.e)).amax(1, keepdim=True)
    floor = best.nextafter(-best).masked_fill_(helps, 0)  # above it: all of p, or the ties with the largest
    alpha = p.sub_(floor).relu_()
    alpha.mul_(alpha.sum(1, keepdim=True).reciprocal_())
    wrong = 1 - alpha.gather(1, y)
    alpha.scatter_(1, y, -wrong)
    return torch.cat([wrong, torch.linalg.vecdot(alpha, margins)[:, None] + wrong], 1)
