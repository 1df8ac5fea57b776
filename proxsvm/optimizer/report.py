"""The report of a step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class StepReport(NamedTuple):
    """What the last step did, as 0-dim tensors on the device: reading one synchronises."""

    gamma: Tensor
    loss: Tensor
    dual: Tensor
    gap: Tensor | None
    steps: int
