"""The top-k hinge."""

from __future__ import annotations

from torch import Tensor

from proxsvm.losses._classes import ClassLoss
from proxsvm.losses.base import PiecewiseLinearLoss, Reduction
from proxsvm.losses.hulls import TopKSimplex


class TopKHinge(ClassLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = max(0, mean of the k largest of u_j − u_y + [j ≠ y]).

    Atoms: 0, and s = (1/k) Σ_{j in T} (e_j − e_y), c = |T without y| / k, for every T of k classes.
    Scores ``[n, K]`` with K ≥ k, target ``[n]``. With k = 1 it is the multi-class hinge.

    Args:
        k: how many classes may be predicted.
        weight: as in :class:`~proxsvm.losses.MultiClassHinge`.
        ignore_index: likewise.
        reduction: likewise.

    Reference: Lapin, Hein and Schiele, Top-k Multiclass SVM, NeurIPS 2015 (their top-k hinge α).

    >>> import torch
    >>> TopKHinge(2)(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]))
    tensor(0.2500)
    """

    def __init__(
        self,
        k: int,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        if not (k >= 1 and k == int(k)):
            raise ValueError(f"k is {k}; expected a whole number, at least 1")
        self.k = int(k)

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """As for every loss over classes, with at least k of them."""
        scores, target = super().prepare(scores, target)
        if scores.shape[1] < self.k:
            raise ValueError(f"TopKHinge(k={self.k}) got scores of {scores.shape[1]} classes; expected at least k")
        return scores, target

    def hull(self, scores: Tensor, target: Tensor) -> TopKSimplex:
        """The top-k simplex."""
        return TopKSimplex(self.classes(scores, target), self.k, scores.shape[1])

    def extra_repr(self) -> str:
        """With k."""
        return f"k={self.k}, {super().extra_repr()}"
