"""What an average of the weights costs: ``step()`` with and without one, in both metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import Options, spread, write
from benchmarks.step import LISTS, NESTEROV, parameters
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean, Metric
from proxsvm.solvers import SingleStepFW

METRICS: dict[str, Metric] = {"Euclidean": Euclidean(), "Diagonal": Diagonal()}
AVERAGE = 0.995


def steps(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], Any]]:
    """A step of each kind, on parameters of its own."""
    value = torch.tensor(0.01)
    found: dict[str, Callable[[], Any]] = {}
    for name, metric in METRICS.items():
        for average in (None, AVERAGE):
            optimizer = ProxOptimizer(
                MultiClassHinge(), SingleStepFW(), parameters(shapes), metric=metric, average=average, **NESTEROV
            )
            found[f"{name}, {average}"] = lambda optimizer=optimizer: optimizer.step(loss=value)
    return found


def main(options: Options) -> None:
    rows = []
    for which, shapes in LISTS.items():
        inner = 3 if len(shapes) == 116 else 30
        seconds = spread(steps(shapes), repeats=5 if options.quick else 25, inner=inner, warm_up=2)
        for name in METRICS:
            without, with_one = (seconds[f"{name}, {average}"] for average in (None, AVERAGE))
            rows.append(
                {
                    "parameters": which,
                    "metric": name,
                    "ms without": 1e3 * without[1],
                    "ms with an average": 1e3 * with_one[1],
                    "quartiles": f"{1e3 * with_one[0]:.3g} to {1e3 * with_one[2]:.3g}",
                    "ratio": with_one[1] / without[1],
                }
            )
    write(options, "average", rows, "Momentum and weight decay; the aim is a ratio of at most 1.35.")
