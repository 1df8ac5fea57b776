"""The hull of the top-k hinge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm.losses._hulls.base import Hull, Polytope, cvxpy, flat
from proxsvm.losses.base import Atom


@dataclass(frozen=True)
class TopKSimplex(Hull):
    """0 ≤ α_j ≤ σ/k with σ = Σ_j α_j ≤ 1; s = α − σ e_y, c = Σ_{j ≠ y} α_j. ``target`` is y, ``[n]``; K classes.

    >>> TopKSimplex(torch.tensor([0]), k=2, K=3).best(torch.tensor([[2.0, 0.5, 1.5]]))
    Atom(s=tensor([[-0.5000,  0.0000,  0.5000]]), offset=tensor([0.5000]))
    """

    target: Tensor
    k: int
    K: int

    def best(self, v: Tensor) -> Atom:
        """The k classes with the largest augmented scores, or 0 where their mean margin is not positive."""
        y = torch.zeros_like(v).scatter_(1, self.target[:, None], 1)
        alpha = torch.zeros_like(v).scatter_(1, (v + 1 - y).topk(self.k, dim=1).indices, 1 / self.k)
        atom = Atom(alpha - y, (alpha * (1 - y)).sum(1)).about(v, v.gather(1, self.target[:, None]))
        value = atom.value_at(v)
        nothing = Atom(torch.zeros_like(v), *(torch.zeros_like(value),) * 2)
        return nothing.where(value <= 0, atom)  # a NaN stays in the value

    def express(self) -> Polytope:
        """The top-k simplex."""
        cp = cvxpy()
        y = flat(torch.nn.functional.one_hot(self.target, self.K))
        alpha = cp.Variable(y.shape, nonneg=True)
        total = cp.sum(alpha, axis=1, keepdims=True) @ (y * 0 + 1)[:1]
        return Polytope(
            (alpha - cp.multiply(y, total),),
            cp.sum(cp.multiply(1 - y, alpha), axis=1),
            [alpha <= total / self.k, total <= 1],
        )
