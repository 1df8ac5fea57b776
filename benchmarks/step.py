"""What ``step()`` costs: SingleStepFW, torch's optimizers and the modern ones, on two lists of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.common import Options, figure, spread, write
from experiments.models import WideResNet
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW

NESTEROV: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
OURS = {"SingleStepFW": None, "SingleStepFW fused=True": True, "SingleStepFW fused=False": False}
SMALL = [(64,)] * 100 + [(32, 32)] * 100


def parameters(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    """Seeded parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=generator) / 20) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator) / 100
    return made


def ours_and_sgd(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], Any]]:
    """A step of SGD and of SingleStepFW, in all their variants."""
    value = torch.tensor(0.01)
    steps: dict[str, Callable[[], Any]] = {
        "SGD foreach": torch.optim.SGD(parameters(shapes), nesterov=True, foreach=True, **NESTEROV).step,
        "SGD fused": torch.optim.SGD(parameters(shapes), nesterov=True, fused=True, **NESTEROV).step,
    }
    for name, fused in OURS.items():
        dfw = ProxOptimizer(MultiClassHinge(), SingleStepFW(), parameters(shapes), fused=fused, **NESTEROV)
        steps[name] = lambda dfw=dfw: dfw.step(loss=value)
    return steps


def optimizers(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], Any]]:
    """A step of each, on parameters of its own."""

    def fresh() -> list[nn.Parameter]:
        return parameters(shapes)

    value = torch.tensor(0.01)
    steps = {
        **ours_and_sgd(shapes),
        "SGD loop": torch.optim.SGD(fresh(), nesterov=True, foreach=False, **NESTEROV).step,
        "Adam fused": torch.optim.Adam(fresh(), weight_decay=1e-4, fused=True).step,
    }
    try:
        momo = load("momo", extra="peers").Momo(fresh(), lr=0.1, weight_decay=1e-4)
        steps["MoMo"] = lambda: momo.step(loss=value)
        steps["Prodigy"] = (
            load("prodigyopt", extra="peers").Prodigy(fresh(), weight_decay=1e-4, growth_rate=1.0).step
        )  # the gradients never change: d would explode
        free = load("schedulefree", extra="peers").SGDScheduleFree(fresh(), lr=0.1, weight_decay=1e-4)
        free.train()
        steps["schedule-free SGD"] = free.step
        alig = load("pytorch_optimizer", extra="peers").AliG(fresh(), max_lr=0.1, momentum=0.9)
        steps["ALI-G"] = lambda: alig.step(lambda: value)
    except ModuleNotFoundError as error:
        print(f"left out: {error}")
    return steps


LISTS = {
    "WRN-40-4 (116 tensors, 8.9 M)": [tuple(p.shape) for p in WideResNet(40, 4).parameters()],
    "200 small tensors (109 k)": SMALL,
}
Make = Callable[[list[tuple[int, ...]]], dict[str, Callable[[], Any]]]


def compare(options: Options, name: str, make: Make) -> list[dict[str, Any]]:
    """Time a step of every optimizer on the tensors of a WRN-40-4 and on 200 small tensors."""
    rows = []
    for which, shapes in LISTS.items():
        inner = 3 if len(shapes) == 116 else 30
        seconds = spread(make(shapes), repeats=5 if options.quick else 25, inner=inner, warm_up=2)
        for optimizer, (low, median, high) in seconds.items():
            rows.append(
                {
                    "parameters": which,
                    "optimizer": optimizer,
                    "ms": 1e3 * median,
                    "quartiles": f"{1e3 * low:.3g} to {1e3 * high:.3g}",
                    "/ SGD foreach": median / seconds["SGD foreach"][1],
                    "/ SGD fused": median / seconds["SGD fused"][1],
                }
            )
    write(options, name, rows, "Nesterov momentum and weight decay where the optimizer has them.")
    return rows


def main(options: Options) -> None:
    """SGD and SingleStepFW alone, then together with all others."""
    compare(options, "step_alone", ours_and_sgd)
    rows = compare(options, "step", optimizers)

    def draw(_: Any, axes: Any) -> None:
        for panel, name in zip(axes, LISTS, strict=True):
            chosen = sorted((r for r in rows if r["parameters"] == name), key=lambda r: r["ms"], reverse=True)
            colors = ["#d95f02" if r["optimizer"].startswith("SingleStepFW") else "#999999" for r in chosen]
            panel.barh([r["optimizer"] for r in chosen], [r["ms"] for r in chosen], color=colors)
            panel.set(title=name, xlabel="milliseconds per step")

    figure(options, "step", draw, ncols=2, figsize=(11, 4))
