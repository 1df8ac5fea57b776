"""The multi-class hinge of Weston and Watkins."""

from __future__ import annotations

from torch import Tensor

from proxsvm.extras import load
from proxsvm.losses.base import Atom, Polytope
from proxsvm.losses.classes import ClassLoss, one_hot


class WestonWatkinsHinge(ClassLoss):
    """ℓ(u; y) = Σ_{k ≠ y} max(0, 1 + u_k − u_y).

    Atoms: s = Σ_{k in A} (e_k − e_y), c = |A|, for every set A of wrong classes. Scores ``[n, K]``, target ``[n]``.
    It is K times ``torch.nn.MultiMarginLoss``, which divides by the number of classes.

    Reference: Weston and Watkins, Support vector machines for multi-class pattern recognition, ESANN 1999.

    >>> import torch
    >>> WestonWatkinsHinge()(torch.tensor([[1.0, 0.5, 2.0]]), torch.tensor([0]))
    tensor(2.5000)
    """

    def oracle(self, scores: Tensor, target: Tensor) -> Atom:
        """Every class within the margin."""
        margins = scores - scores.gather(1, target[:, None]) + 1
        active = (margins > 0).to(scores).scatter(1, target[:, None], 0)
        count = active.sum(1)
        return Atom(active.scatter(1, target[:, None], -count[:, None]), count)

    def polytope(self, scores: Tensor, target: Tensor) -> Polytope:
        """The box: 0 ≤ β_k ≤ 1 for k ≠ y; s = Σ_k β_k (e_k − e_y), c = Σ_k β_k."""
        cp = load("cvxpy", extra="qp")
        y = one_hot(scores, target).cpu().numpy()
        beta = cp.Variable(tuple(scores.shape), nonneg=True)
        count = cp.sum(beta, axis=1, keepdims=True) @ (y * 0 + 1)[:1]
        return Polytope((beta - cp.multiply(y, count),), cp.sum(beta, axis=1), [beta <= 1 - y])
