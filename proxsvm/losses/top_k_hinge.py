"""The top-k hinge."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm._scores import one_hot
from proxsvm.losses._classes import ClassLoss
from proxsvm.losses.base import PiecewiseLinearLoss
from proxsvm.losses.hulls import Rivals


class TopKHinge(ClassLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = max(0, mean of the k largest of u_j − u_y + [j ≠ y]).

    Atoms: 0, and s = (1/k) Σ_{j in T} (e_j − e_y), c = |T without y| / k, for every T of k classes.
    Scores ``[n, K]`` with K ≥ k, target ``[n]``. With k = 1 it is the multi-class hinge.
    Options ``weight``, ``ignore_index`` and ``reduction`` as in :class:`~proxsvm.losses.MultiClassHinge`.

    Reference: Lapin, Hein and Schiele, Top-k Multiclass SVM, NeurIPS 2015 (their top-k hinge α).

    >>> import torch
    >>> TopKHinge(2)(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]))
    tensor(0.2500)
    """

    options = ("k", *ClassLoss.options)

    def __init__(self, k: int, **options: Any) -> None:
        super().__init__(**options)
        if not (k >= 1 and k == int(k)):
            raise ValueError(f"k is {k}; expected a whole number, at least 1")
        self.k = int(k)

    def hull(self, scores: Tensor, target: Tensor) -> Rivals:
        if scores.shape[1] < self.k:
            raise ValueError(f"TopKHinge(k={self.k}) got scores of {scores.shape[1]} classes; expected at least k")
        y = self.classes(scores, target)
        return Rivals(y, 1 - one_hot(scores, y, scores.shape[1]), self.k)
