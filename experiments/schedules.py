"""Schedules by name: the hand-designed part that proxsvm does not need."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer

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
        self.epochs, self.best, self.factor = config.epochs, -math.inf, 1.0

    def before_step(self, part: float) -> None:
        """``part`` of all steps are done."""
        if self.name == "cosine":
            self.factor = cosine(part)
        elif self.name in FALLS:
            factor, parts = FALLS[self.name]
            self.factor = factor ** sum(int(part * self.epochs) >= int(fall * self.epochs) for fall in parts)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.factor

    def after_epoch(self, accuracy: float) -> None:
        if self.name == "snli" and not accuracy > self.best:
            self.factor /= 5
        self.best = max(self.best, accuracy)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "factor": self.factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.factor = state["best"], state["factor"]
