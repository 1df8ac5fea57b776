"""The report of a step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from proxsvm._numbers import Number, to_tensor


class StepReport(NamedTuple):
    """What the last step did, as 0-dim tensors on the device: reading one synchronises."""

    gamma: Tensor
    loss: Tensor
    dual: Tensor
    gap: Tensor | None
    steps: int


def report_of(gamma: Number, loss: Tensor, dual: Number, gap: Number | None, steps: int) -> StepReport:
    """The same values, as tensors like the loss."""
    known = None if gap is None else to_tensor(gap, loss)
    return StepReport(to_tensor(gamma, loss), loss, to_tensor(dual, loss), known, steps)
