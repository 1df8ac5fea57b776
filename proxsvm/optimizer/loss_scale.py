"""What a GradScaler has done to the loss and to the gradients."""

from __future__ import annotations

import sys
from typing import NamedTuple

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer


class LossScale(NamedTuple):
    """The factors that the recorded value and the gradients still carry (None is 1), and whether one is infinite.

    fp16 training multiplies the loss by S before ``backward()``, so the record is S · value. ``scaler.step()`` leaves
    S · g to an optimizer that declares ``_step_supports_amp_scaling``; after an explicit ``scaler.unscale_()``, as
    everyone calls it who clips, the gradients are g but the record is still S · value.
    """

    of_value: Tensor | None
    of_gradients: Tensor | None
    found_inf: Tensor | None

    @classmethod
    def of(cls, optimizer: Optimizer) -> LossScale:
        """What stands while ``GradScaler.step()`` runs, and nothing at any other time."""
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
        # After unscale_() the scaler passes no scale on, and its state is all there is to know it from. The setter's
        # caller is the scaler's own step(), so no user has to hand the scaler over.
        self._found_inf: Tensor | None = found
        self._unscaled_by: Tensor | None = None
        scaler = sys._getframe(1).f_locals.get("self")
        if isinstance(scaler, GradScaler):
            stage = scaler._per_optimizer_states[id(self)]["stage"]
            if stage.name == "UNSCALED":
                self._unscaled_by = scaler._get_scale_async()

    @found_inf.deleter
    def found_inf(self) -> None:
        self._found_inf = self._unscaled_by = None

    def forget_scale(self) -> None:
        """To be called before an error is raised: ``GradScaler.step()`` cleans up only after a step that returns."""
        self.__dict__.pop("grad_scale", None)
        del self.found_inf
