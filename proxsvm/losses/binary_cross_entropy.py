"""The cross-entropy of independent labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import known, require
from proxsvm.losses._classes import MASKED
from proxsvm.losses._targets import RegressionLoss, summed
from proxsvm.losses.base import Reduction
from proxsvm.losses.hulls import EntropyBox
from proxsvm.losses.smooth_loss import SmoothLoss


class BinaryCrossEntropy(RegressionLoss, SmoothLoss):
    """ℓ(u; y) = −Σ_j ω_j (π_j y_j log σ(u_j) + (1 − y_j) log(1 − σ(u_j))), summed over the m outputs of a sample.

    Atoms: s_j = (a_j + b_j) σ(u_j) − a_j with a = ω π y and b = ω (1 − y); c = Σ_j (a_j + b_j) times the entropy of
    σ(u_j). Scores are logits; scores and target ``[n, ...]`` have the same shape, the target is in [0, 1] (also bool or
    integer). A logit of −∞ rules a label out, +∞ makes it certain: no loss where that is right; where it is wrong, the
    loss is not finite, and the optimizer skips the step.
    It is m times ``torch.nn.BCEWithLogitsLoss``, which also averages over the outputs.

    Args:
        weight: ω, anything that broadcasts to the target; 1 if None.
        pos_weight: π, likewise.

    >>> BinaryCrossEntropy()(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
    tensor(1.3863)
    """

    options = ("weight", "pos_weight")
    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(self, *, weight: Any = None, pos_weight: Any = None, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        for name, given in (("weight", weight), ("pos_weight", pos_weight)):
            value = None if given is None else torch.as_tensor(given)
            if value is not None and not bool(((value >= 0) & (value < torch.inf)).all()):
                raise ValueError(f"{name} is {given}; expected finite numbers ≥ 0")
            self.register_buffer(name, value)

    def prepare(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        scores, target = super().prepare(scores, target)
        require((target >= 0) & (target <= 1), f"{type(self).__name__} got a target outside [0, 1]")
        for name, given in self.named_buffers():
            pairs = zip(given.shape[::-1], scores.shape[::-1], strict=False)
            if given.dim() > scores.dim() or any(size not in (1, full) for size, full in pairs):
                shapes = f"{tuple(given.shape)}; expected what broadcasts to {tuple(scores.shape)}"
                raise ValueError(f"{name} has shape {shapes}")
        return scores, target

    def expand(self, scores: Tensor, target: Tensor) -> Tensor:
        """Correct infinite scores as large finite ones: 0 · ∞ would be NaN. Wrong ones stay infinite."""
        u = scores.detach()
        if known(~u.isinf().any()):
            return scores
        off, on = (u == -torch.inf) & (target == 0), (u == torch.inf) & (target == 1)
        return scores.masked_fill(off, MASKED).masked_fill(on, -MASKED)

    def formula(self, scores: Tensor, target: Tensor) -> Tensor:
        weight, positive = (None if x is None else x.to(scores) for x in (self.weight, self.pos_weight))
        return summed(F.binary_cross_entropy_with_logits(scores, target, weight, None, None, "none", positive))

    def hull(self, scores: Tensor, target: Tensor) -> EntropyBox:
        omega, pi = (1.0 if x is None else x.to(scores) for x in (self.weight, self.pos_weight))
        return EntropyBox(omega * pi * target, omega * (1 - target))

    def lower_bound(self, scores: Tensor, target: Tensor) -> Tensor:
        """Σ_j (a_j + b_j) times the entropy of a_j / (a_j + b_j); 0 where y is 0 or 1."""
        return self.hull(scores, target).lift(torch.zeros_like(scores))
