"""What the losses over K classes share: the form of their input, and the samples that count."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import integer_target, known, parts, require, tensor_target
from proxsvm.losses.base import ConvexLoss, Reduction

MASKED = -1e7  # for −∞: so low that the class is never chosen, but no lower, because a QP loses digits to large numbers


class ClassLoss(ConvexLoss):
    """A loss of scores ``[n, K]`` and class indices ``[n]``, or ``[n, K, d1, ...]`` and ``[n, d1, ...]``.

    A score of −∞ masks a class: it is never chosen. If it is the true class, the loss is infinite, as torch's is.
    The options are those of ``torch.nn.CrossEntropyLoss``; the mean is the weighted mean.
    """

    options: tuple[str, ...] = ("weight", "ignore_index")
    weight: Tensor | None

    def __init__(self, *, weight: Any = None, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        if weight is not None:
            weight = torch.as_tensor(weight)
            if weight.dim() != 1 or not bool((weight >= 0).all() & weight.isfinite().all()):
                raise ValueError(f"weight has shape {tuple(weight.shape)}; expected [K] finite numbers ≥ 0")
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, scores: Any, target: Any, sample_weight: Tensor | None = None) -> Tensor:
        """As for every loss; where every pixel is a sample, weights and values have the shape of the pixels."""
        if self.weight is None and sample_weight is None and self._is_plain(scores, target):
            return self._value(scores, target, 1 / len(scores) if self.reduction == "mean" else 1.0)
        if not isinstance(scores, Tensor) or scores.dim() <= 2:
            return super().forward(scores, target, sample_weight)
        grid = scores.shape[:1] + scores.shape[2:]
        if isinstance(sample_weight, Tensor) and sample_weight.shape == grid:
            sample_weight = sample_weight.reshape(-1)
        value = super().forward(scores, target, sample_weight)
        return value.reshape(grid) if self.reduction == "none" else value

    def _is_plain(self, scores: Any, target: Any) -> bool:
        """Whether the input is in standard form and every sample counts, as most of the time."""
        if not is_standard(scores, target):
            return False
        low, high = (known(x) for x in target.aminmax())
        return low is not None and 0 <= low <= high < scores.shape[1] and not low <= self.ignore_index <= high

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Check that the scores are ``[n, K]`` and the target ``[n]`` integers in [0, K), or to be ignored."""
        scores, target = super().prepare(scores, target)
        name = type(self).__name__
        if not isinstance(scores, Tensor) or scores.dim() < 2:
            given = tuple(parts(scores)[0].shape)
            raise ValueError(f"{name} got scores of shape {given}; expected one tensor [n, K] or [n, K, d1, ...]")
        K, grid = scores.shape[1], scores.shape[:1] + scores.shape[2:]
        if self.weight is not None and self.weight.shape != (K,):
            raise ValueError(f"weight is for {len(self.weight)} classes, but the scores have {K}")
        if scores.dim() > 2:
            scores = scores.movedim(1, -1).reshape(-1, K)
        if tensor_target(name, target).is_floating_point() or target.dtype == torch.bool:  # bools may be one-hot
            return scores, self.soft(target.to(scores.dtype), grid, K)
        y = integer_target(name, target, grid).reshape(-1)
        low, high = (known(x) for x in y.aminmax())
        if low is None or low < 0 or high >= K:
            ok = (y >= 0) & (y < K) | (y == self.ignore_index)
            ignored = f"(ignore_index is {self.ignore_index})"
            require(ok, f"{name} got a class index outside [0, {K}), the K of the scores {ignored}")
        return scores, y

    def soft(self, target: Tensor, grid: torch.Size, K: int) -> Tensor:
        """Class probabilities as ``[n, K]``; a loss for which they make sense overrides it."""
        raise TypeError(
            f"{type(self).__name__} got a target of {target.dtype}; expected class indices: target.argmax(1) if it is "
            "one-hot; CrossEntropy takes probabilities; for mixup add lam * loss(u, y_a) and (1 - lam) * loss(u, y_b)"
        )

    def expand(self, scores: Tensor, target: Tensor) -> Tensor:
        """Scores of −∞ as very low finite ones, except for the true classes: 0 · ∞ would be NaN."""
        low = known(scores.detach().amin())
        if low is not None and low > -torch.inf:
            return scores
        return scores.masked_fill((scores.detach() == -torch.inf) & ~self._has_mass(scores, target), MASKED)

    def _has_mass(self, scores: Tensor, target: Tensor) -> Tensor:
        """Which classes a sample must not mask, ``[n, K]``: the true one, unless the sample is ignored."""
        at = self.classes(scores, target)[:, None]
        none = torch.zeros_like(scores, dtype=torch.bool)
        return none.scatter(1, at, target[:, None] != self.ignore_index)

    def classes(self, scores: Tensor, target: Tensor) -> Tensor:
        """y as a valid index for every sample, ignored ones included."""
        return target.clamp(0, scores.shape[1] - 1)

    def weights(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
        """The weight of each sample's class, and 0 where it is ignored."""
        counts = target != self.ignore_index
        if self.weight is None and known(counts.all()):
            return None
        each = counts.to(scores.dtype)
        if self.weight is not None:
            each = each * self.weight.to(scores)[self.classes(scores, target)]
        return each, each


def is_standard(scores: Any, target: Any) -> bool:
    """Whether these are scores ``[n, K]`` of at least single precision, and class indices ``[n]``."""
    if not (isinstance(scores, Tensor) and isinstance(target, Tensor) and scores.layout is torch.strided):
        return False
    types = scores.dtype in (torch.float32, torch.float64) and target.dtype is torch.long
    return types and scores.dim() == 2 and scores.numel() > 0 and target.shape == scores.shape[:1]


def as_cost(cost: Tensor) -> Tensor:
    """Δ as a ``[K, K]`` matrix indexed (predicted, true), checked: finite, non-negative, and Δ(y, y) = 0.

    >>> as_cost(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))[0, 1]        # predicting 0 where 1 is true costs 2
    tensor(2.)
    """
    cost = torch.as_tensor(cost)
    if cost.dim() != 2 or cost.shape[0] != cost.shape[1]:
        raise ValueError(f"cost has shape {tuple(cost.shape)}; expected [K, K], indexed (predicted, true)")
    if not bool(((cost >= 0) & (cost < torch.inf)).all()) or bool(cost.diagonal().any()):
        raise ValueError("cost must be finite and non-negative with a zero diagonal: Δ(y, y) = 0")
    return cost
