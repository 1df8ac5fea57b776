"""The cost of watching the criterion, and of clearing the record in ``zero_grad()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.common import Options, spread, write
from benchmarks.step import SMALL, parameters
from experiments.models import WideResNet
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW

SCORES = [(128, 10), (128, 1000), (4096, 100)]


def differentiate(watched: bool, shape: tuple[int, int]) -> Callable[[], None]:
    """Forward and backward of the criterion, with or without an optimizer that watches it."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(shape, generator=generator, requires_grad=True)
    target = torch.randint(shape[1], shape[:1], generator=generator)
    criterion = MultiClassHinge(smooth=True)
    optimizer = ProxOptimizer(criterion, SingleStepFW(), [scores]) if watched else None

    def run() -> None:
        scores.grad = None
        if optimizer is not None:
            optimizer._record.clear()
        criterion(scores, target).backward()

    return run


Make = Callable[[list[nn.Parameter]], Any]


def clear(make: Make, shapes: list[tuple[int, ...]], to_none: bool) -> Callable[[], None]:
    """``zero_grad()``, after the gradients were put back."""
    params = parameters(shapes)
    optimizer, grads = make(params), [p.grad for p in params]

    def run() -> None:
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        optimizer.zero_grad(to_none)

    return run


def main(options: Options) -> None:
    """Time the criterion with and without the hook, and ``zero_grad()`` against SGD's."""
    repeats = 7 if options.quick else 25
    rows = []

    def add(what: str, without: Callable[[], None], with_it: Callable[[], None]) -> None:
        runs = {"without": without, "with": with_it}
        seconds = spread(runs, repeats=repeats, inner=20, warm_up=2)
        row: dict[str, Any] = {"what": what}
        for name, (low, median, high) in seconds.items():
            row[f"{name}, µs"] = 1e6 * median
            row[f"quartiles {name}"] = f"{1e6 * low:.4g} to {1e6 * high:.4g}"
        rows.append({**row, "added, µs": 1e6 * (seconds["with"][1] - seconds["without"][1])})

    for shape in SCORES:
        add(f"the hook, scores {list(shape)}", differentiate(False, shape), differentiate(True, shape))
    lists = {"WRN-40-4": [tuple(p.shape) for p in WideResNet(40, 4).parameters()], "200 small tensors": SMALL}
    for name, shapes in lists.items():
        for to_none in (True, False):
            add(
                f"zero_grad(set_to_none={to_none}), {name}",
                clear(lambda p: torch.optim.SGD(p, lr=0.1), shapes, to_none),
                clear(lambda p: ProxOptimizer(MultiClassHinge(), SingleStepFW(), p), shapes, to_none),
            )
    note = "Forward and backward of the smoothed hinge, unwatched and watched; SGD's zero_grad() and ProxOptimizer's."
    write(options, "hook", rows, note)
