"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import known
from proxsvm.losses._classes import ClassLoss, as_cost
from proxsvm.losses.base import Atom, PiecewiseLinearLoss
from proxsvm.losses.hulls import Simplex, one_hot, rival


class MultiClassHinge(ClassLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = max_k  u_k − u_y + Δ(k, y).

    Atoms: s = e_k − e_y, c = Δ(k, y). Scores ``[n, K]`` or ``[n, K, d1, ...]``, target ``[n]`` or ``[n, d1, ...]``.

    Args:
        cost: Δ as a ``[K, K]`` matrix indexed (predicted k, true y), finite and non-negative with a zero diagonal; 0/1
            if None.
        smooth: train with the direction of the cross-entropy, s = softmax(u) − e_y, for every sample where that
            can raise the dual (⟨s, u⟩ + c > 0), and with the hinge's own atom for the others (appendix A.6).
        options: ``weight``, ``ignore_index`` and ``reduction``, as in ``torch.nn.CrossEntropyLoss``.

    >>> MultiClassHinge()(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]))
    tensor(0.5000)
    """

    options = ("cost", *ClassLoss.options)
    cost: Tensor | None

    def __init__(self, cost: Tensor | None = None, *, smooth: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("cost", None if cost is None else as_cost(cost))
        self.smooth = smooth

    def _costs(self, scores: Tensor, y: Tensor) -> Tensor | None:
        """Δ(k, y_i) for each sample and class, ``[n, K]``; None for 1 at all k ≠ y."""
        if self.cost is None:
            return None
        if len(self.cost) != scores.shape[1]:
            raise ValueError(f"cost is for {len(self.cost)} classes, but the scores have {scores.shape[1]}")
        return self.cost.to(scores).T[y]

    def values(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Atom | None]:
        """In a handful of operations that autograd differentiates."""
        y = self.classes(scores, target)
        if not self.smooth:
            return rival(scores, y, self._costs(scores, y))[1].relu(), None
        u = self.expand(scores, target)
        soft = self.smoothed(u, y).value_at(u)
        hard = soft.detach() <= 0
        if known(hard.any()) is False:
            return soft, None
        return torch.where(hard, rival(u, y, self._costs(u, y))[1].relu(), soft), None

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy."""
        u, y = scores.detach(), self.classes(scores, target)
        p, at, cost = u.softmax(1), y[:, None], self._costs(scores, y)
        wrong = 1 - p.gather(1, at)
        expected = wrong.squeeze(1) if cost is None else (p * cost).sum(1)
        return Atom(p.scatter(1, at, -wrong), expected).about(scores, u.gather(1, at))

    def hull(self, scores: Tensor, target: Tensor) -> Simplex:
        """The simplex of the classes."""
        y = self.classes(scores, target)
        cost = self._costs(scores, y)
        return Simplex(y, 1 - one_hot(scores, y) if cost is None else cost)
