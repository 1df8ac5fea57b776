"""What a GradScaler has done to the loss and to the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from proxsvm.optimizer.messages import UNSCALED


class LossScale(NamedTuple):
    """The factor S that the recorded value and the gradients carry (None is 1), and whether a gradient is infinite.

    fp16 training multiplies the loss by S before ``backward()``. Around the step of an optimizer that declares
    ``_step_supports_amp_scaling``, ``GradScaler.step()`` sets ``grad_scale`` to S and ``found_inf``. After
    ``scaler.unscale_()`` the first is None: the gradients are unscaled, the record is not, and nobody tells S.
    """

    scale: Tensor | None = None
    found_inf: Tensor | None = None

    def require_known(self) -> None:
        """Raise RuntimeError if the scale of the recorded value is unknown."""
        if self.found_inf is not None and self.scale is None:
            raise RuntimeError(UNSCALED)


@contextmanager
def loss_scale(optimizer: Optimizer) -> Iterator[LossScale]:
    """The scale during a step. The scaler deletes it only after a step that returns, so an error has to."""
    try:
        yield LossScale(getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None))
    except BaseException:
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        raise
