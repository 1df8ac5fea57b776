"""What the losses over K classes share: the check of their input."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm.losses.base import PiecewiseLinearLoss, require


class ClassLoss(PiecewiseLinearLoss):
    """A loss of scores ``[n, K]`` and class indices ``[n]``."""

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Check that the scores are ``[n, K]`` and the target ``[n]`` integers in [0, K)."""
        scores, target = super().prepare(scores, target)
        name = type(self).__name__
        if scores.dim() != 2:
            raise ValueError(
                f"{name} got scores of shape {tuple(scores.shape)}; expected [n, K]: "
                "move further dimensions into the first"
            )
        if target.is_floating_point() or target.dtype == torch.bool:
            raise TypeError(
                f"{name} got a target of {target.dtype}; expected class indices (torch.long). "
                "For one-hot targets pass target.argmax(1)"
            )
        n, K = scores.shape
        if target.shape != (n,):
            raise ValueError(f"{name} got a target of shape {tuple(target.shape)}; expected [n] = ({n},)")
        target = target.long()
        _require_classes(scores, target, f"{name} got a class index outside [0, {K}), the K of the scores")
        return scores, target


def _require_classes(scores: Tensor, target: Tensor, message: str) -> None:
    """As :func:`require` for 0 ≤ y < K, by the check that torch's own gather makes: a quarter of the time."""
    if torch.compiler.is_compiling():
        require((target >= 0) & (target < scores.shape[1]), message)
        return
    try:
        scores.detach().gather(1, target[:, None])
    except RuntimeError as error:
        raise ValueError(message) from error


def as_cost(cost: Tensor) -> Tensor:
    """Δ as a ``[K, K]`` matrix indexed (predicted, true), checked: non-negative, and Δ(y, y) = 0.

    >>> as_cost(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))[0, 1]        # to say 0 where 1 is true costs 2
    tensor(2.)
    """
    cost = torch.as_tensor(cost)
    if cost.dim() != 2 or cost.shape[0] != cost.shape[1]:
        raise ValueError(f"cost has shape {tuple(cost.shape)}; expected [K, K], indexed (predicted, true)")
    if not bool((cost >= 0).all()) or bool(cost.diagonal().any()):
        raise ValueError("cost must be non-negative with a zero diagonal: Δ(y, y) = 0")
    return cost


def one_hot(scores: Tensor, target: Tensor) -> Tensor:
    """e_y for each sample, in the scores' dtype, ``[n, K]``; torch's own one_hot waits for the device."""
    return torch.zeros_like(scores).scatter_(1, target[:, None], 1)
