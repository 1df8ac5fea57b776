"""What the regression losses share: the check of their input."""

from __future__ import annotations

from torch import Tensor

from proxsvm._scores import tensor_target
from proxsvm.losses.base import ConvexLoss


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


def per_sample(values: Tensor) -> Tensor:
    """The sum over the outputs of each sample, ``[n]``."""
    return values.reshape(len(values), -1).sum(1)
