"""What ``step()`` alone costs, on the tensors of a WRN-40-4 and on 200 small tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.common import Options, interleaved, ratio, write
from experiments.models import WideResNet
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import CrossEntropy
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import SingleStepFW

Shapes = list[tuple[int, ...]]
LISTS: dict[str, Shapes] = {
    "WRN-40-4 (116 tensors, 8.9 M)": [tuple(p.shape) for p in WideResNet(40, 4).parameters()],
    "200 small tensors (109 k)": [(64,)] * 100 + [(32, 32)] * 100,
}
PLAIN: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
PAPER: dict[str, Any] = {**PLAIN, "memory": 0.0, "average": None, "metric": Euclidean()}
OURS: dict[str, dict[str, Any]] = {
    "Euclidean": PAPER,
    "Euclidean, average": {**PAPER, "average": 0.995},
    "Euclidean, fused=False": {**PAPER, "fused": False},
    "Diagonal": {**PAPER, "lr": 1e-3, "metric": Diagonal()},
    "Diagonal, average": {**PAPER, "lr": 1e-3, "metric": Diagonal(), "average": 0.995},
}


def parameters(shapes: Shapes) -> list[nn.Parameter]:
    """Seeded parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=generator) / 20) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator) / 100
    return made


def ours(shapes: Shapes, **options: Any) -> Callable[[], Any]:
    """A step of SingleStepFW."""
    optimizer, value = ProxOptimizer(CrossEntropy(), SingleStepFW(), parameters(shapes), **options), torch.tensor(0.01)
    return lambda: optimizer.step(loss=value)


def torchs(shapes: Shapes) -> dict[str, Callable[[], Any]]:
    """A step of torch's optimizers."""
    return {
        f"{kind.__name__} {how}": kind(parameters(shapes), **given, **{how: True}).step
        for kind, given in ((torch.optim.SGD, {**PLAIN, "nesterov": True}), (torch.optim.AdamW, {"lr": 1e-3}))
        for how in ("fused", "foreach")
    }


def peers(shapes: Shapes) -> dict[str, Callable[[], Any]]:
    """A step of the packages of the extra ``peers``."""
    value = torch.tensor(0.01)
    momo = load("momo", extra="peers").Momo(parameters(shapes), lr=0.1, weight_decay=1e-4)
    # The gradients never change: with a larger growth rate d would explode.
    prodigy = load("prodigyopt", extra="peers").Prodigy(parameters(shapes), weight_decay=1e-4, growth_rate=1.0)
    free = load("schedulefree", extra="peers").SGDScheduleFree(parameters(shapes), lr=0.1, weight_decay=1e-4)
    free.train()
    return {"MoMo": lambda: momo.step(loss=value), "Prodigy": prodigy.step, "schedule-free SGD": free.step}


def main(options: Options) -> None:
    rows = []
    for which, shapes in LISTS.items():
        runs = torchs(shapes) | {name: ours(shapes, **given) for name, given in OURS.items()} | peers(shapes)
        inner = 3 if len(shapes) < 200 else 30
        times = interleaved(runs, options.rounds(25, quick=5), inner, warm_up=2)
        for name in runs:
            measured = {"ms": 1e3 * times[name].median, "interquartile": 1e3 * times[name].iqr}
            compared = {f"/ {to}": ratio(times, name, to) for to in ("SGD fused", "SGD foreach", "AdamW fused")}
            rows.append({"parameters": which, "optimizer": name, **measured, **compared})
    write(options, "step", rows, "The update alone, momentum 0.9 and weight decay; Euclidean and Diagonal are ours.")
