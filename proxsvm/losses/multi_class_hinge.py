"""The multi-class hinge of Crammer and Singer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import inner, one_hot
from proxsvm.losses._classes import ClassLoss, as_cost
from proxsvm.losses.base import Atom, PiecewiseLinearLoss
from proxsvm.losses.hulls import Simplex


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
        """u_k − u_y + Δ(k, y) at the best wrong k; where smoothed, Σ_k s_k (u_k − u_y + Δ(k, y)), which is ⟨s, u⟩ + c.

        Both in few operations. A smoothed atom needs finite scores: masked classes take the general path, and so do
        accelerators, on which that is not known.
        """
        at = self.classes(scores, target).unsqueeze(1)
        u, cost = scores.detach(), self._costs(scores, at.squeeze(1))
        if not self.smooth:
            k = (u if cost is None else u + cost).scatter(1, at, -torch.inf).max(1, keepdim=True).indices
            delta = k != at if cost is None else cost.gather(1, k)  # k = y where there is no other class
            u_k, u_y = scores.gather(1, torch.cat([k, at], 1)).unbind(1)
            return (u_k - u_y + delta.squeeze(1)).relu(), None
        if self.expand(scores, target) is not scores:
            return super().values(scores, target)
        margins, of_y = scores - u.gather(1, at), 0.0
        if cost is None:
            of_y = -1.0  # 1 less for all k, because s sums to 0
            margins.detach().scatter_(1, at, of_y)
        else:
            margins = margins + cost
        m, alpha = margins.detach(), u.softmax(1)
        rows = ((alpha * m).sum(1) <= of_y).nonzero().squeeze(1)
        if len(rows):
            best = m.index_select(0, rows).argmax(1)
            alpha.index_fill_(0, rows, 0.0).index_put_((rows, best), alpha.new_ones(()))
        s = alpha.scatter_add_(1, at, alpha.new_full((), -1.0).expand_as(at))
        return (s * margins).sum(1), None

    def smoothed(self, scores: Tensor, target: Tensor) -> Atom:
        """s = softmax(u) − e_y with the expected Δ: the gradient of the cross-entropy.

        u differs from log p by the same number for all classes, so ⟨s, u⟩ + c is the mean of log p + Δ, less log p_y.
        """
        y, log_p = self.classes(scores, target), scores.detach().log_softmax(1)
        cost, p, e_y = self._costs(scores, y), log_p.exp(), one_hot(scores, y, scores.shape[1])
        delta = 1 - inner(p, e_y) if cost is None else inner(p, cost)
        return Atom(p - e_y, delta, inner(p, log_p) + delta - log_p.gather(1, y[:, None]).squeeze(1))

    def hull(self, scores: Tensor, target: Tensor) -> Simplex:
        y = self.classes(scores, target)
        cost = self._costs(scores, y)
        return Simplex(y, 1 - one_hot(scores, y, scores.shape[1]) if cost is None else cost)
