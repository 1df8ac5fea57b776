"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm.losses._classes import ClassLoss, as_cost
from proxsvm.losses.base import Atom, PiecewiseLinearLoss, Reduction
from proxsvm.losses.hulls import Simplex, one_hot, rival


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

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """As for every loss over classes; a cost matrix must have the scores' K."""
        scores, target = super().prepare(scores, target)
        if self.cost is not None and len(self.cost) != scores.shape[1]:
            raise ValueError(f"cost is for {len(self.cost)} classes, but the scores have {scores.shape[1]}")
        return scores, target

    def values(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Atom | None]:
        """In a handful of operations that autograd differentiates; a subclass, or a smoothed cost, by its atoms."""
        if type(self) is not MultiClassHinge or (self.smooth and self.cost is not None):
            return super().values(scores, target)
        y = self.classes(scores, target)
        hinge = rival(scores, y, self._task_loss(scores, y))[1].clamp(min=0).squeeze(1)
        if not self.smooth:
            return hinge, None
        # The gradient of −log p_y is softmax(u) − e_y; that atom's value is Σ_k p_k (u_k − u_y) + 1 − p_y.
        log_p = self.expand(scores, target).log_softmax(1)
        surprise, q = -log_p.gather(1, y[:, None]).squeeze(1), log_p.detach()
        value = surprise.detach()
        soft = torch.linalg.vecdot(q.exp(), q) + value - torch.expm1(-value)
        each = torch.where(soft <= 0, hinge, soft + (surprise - value))
        return torch.where(value == torch.inf, value, each), None

    def _task_loss(self, scores: Tensor, y: Tensor) -> Tensor | float:
        """Δ(k, y_i) for each sample and class, ``[n, K]``, or 1 for all k ≠ y."""
        return 1.0 if self.cost is None else self.cost.to(scores).T[y]

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy."""
        p, y = scores.softmax(1), self.classes(scores, target)
        at = y[:, None]
        wrong = 1 - p.gather(1, at)
        expected = wrong if self.cost is None else (p * self._task_loss(scores, y)).sum(1, keepdim=True)
        return Atom(p.scatter(1, at, -wrong), expected.squeeze(1)).about(scores, scores.gather(1, at))

    def hull(self, scores: Tensor, target: Tensor) -> Simplex:
        """The simplex of the classes."""
        y = self.classes(scores, target)
        return Simplex(y, 1 - one_hot(scores, y) if self.cost is None else self.cost.to(scores).T[y])
