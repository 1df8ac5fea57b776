"""What ``step()`` costs in the diagonal metric, compared with Adam's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import Options, spread, write
from benchmarks.step import LISTS, parameters
from proxsvm import ProxOptimizer
from proxsvm.losses import CrossEntropy
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW

OPTIONS: dict[str, Any] = {"lr": 1e-3, "weight_decay": 1e-2}


def steps(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], Any]]:
    """A step of AdamW and of SingleStepFW, each on parameters of its own."""
    value = torch.tensor(0.01)
    made: dict[str, Callable[[], Any]] = {
        "AdamW fused": torch.optim.AdamW(parameters(shapes), fused=True, **OPTIONS).step,
        "AdamW foreach": torch.optim.AdamW(parameters(shapes), foreach=True, **OPTIONS).step,
    }
    for name, momentum in (("SingleStepFW, Diagonal()", 0.9), ("SingleStepFW, Diagonal(), no momentum", 0.0)):
        own = ProxOptimizer(
            CrossEntropy(), SingleStepFW(), parameters(shapes), momentum=momentum, metric=Diagonal(), **OPTIONS
        )
        made[name] = lambda own=own: own.step(loss=value)
    return made


def main(options: Options) -> None:
    rows = []
    for which, shapes in LISTS.items():
        seconds = spread(steps(shapes), 5 if options.quick else 25, inner=3 if len(shapes) == 116 else 30, warm_up=2)
        for optimizer, (low, median, high) in seconds.items():
            rows.append(
                {
                    "parameters": which,
                    "optimizer": optimizer,
                    "ms": 1e3 * median,
                    "quartiles": f"{1e3 * low:.3g} to {1e3 * high:.3g}",
                    "/ AdamW foreach": median / seconds["AdamW foreach"][1],
                    "/ AdamW fused": median / seconds["AdamW fused"][1],
                }
            )
    write(options, "step_metric", rows, "Weight decay everywhere.")
