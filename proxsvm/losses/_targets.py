"""What losses share whose target has the scores' shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import integer_target, require, tensor_target
from proxsvm.losses.base import ConvexLoss, PiecewiseLinearLoss, Reduction


class RegressionLoss(ConvexLoss):
    """A loss of predictions and real targets of the same shape, ``[n, ...]``."""

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Check that scores and target have the same shape: broadcasting would silently pair the wrong outputs."""
        scores, target = super().prepare(scores, target)
        target = tensor_target(type(self).__name__, target)
        if target.shape != scores.shape:
            raise ValueError(
                f"{type(self).__name__} got predictions of shape {tuple(scores.shape)} and a target of shape "
                f"{tuple(target.shape)}; expected the same shape (perhaps predictions.squeeze(1))"
            )
        return scores, target.to(scores.dtype)


class BandLoss(RegressionLoss):
    """A regression loss for which errors of at most ``epsilon`` do not count."""

    options = ("epsilon",)

    def __init__(self, epsilon: float = 0.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        if not 0 <= epsilon < float("inf"):
            raise ValueError(f"epsilon is {epsilon}; expected a band of a finite width, 0 or more")
        self.epsilon = epsilon


class BinaryLoss(PiecewiseLinearLoss):
    """A loss of scores and labels 0 and 1 of the same shape, ``[n, ...]``; ``ignore_index`` labels are left out."""

    options: tuple[str, ...] = ("ignore_index",)

    def __init__(self, *, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.ignore_index = ignore_index

    def prepare(self, scores: Any, target: Any) -> tuple[Tensor, Tensor]:
        """The score of an ignored label becomes 0."""
        scores, target = super().prepare(scores, target)
        name = type(self).__name__
        y = integer_target(name, target, scores.shape, hint=", that of the scores (perhaps scores.squeeze(1))")
        valid = y != self.ignore_index
        require((y == 0) | (y == 1) | ~valid, f"{name} got a label that is not 0, 1 or the ignored {self.ignore_index}")
        return torch.where(valid, scores, 0.0), y


def summed(values: Tensor) -> Tensor:
    """The sum over the outputs of each sample, ``[n]``."""
    return values.reshape(len(values), -1).sum(1)
