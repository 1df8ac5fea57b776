"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import inner, one_hot
from proxsvm.losses._classes import ClassLoss, as_cost
from proxsvm.losses.base import Atom, PiecewiseLinearLoss
from proxsvm.losses.hulls import Simplex, rival


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
        """In a handful of operations that autograd differentiates; where smoothed, of log p: its margins are u's."""
        y = self.classes(scores, target)
        v = self.expand(scores, target).log_softmax(1) if self.smooth else scores
        _, margin, v_y = rival(v, y, self._costs(v, y))
        if not self.smooth:
            return margin.relu(), None
        soft = self._expected(v.detach(), y)[0] - v_y  # its gradient is softmax(u) − e_y
        return torch.where(soft > 0, soft, margin.relu()), None

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy."""
        y, log_p = self.classes(scores, target), scores.detach().log_softmax(1)
        rest, delta = self._expected(log_p, y)
        e_y = one_hot(scores, y, scores.shape[1])
        return Atom(log_p.exp() - e_y, delta, rest - log_p.gather(1, y[:, None]).squeeze(1))

    def _expected(self, log_p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Under p = softmax(u) the means of log p_k + Δ(k, y) and of Δ(k, y), ``[n]``.

        u differs from log p by the same number for all classes, so ⟨s, u⟩ + c is −log p_y plus the first of them.
        """
        p, cost = log_p.exp(), self._costs(log_p, y)
        delta = 1 - p.gather(1, y[:, None]).squeeze(1) if cost is None else inner(p, cost)
        return p.mul_(log_p).sum(1) + delta, delta

    def hull(self, scores: Tensor, target: Tensor) -> Simplex:
        """The simplex of the classes."""
        y = self.classes(scores, target)
        cost = self._costs(scores, y)
        return Simplex(y, 1 - one_hot(scores, y, scores.shape[1]) if cost is None else cost)
