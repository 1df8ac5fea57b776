"""What ``step()`` alone costs, on the tensors of a WRN-40-4 and on 200 small tensors; and what the criterion costs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import Options, interleaved, ratio, write
from experiments.models import WideResNet
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import SingleStepFW

Shapes = list[tuple[int, ...]]
Steps = dict[str, Callable[[], Any]]
LISTS: dict[str, Shapes] = {
    "WRN-40-4 (116 tensors, 8.9 M)": [tuple(p.shape) for p in WideResNet(40, 4).parameters()],
    "200 small tensors (109 k)": [(64,)] * 100 + [(32, 32)] * 100,
}
PLAIN: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}


def parameters(shapes: Shapes) -> list[nn.Parameter]:
    """Seeded parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=generator) / 20) for shape in shapes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator) / 100
    return made


def ours(shapes: Shapes, fused: bool | None = None) -> Steps:
    """A step of SingleStepFW, in each metric, without and with an average."""

    def step(**given: Any) -> Callable[[], Any]:
        given = {**PLAIN, "memory": 0.0, "average": None, "fused": fused, **given}
        optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), parameters(shapes), **given)
        value = torch.tensor(0.01)
        return lambda: optimizer.step(loss=value)

    return {
        "Euclidean": step(metric=Euclidean()),
        "Euclidean, average": step(metric=Euclidean(), average=0.995),
        "Diagonal": step(metric=Diagonal(), lr=1e-3),
        "Diagonal, average": step(metric=Diagonal(), lr=1e-3, average=0.995),
    }


def torchs(shapes: Shapes) -> Steps:
    return {
        f"{kind.__name__} {how}": kind(parameters(shapes), **given, **{how: True}).step
        for kind, given in ((torch.optim.SGD, {**PLAIN, "nesterov": True}), (torch.optim.AdamW, {"lr": 1e-3}))
        for how in ("fused", "foreach")
    }


def peers(shapes: Shapes) -> Steps:
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
        by_torch = {"Euclidean, fused=False": ours(shapes, fused=False)["Euclidean"]}
        runs = torchs(shapes) | ours(shapes) | by_torch | peers(shapes)
        times = interleaved(runs, options.rounds(25, quick=5), inner=3 if len(shapes) < 200 else 30, warm_up=2)
        for name in runs:
            measured = {"ms": 1e3 * times[name].median, "interquartile": 1e3 * times[name].iqr}
            compared = {f"/ {to}": ratio(times, name, to) for to in ("SGD fused", "SGD foreach", "AdamW fused")}
            rows.append({"parameters": which, "optimizer": name, **measured, **compared})
    write(options, "step", rows, "The update alone, momentum 0.9 and weight decay; Euclidean and Diagonal are ours.")


def criterion(options: Options) -> None:
    losses = [
        nn.CrossEntropyLoss(),
        nn.MultiMarginLoss(),
        CrossEntropy(),
        MultiClassHinge(),
        MultiClassHinge(smooth=True),
    ]
    names = [
        "CrossEntropyLoss",
        "MultiMarginLoss",
        "CrossEntropy()",
        "MultiClassHinge()",
        "MultiClassHinge(smooth=True)",
    ]
    rows = []
    for n, K in [(128, 10), (128, 1000), (4096, 100), (64, 100_000)]:
        scores, target = torch.randn(n, K, requires_grad=True), torch.randint(K, (n,))

        def both(loss: nn.Module, scores: Tensor = scores, target: Tensor = target) -> None:
            scores.grad = None
            loss(scores, target).backward()

        runs = {name: partial(both, loss) for name, loss in zip(names, losses, strict=True)}
        times = interleaved(runs, options.rounds(25, quick=5), inner=max(5, 300_000 // (n * K)), warm_up=1)
        ratios = {f"{name} /": ratio(times, name, names[0]) for name in names[1:]}
        rows.append({"scores": f"[{n}, {K}]", f"{names[0]}, µs": 1e6 * times[names[0]].median, **ratios})
    write(options, "criterion", rows, "Forward and backward; ratios to torch's CrossEntropyLoss.")
