"""What a GradScaler has done to the loss and to the gradients."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer


class LossScale(NamedTuple):
    """The factors that the recorded value and the gradients still carry (None is 1), and whether one is infinite.

    fp16 training multiplies the loss by S before ``backward()``, so the record is S · value. ``scaler.step()`` leaves
    S · g to an optimizer that declares ``_step_supports_amp_scaling``; after an explicit ``scaler.unscale_()``,
    as for clipping, the gradients are g but the record is still S · value.
    """

    of_value: Tensor | None
    of_gradients: Tensor | None
    found_inf: Tensor | None

    @classmethod
    def of(cls, optimizer: Optimizer) -> LossScale:
        """What holds while ``GradScaler.step()`` runs, and nothing at any other time."""
        gradients: Tensor | None = getattr(optimizer, "grad_scale", None)
        unscaled_by: Tensor | None = getattr(optimizer, "_unscaled_by", None)
        value = gradients
        if unscaled_by is not None:
            value = unscaled_by if gradients is None else unscaled_by * gradients
        return cls(value, gradients, getattr(optimizer, "_found_inf", None))


NO_SCALE = LossScale(None, None, None)


class Scalable(Optimizer):
    """An optimizer that a GradScaler can drive, and that knows the scale on both of the scaler's paths."""

    _step_supports_amp_scaling = True

    @property
    def found_inf(self) -> Tensor | None:
        """Set by ``GradScaler.step()`` around the optimizer's own: above 0 where a gradient is infinite or NaN."""
        found: Tensor | None = self.__dict__.get("_found_inf")
        return found

    @found_inf.setter
    def found_inf(self, found: Tensor) -> None:
        # After unscale_() the scaler passes no scale on; only its state has it. The setter's
        # caller is the scaler's own step(), so the user need not pass the scaler.
        self._found_inf: Tensor | None = found
        scaler = sys._getframe(1).f_locals.get("self")
        self._unscaled_by = unscaled_by(scaler, self) if isinstance(scaler, GradScaler) else None

    @found_inf.deleter
    def found_inf(self) -> None:
        self._found_inf = self._unscaled_by = None

    def forget_scale(self) -> None:
        """Call this before raising an error: ``GradScaler.step()`` cleans up only after a step that returns."""
        self.__dict__.pop("grad_scale", None)
        del self.found_inf


def unscaled_by(scaler: GradScaler, optimizer: Optimizer) -> Tensor | None:
    """The scale that ``scaler.unscale_(optimizer)`` has removed from the gradients; None where it was not called."""
    try:
        stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
        return scaler._get_scale_async() if stage.name == "UNSCALED" else None
    except (AttributeError, KeyError):  # private parts of torch; a scale that is passed on was not removed
        return None if getattr(optimizer, "grad_scale", None) is not None else torch.tensor(scaler.get_scale())
