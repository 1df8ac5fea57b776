"""A whole training step: forward, backward, update and average, against AdamW fused with torch's average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.common import Options, interleaved, mlp, ratio, write
from experiments.lm import GPT
from experiments.models import DenseNet, SentencePairBiLSTM, WideResNet
from proxsvm import ProxOptimizer
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import SingleStepFW

AVERAGE = 0.995
Network = tuple[Callable[[], nn.Module], tuple[Tensor, ...], Tensor]  # how to build it, its inputs, the targets
Make = Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]


def networks(n: int) -> dict[str, Network]:
    """Networks with a batch; the conv nets and the BiLSTM take ``n`` samples."""
    torch.manual_seed(0)
    images, classes, lengths = (torch.randn(n, 3, 32, 32),), torch.randint(10, (n,)), torch.randint(5, 20, (n,))
    pairs = (torch.randn(n, 20, 100), lengths, torch.randn(n, 20, 100), lengths)
    rows, labels, text = (torch.randn(128, 512),), torch.randint(10, (128,)), torch.randint(96, (16, 65))

    def gpt() -> nn.Module:
        return nn.Sequential(GPT(2, 4, 128, 64), nn.Flatten(0, 1))

    return {
        "MLP 4 × 512, batch 128": (lambda: mlp(512, 512, 512, 512, 512, 10), rows, labels),
        "GPT, 2 layers of 128": (gpt, (text[:, :-1],), text[:, 1:].flatten()),
        "WRN-10-1": (lambda: WideResNet(10, 1), images, classes),
        "WRN-16-4": (lambda: WideResNet(16, 4), images, classes),
        "DenseNet-22, growth 12": (lambda: DenseNet(22, 12), images, classes),
        "BiLSTM, 256 units": (lambda: SentencePairBiLSTM(100, 256, 512), pairs, classes % 3),
    }


def torchs(kind: Any, average: bool = False, **given: Any) -> Make:
    """An optimizer of torch or a peer, with the cross-entropy and, where wanted, torch's own average."""

    def make(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        optimizer = kind(model.parameters(), **given)
        if average:
            mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE))
            optimizer.register_step_post_hook(lambda *_: mean.update_parameters(model))
        return nn.CrossEntropyLoss(), optimizer

    return make


def ours(criterion: Any, **given: Any) -> Make:
    """SingleStepFW."""
    given = {"weight_decay": 1e-4, "memory": 0.0, "average": None, **given}
    return lambda model: (criterion, ProxOptimizer(criterion, SingleStepFW(), model.parameters(), **given))


def training_step(network: Network, make: Make) -> Callable[[], None]:
    """The loop that everyone writes, on a model of its own."""
    build, x, y = network
    torch.manual_seed(0)
    model = build()
    criterion, optimizer = make(model)

    def run() -> None:
        optimizer.zero_grad()
        criterion(model(*x), y).backward()
        optimizer.step()

    return run


def compare(options: Options, name: str, makes: dict[str, Make], note: str) -> None:
    """A row for each network: milliseconds of the first, and the ratio of every other one to it."""
    rows, first = [], next(iter(makes))
    for title, network in networks(16 if options.quick else 64).items():
        runs = {kind: training_step(network, make) for kind, make in makes.items()}
        inner = 10 if title.startswith(("MLP", "GPT")) else 1
        times = interleaved(runs, options.rounds(15, quick=3), inner, warm_up=2)
        ratios = {f"{kind} /": ratio(times, kind, first) for kind in makes if kind != first}
        rows.append({"network": title, f"{first}, ms": 1e3 * times[first].median, **ratios})
    write(options, name, rows, note)


def main(options: Options) -> None:
    sgd: dict[str, Any] = {"lr": 0.01, "momentum": 0.9}
    makes: dict[str, Make] = {
        "AdamW fused, average": torchs(torch.optim.AdamW, average=True, fused=True),
        "AdamW fused": torchs(torch.optim.AdamW, fused=True),
        "Diagonal, momentum, average": ours(CrossEntropy(), lr=1e-3, momentum=0.9, metric=Diagonal(), average=AVERAGE),
        "SGD foreach": torchs(torch.optim.SGD, nesterov=True, foreach=True, **sgd),
        "SGD fused": torchs(torch.optim.SGD, nesterov=True, fused=True, **sgd),
        "Euclidean, smoothed hinge": ours(MultiClassHinge(smooth=True), metric=Euclidean(), **sgd),
    }
    compare(options, "training_step", makes, "Ratios to AdamW fused with torch's average (swa_utils).")
