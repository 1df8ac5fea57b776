"""The multi-class hinge of Weston and Watkins."""

from __future__ import annotations

from torch import Tensor

from proxsvm._scores import one_hot
from proxsvm.losses._classes import ClassLoss
from proxsvm.losses.base import PiecewiseLinearLoss
from proxsvm.losses.hulls import Rivals


class WestonWatkinsHinge(ClassLoss, PiecewiseLinearLoss):
    """ℓ(u; y) = Σ_{k ≠ y} max(0, 1 + u_k − u_y): K times ``torch.nn.MultiMarginLoss``.

    Atoms: s = Σ_{k in A} (e_k − e_y), c = |A|, for every set A of wrong classes. Scores ``[n, K]``, target ``[n]``.
    Options ``weight``, ``ignore_index`` and ``reduction`` as in :class:`~proxsvm.losses.MultiClassHinge`.

    Reference: Weston and Watkins, Support vector machines for multi-class pattern recognition, ESANN 1999.

    >>> import torch
    >>> WestonWatkinsHinge()(torch.tensor([[1.0, 0.5, 2.0]]), torch.tensor([0]))
    tensor(2.5000)
    """

    def hull(self, scores: Tensor, target: Tensor) -> Rivals:
        y = self.classes(scores, target)
        return Rivals(y, 1 - one_hot(scores, y, scores.shape[1]))
