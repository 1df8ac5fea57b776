"""The cross-entropy of the softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import one_hot, require
from proxsvm.losses._classes import ClassLoss, is_standard
from proxsvm.losses.base import Origin, Reduction
from proxsvm.losses.hulls import EntropySimplex
from proxsvm.losses.smooth_loss import SmoothLoss


class CrossEntropy(ClassLoss, SmoothLoss):
    """ℓ(u; y) = log Σ_k exp(u_k) − u_y: ``torch.nn.CrossEntropyLoss``, with its options, as a loss with a dual.

    Atoms: s = softmax(u) − e_y, c = the entropy of softmax(u). Scores ``[n, K]`` or ``[n, K, d1, ...]``; target: class
    indices ``[n]`` or ``[n, d1, ...]``, or class probabilities t ≥ 0 of the scores' shape. In general it is

        ℓ(u; t) = −Σ_k q_k log softmax(u)_k,   q = weight · t,   s = m softmax(u) − q,   c = m · entropy,   m = Σ_k q_k

    and at least m times the entropy of q/m, from which the dual starts. A score of −∞ masks a class; the loss is
    infinite where q gives that class some mass, as ``label_smoothing`` does for all of them.

    Args:
        label_smoothing: ε, for t = (1 − ε) e_y + ε/K.
        options: ``weight``, ``ignore_index`` and ``reduction``, as in torch.

    >>> CrossEntropy()(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(0.6931)
    """

    options = (*ClassLoss.options, "label_smoothing")

    def __init__(self, *, label_smoothing: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; expected a number in [0, 1]")
        self.label_smoothing = label_smoothing

    def forward(self, scores: Any, target: Any, sample_weight: Tensor | None = None) -> Tensor:
        """``F.cross_entropy`` itself, where scores and target have its form; the general path says what is wrong."""
        if type(self) is CrossEntropy and sample_weight is None and is_standard(scores, target):
            try:
                value = self.formula(scores, target, self.reduction)
            except (IndexError, ValueError, RuntimeError):
                return super().forward(scores, target)
            if value.requires_grad and self.reduction != "none":
                value.origin = Origin(self, scores, target)  # type: ignore[attr-defined]
            return value
        return super().forward(scores, target, sample_weight)

    def formula(self, scores: Tensor, target: Tensor, reduction: Reduction = "none") -> Tensor:
        """Torch's own kernel; with probabilities there is no class to ignore."""
        weight = None if self.weight is None else self.weight.to(scores)
        ignore = -100 if target.is_floating_point() else self.ignore_index
        return F.cross_entropy(scores, target, weight, None, ignore, None, reduction, self.label_smoothing)

    def soft(self, target: Tensor, grid: torch.Size, K: int) -> Tensor:
        shape, expected = tuple(target.shape), (*grid[:1], K, *grid[1:])
        if shape not in (expected, (grid.numel(), K)):
            given = f"CrossEntropy got class probabilities of shape {shape}"
            raise ValueError(f"{given}; expected that of the scores, {expected}")
        require(target >= 0, "CrossEntropy got class probabilities below 0: the loss would not be convex")
        return target if target.dim() == 2 else target.movedim(1, -1).reshape(-1, K)

    def _has_mass(self, scores: Tensor, target: Tensor) -> Tensor:
        """Where q > 0: a masked class to which the target gives some mass makes the loss infinite."""
        return self.hull(scores, target).q > 0

    def hull(self, scores: Tensor, target: Tensor) -> EntropySimplex:
        """The simplex of the classes under the entropy, with q = weight · t; 0 for a sample that is ignored."""
        t, K = target.to(scores.dtype), scores.shape[1]
        if not target.is_floating_point():
            t = one_hot(scores, self.classes(scores, target), K) * (target != self.ignore_index)[:, None]
        if self.label_smoothing:
            t = torch.lerp(t, t.sum(1, keepdim=True) / K, self.label_smoothing)
        return EntropySimplex(t if self.weight is None else t * self.weight.to(scores))

    def lower_bound(self, scores: Tensor, target: Tensor) -> Tensor | None:
        """m times the entropy of q/m; 0 for a hard target."""
        if not target.is_floating_point() and not self.label_smoothing:
            return None
        return self.hull(scores, target).lift(torch.zeros_like(scores))

    def weights(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor] | None:
        """The class weights are in q; the mean divides by those of the true classes, or by n for probabilities."""
        if target.is_floating_point():
            return None
        counts = super().weights(scores, target)
        return None if counts is None else ((target != self.ignore_index).to(scores.dtype), counts[1])
