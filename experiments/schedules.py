"""Schedules by name: the hand-designed part that proxsvm does not need."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from experiments.config import Config, known

FALLS: dict[str, tuple[float, list[float]]] = {  # the factor, and after which fractions of the epochs
    "wrn-paper": (0.2, [0.3, 0.6, 0.9]),  # 60, 120 and 180 of 200 epochs: the paper's text
    "wrn-jobs": (0.2, [0.3, 0.6, 0.8]),  # 60, 120 and 160: the authors' published jobs, and the WRN's authors
    "densenet": (0.1, [0.5, 0.75]),  # 150 and 225 of 300
}
SCHEDULES = [*FALLS, "snli", "cosine"]
WARM_UP = 0.05  # fraction of the steps


def cosine(part: float) -> float:
    """The factor of the learning rate after a ``part`` of all steps: a linear warm-up, then half a cosine to 0.

    >>> [round(cosine(part), 3) for part in (0.0, 0.025, 0.05, 0.525, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if part < WARM_UP:
        return part / WARM_UP
    return (1 + math.cos(math.pi * (part - WARM_UP) / (1 - WARM_UP))) / 2


class Schedule:
    """A schedule by name; ``snli``: divide by five whenever the validation accuracy has not improved."""

    def __init__(self, config: Config, optimizer: Optimizer) -> None:
        self.name, self.lr, self.optimizer = known("schedule", config.schedule, SCHEDULES), config.lr, optimizer
        self.scheduler: Any = None
        if self.name == "snli":
            options: dict[str, Any] = {"mode": "max", "factor": 0.2, "patience": 0, "threshold": 0.0}
            self.scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        elif self.name in FALLS:
            factor, parts = FALLS[self.name]
            falls = [int(part * config.epochs) for part in parts]
            self.scheduler = lr_scheduler.MultiStepLR(optimizer, falls, gamma=factor)

    def before_step(self, part: float) -> None:
        """``part`` of all steps are done."""
        if self.name == "cosine":
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * cosine(part)

    def after_epoch(self, accuracy: float) -> None:
        if self.name == "snli":
            self.scheduler.step(accuracy)
        elif self.scheduler is not None:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scheduler is None else self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state)
