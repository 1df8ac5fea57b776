"""The top-k hinge."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm.extras import load
from proxsvm.losses.base import Atom, Polytope, Reduction
from proxsvm.losses.classes import ClassLoss, one_hot


class TopKHinge(ClassLoss):
    """ℓ(u; y) = max(0, mean of the k largest of u_j − u_y + [j ≠ y]).

    Atoms: 0, and s = (1/k) Σ_{j in T} (e_j − e_y), c = |T without y| / k, for every T of k classes.
    Scores ``[n, K]`` with K ≥ k, target ``[n]``. With k = 1 it is the multi-class hinge.

    Reference: Lapin, Hein and Schiele, Top-k Multiclass SVM, NeurIPS 2015 (their top-k hinge α).

    >>> TopKHinge(2)(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]))
    tensor(0.2500)
    """

    def __init__(self, k: int, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        if k < 1:
            raise ValueError(f"k is {k}; expected at least 1")
        self.k = k

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """As every loss over classes, with at least k of them."""
        scores, target = super().prepare(scores, target)
        if scores.shape[1] < self.k:
            raise ValueError(f"TopKHinge(k={self.k}) got scores of {scores.shape[1]} classes; expected at least k")
        return scores, target

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """The k classes of the largest augmented scores, or 0 where their mean margin is negative."""
        y = one_hot(scores, target)
        chosen = (scores + 1 - y).topk(self.k, dim=1).indices
        in_T = torch.zeros_like(scores).scatter_(1, chosen, 1 / self.k)
        atom = Atom(in_T - y, (in_T * (1 - y)).sum(1))
        return atom.where(atom.b(scores) > 0, Atom(torch.zeros_like(scores), torch.zeros_like(atom.offset)))

    def polytope(self, scores: Tensor, target: Tensor) -> Polytope:
        """The top-k simplex: 0 ≤ α_j ≤ σ/k with σ = Σ_j α_j ≤ 1; s = α − σ e_y, c = Σ_{j ≠ y} α_j."""
        cp = load("cvxpy", extra="qp")
        alpha = cp.Variable(tuple(scores.shape), nonneg=True)
        y = one_hot(scores, target).cpu().numpy()
        total = cp.sum(alpha, axis=1, keepdims=True) @ (y * 0 + 1)[:1]
        return Polytope(
            (alpha - cp.multiply(y, total),),
            cp.sum(cp.multiply(1 - y, alpha), axis=1),
            [alpha <= total / self.k, total <= 1],
        )

    def extra_repr(self) -> str:
        """With k."""
        return f"k={self.k}, {super().extra_repr()}"
