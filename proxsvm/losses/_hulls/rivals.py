"""The hull of the Weston-Watkins hinge: every wrong class independently."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm.losses._hulls.base import Hull, Polytope, cvxpy, flat
from proxsvm.losses.base import Atom


@dataclass(frozen=True)
class Rivals(Hull):
    """s = Σ_k β_k (e_k − e_y), c = Σ_k β_k over 0 ≤ β_k ≤ 1, k ≠ y. ``target`` is y, ``[n]``; K: the number of classes.

    >>> Rivals(torch.tensor([0]), 3).best(torch.tensor([[1.0, 0.5, 2.0]]))
    Atom(s=tensor([[-2.,  1.,  1.]]), offset=tensor([2.]))
    """

    target: Tensor
    K: int

    def best(self, v: Tensor) -> Atom:
        """Every class within the margin."""
        y = self.target[:, None]
        v_y = v.gather(1, y)
        active = (v - v_y + 1 > 0).to(v).scatter_(1, y, 0)
        count = active.sum(1)
        return Atom(active.scatter_(1, y, -count[:, None]), count).about(v, v_y)

    def express(self) -> Polytope:
        """The box of the β."""
        cp = cvxpy()
        y = flat(torch.nn.functional.one_hot(self.target, self.K))
        beta = cp.Variable(y.shape, nonneg=True)
        count = cp.sum(beta, axis=1, keepdims=True) @ (y * 0 + 1)[:1]
        return Polytope((beta - cp.multiply(y, count),), cp.sum(beta, axis=1), [beta <= 1 - y])
