"""The loss value that a step's gradients belong to."""

from __future__ import annotations

import math
from typing import NamedTuple, SupportsFloat

import torch
from torch import Tensor

from proxsvm._kernels.tensors import accumulator
from proxsvm._ranks import Ranks
from proxsvm.geometry import Number
from proxsvm.optimizer.messages import NEGATIVE, ZERO
from proxsvm.problem import GradientProblem

ROUNDING = 1e-5  # of float32, in which a value may have been read and passed back


class LossValue(NamedTuple):
    """The value that the gradients belong to and, where it is above 0, the loss's lower bound.

    >>> LossValue(torch.tensor(6.0), torch.tensor(2.0)).plus(torch.tensor(1.0))
    LossValue(value=tensor(7.), floor=tensor(2.))
    """

    value: Tensor
    floor: Tensor | None = None

    def plus(self, term: Tensor | None) -> LossValue:
        """With a ``term`` that was not recorded."""
        return self if term is None else self.replaced(self.value + term.to(self.value))

    def on(self, grad: Tensor, scale: Tensor | None) -> LossValue:
        """On the device of ``grad`` and in the dtype of its norms, without the loss scale that it was recorded with."""
        value = self.value.to(device=grad.device, dtype=accumulator(grad.dtype))
        floor = None if self.floor is None else self.floor.to(value)
        if scale is None:
            return LossValue(value, floor)
        scale = scale.to(value)
        return LossValue(value / scale, None if floor is None else floor / scale)

    def replaced(self, given: Tensor) -> LossValue:
        """With the ``given`` value. The floor is valid if that is the recorded value, or terms ≥ 0 were added."""
        given = given.to(self.value)
        kept = given >= self.value * (1 - ROUNDING)
        return LossValue(given, None if self.floor is None else torch.where(kept, self.floor, 0.0))

    def averaged(self, ranks: Ranks | None) -> LossValue:
        """The averages over the ranks, of which any may have a floor."""
        if ranks is None:
            return self
        floor = torch.zeros_like(self.value) if self.floor is None else self.floor
        value, floor = ranks.mean([torch.stack([self.value, floor])])[0]
        return LossValue(value, floor)


def given_value(loss: Number) -> Tensor:
    """The value that was passed to ``step(loss=...)``, as a 0-dim tensor."""
    real = not loss.is_complex() if isinstance(loss, Tensor) else isinstance(loss, SupportsFloat)
    if isinstance(loss, str) or not real:
        raise TypeError(f"loss is {loss!r}; expected a real number, or a tensor of one")
    given = loss.detach() if isinstance(loss, Tensor) else torch.as_tensor(loss, dtype=torch.float64)
    if given.numel() != 1:
        raise ValueError(f"loss is a tensor of shape {tuple(given.shape)}; expected one value")
    if _readable(given) and -math.inf < float(given) < 0:
        raise ValueError(f"loss is {float(given)}; expected 0 or more: the step-size comes from a loss ℓ ≥ 0")
    return given.reshape(()) if given.dim() else given


def value_fault(value: Tensor, problem: GradientProblem) -> str | None:
    """The warning about a recorded value that is not positive, though it has a gradient; None on an accelerator."""
    if not _readable(value) or value > 0 or not problem.products.x_x > ROUNDING:
        return None  # an accelerator would synchronise; a small value may have been rounded to 0
    return NEGATIVE if value < -ROUNDING else ZERO


def _readable(x: Tensor) -> bool:
    """Whether a value can be read without synchronising with a device or breaking a graph."""
    return type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling()
