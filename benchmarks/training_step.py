"""A whole training step: forward, backward, update and average, against AdamW fused with torch's average.

``training_step`` compares optimizers, ``metric_cost`` our metrics with the peers that precondition: SOAP and Muon.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from benchmarks.common import Options, interleaved, ratio, write
from experiments.lm import GPT
from experiments.models import DenseNet, SentencePairBiLSTM, WideResNet
from proxsvm import ProxOptimizer, metrics
from proxsvm._extras import load
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

    def mlp() -> nn.Module:
        return nn.Sequential(*(f for _ in range(4) for f in (nn.Linear(512, 512), nn.ReLU())), nn.Linear(512, 10))

    def gpt() -> nn.Module:
        return nn.Sequential(GPT(2, 4, 128, 64), nn.Flatten(0, 1))

    return {
        "MLP 4 × 512, batch 128": (mlp, rows, labels),
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
    """A row for each network: milliseconds of AdamW with torch's average, and the ratio of every other one to it."""
    rows, first = [], "AdamW fused, average"
    makes = {first: torchs(torch.optim.AdamW, average=True, fused=True), **makes}
    for title, network in networks(16 if options.quick else 64).items():
        runs = {kind: training_step(network, make) for kind, make in makes.items()}
        inner = 10 if title.startswith(("MLP", "GPT")) else 1
        times = interleaved(runs, options.rounds(15, quick=3), inner, warm_up=2)
        ratios = {f"{kind} /": ratio(times, kind, first) for kind in makes if kind != first}
        rows.append({"network": title, f"{first}, ms": 1e3 * times[first].median, **ratios})
    write(options, name, rows, f"Ratios to AdamW fused with torch's average (swa_utils). {note}")


def main(options: Options) -> None:
    sgd: dict[str, Any] = {"lr": 0.01, "momentum": 0.9}
    plain = {**sgd, "weight_decay": 1e-4, "memory": 0.0, "average": None}
    diagonal = {**plain, "lr": 1e-3, "metric": Diagonal(), "average": AVERAGE}
    makes: dict[str, Make] = {
        "AdamW fused": torchs(torch.optim.AdamW, fused=True),
        "Diagonal, momentum, average": ours(CrossEntropy(), **diagonal),
        "SGD foreach": torchs(torch.optim.SGD, nesterov=True, foreach=True, **sgd),
        "SGD fused": torchs(torch.optim.SGD, nesterov=True, fused=True, **sgd),
        "Euclidean, smoothed hinge": ours(MultiClassHinge(smooth=True), **plain, metric=Euclidean()),
    }
    compare(options, "training_step", makes, "Diagonal and Euclidean are ours.")


def muon(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """torch's Muon for the matrices, AdamW for all else (biases, norms, convolutions)."""
    given = list(params)
    matrices = torch.optim.Muon([p for p in given if p.dim() == 2], lr=1e-3)
    rest = torch.optim.AdamW([p for p in given if p.dim() != 2], lr=1e-3, fused=True)
    rest.register_step_post_hook(lambda *_: (matrices.step(), matrices.zero_grad()))
    return rest


def metric_cost(options: Options) -> None:
    given: dict[str, Any] = {"lr": "auto", "memory": 0.9, "average": AVERAGE}  # with nothing else set
    makes: dict[str, Make] = {
        "Euclidean()": ours(CrossEntropy(), metric=Euclidean(), **given),
        "Diagonal()": ours(CrossEntropy(), metric=Diagonal(), **given),
        "Kronecker()": ours(CrossEntropy(), metric=metrics.Kronecker(), **given),
        "SOAP, average": torchs(load("pytorch_optimizer", extra="peers").SOAP, average=True, lr=1e-3),
        "Muon, average": torchs(muon, average=True),
    }
    compare(options, "metric_cost", makes, "Ours with only the metric set; SOAP of pytorch_optimizer.")
