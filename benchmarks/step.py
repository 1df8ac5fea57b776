"""What a training step costs: ``step()`` alone, the criterion alone, and the whole step.

python -m benchmarks step             the update alone, on the tensors of a WRN-40-4 and on 200 small tensors
python -m benchmarks criterion        forward and backward of a loss, beside torch's CrossEntropyLoss
python -m benchmarks training_step    forward, backward, update and average, beside AdamW fused with torch's average
python -m benchmarks metric_cost      the same with our metrics, and the peers that precondition: SOAP and Muon
"""

from collections.abc import Callable, Iterable
from functools import partial
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

Network = tuple[Callable[[], nn.Module], tuple[Tensor, ...], Tensor]  # how to build it, its inputs, the targets
AVERAGE = 0.995
PLAIN: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
UNSET: dict[str, Any] = {"lr": "auto", "memory": 0.9, "average": AVERAGE, "momentum": 0.0, "weight_decay": 0.0}
TORCHS = {
    "SGD fused": partial(torch.optim.SGD, nesterov=True, fused=True, **PLAIN),
    "SGD foreach": partial(torch.optim.SGD, nesterov=True, foreach=True, **PLAIN),
    "AdamW fused": partial(torch.optim.AdamW, fused=True),
    "AdamW foreach": partial(torch.optim.AdamW, foreach=True),
}


def ours(metric: Any, criterion: Any = None, **given: Any) -> Callable[[Any], ProxOptimizer]:
    given = {**PLAIN, "memory": 0.0, "average": None, "metric": metric, **given}
    return lambda params: ProxOptimizer(criterion or CrossEntropy(), SingleStepFW(), params, **given)


OURS = {
    "Euclidean": partial(ours, Euclidean()),
    "Euclidean, average": partial(ours, Euclidean(), average=AVERAGE),
    "Diagonal": partial(ours, Diagonal(), lr=1e-3),
    "Diagonal, average": partial(ours, Diagonal(), lr=1e-3, average=AVERAGE),
}


def peers() -> dict[str, Callable[[Any], Any]]:
    def schedule_free(params: Any) -> Any:
        optimizer = load("schedulefree", extra="peers").SGDScheduleFree(params, lr=0.1, weight_decay=1e-4)
        optimizer.train()
        return optimizer

    # The gradients never change: with a larger growth rate d would explode.
    prodigy = partial(load("prodigyopt", extra="peers").Prodigy, weight_decay=1e-4, growth_rate=1.0)
    momo = partial(load("momo", extra="peers").Momo, lr=0.1, weight_decay=1e-4)
    return {"MoMo": momo, "Prodigy": prodigy, "schedule-free SGD": schedule_free}


def update(make: Callable[[Any], Any], shapes: Iterable[tuple[int, ...]]) -> Callable[[], Any]:
    """A step on seeded parameters with gradients."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape) / 20) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape) / 100
    optimizer, value = make(params), torch.tensor(0.01)
    return partial(optimizer.step, **({"loss": value} if type(optimizer).__name__ in ("ProxOptimizer", "Momo") else {}))


def step(options: Options) -> None:
    lists: dict[str, list[tuple[int, ...]]] = {
        "WRN-40-4 (116 tensors, 8.9 M)": [tuple(p.shape) for p in WideResNet(40, 4).parameters()],
        "200 small tensors (109 k)": [(64,)] * 100 + [(32, 32)] * 100,
    }
    makes = TORCHS | {name: make() for name, make in OURS.items()} | peers()
    makes["Euclidean, fused=False"] = ours(Euclidean(), fused=False)
    rows = []
    for which, shapes in lists.items():
        runs = {name: update(make, shapes) for name, make in makes.items()}
        times = interleaved(runs, options.rounds(25, quick=5), inner=3 if len(shapes) < 200 else 30, warm_up=2)
        for name in runs:
            measured = {"ms": 1e3 * times[name].median, "interquartile": 1e3 * times[name].iqr}
            compared = {f"/ {to}": ratio(times, name, to) for to in ("SGD fused", "SGD foreach", "AdamW fused")}
            rows.append({"parameters": which, "optimizer": name, **measured, **compared})
    write(options, "step", rows, "The update alone, momentum 0.9 and weight decay; Euclidean and Diagonal are ours.")


def criterion(options: Options) -> None:
    losses: dict[str, nn.Module] = {
        "CrossEntropyLoss": nn.CrossEntropyLoss(),
        "MultiMarginLoss": nn.MultiMarginLoss(),
        "CrossEntropy()": CrossEntropy(),
        "MultiClassHinge()": MultiClassHinge(),
        "MultiClassHinge(smooth=True)": MultiClassHinge(smooth=True),
    }
    rows, (first, *others) = [], losses
    for n, K in [(128, 10), (128, 1000), (4096, 100), (64, 100_000)]:
        scores, target = torch.randn(n, K, requires_grad=True), torch.randint(K, (n,))

        def both(loss: nn.Module, scores: Tensor = scores, target: Tensor = target) -> None:
            scores.grad = None
            loss(scores, target).backward()

        runs = {name: partial(both, loss) for name, loss in losses.items()}
        times = interleaved(runs, options.rounds(25, quick=5), inner=max(5, 300_000 // (n * K)), warm_up=1)
        ratios = {f"{name} /": ratio(times, name, first) for name in others}
        rows.append({"scores": f"[{n}, {K}]", f"{first}, µs": 1e6 * times[first].median, **ratios})
    write(options, "criterion", rows, "Forward and backward; ratios to torch's CrossEntropyLoss.")


def networks(n: int) -> dict[str, Network]:
    """Networks with a batch; the conv nets and the BiLSTM take ``n`` samples."""
    torch.manual_seed(0)
    images, classes, lengths = (torch.randn(n, 3, 32, 32),), torch.randint(10, (n,)), torch.randint(5, 20, (n,))
    pairs = (torch.randn(n, 20, 100), lengths, torch.randn(n, 20, 100), lengths)
    rows, labels, text = (torch.randn(128, 512),), torch.randint(10, (128,)), torch.randint(96, (16, 65))
    text, following = text[:, :-1], text[:, 1:].flatten()

    def mlp() -> nn.Module:
        return nn.Sequential(*(f for _ in range(4) for f in (nn.Linear(512, 512), nn.ReLU())), nn.Linear(512, 10))

    return {
        "MLP 4 × 512, batch 128": (mlp, rows, labels),
        "GPT, 2 layers of 128": (lambda: nn.Sequential(GPT(2, 4, 128, 64), nn.Flatten(0, 1)), (text,), following),
        "WRN-10-1": (lambda: WideResNet(10, 1), images, classes),
        "WRN-16-4": (lambda: WideResNet(16, 4), images, classes),
        "DenseNet-22, growth 12": (lambda: DenseNet(22, 12), images, classes),
        "BiLSTM, 256 units": (lambda: SentencePairBiLSTM(100, 256, 512), pairs, classes % 3),
    }


def whole(network: Network, make: Callable[[Any], Any], average: bool = False) -> Callable[[], None]:
    """The loop that everyone writes, on a model of its own, where wanted with torch's own average."""
    build, x, y = network
    torch.manual_seed(0)
    model = build()
    optimizer = make(model.parameters())
    loss = optimizer.loss if isinstance(optimizer, ProxOptimizer) else nn.CrossEntropyLoss()
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE)) if average else None

    def run() -> None:
        optimizer.zero_grad()
        loss(model(*x), y).backward()
        optimizer.step()
        if mean is not None:
            mean.update_parameters(model)

    return run


def compare(options: Options, name: str, makes: dict[str, Callable[[Any], Any]]) -> None:
    """A row for each network: milliseconds of AdamW with torch's average, and the ratio of every other one to it."""
    rows, first, averaged = [], "AdamW fused, average", ("AdamW fused, average", "SOAP, average", "Muon, average")
    makes = {first: TORCHS["AdamW fused"], **makes}
    for title, network in networks(16 if options.quick else 64).items():
        runs = {kind: whole(network, make, kind in averaged) for kind, make in makes.items()}
        times = interleaved(runs, options.rounds(15, quick=3), 10 if title[:3] in ("MLP", "GPT") else 1, warm_up=2)
        ratios = {f"{kind} /": ratio(times, kind, first) for kind in makes if kind != first}
        rows.append({"network": title, f"{first}, ms": 1e3 * times[first].median, **ratios})
    write(options, name, rows, "Ratios to AdamW fused with torch's average (swa_utils). SOAP of pytorch_optimizer.")


def training_step(options: Options) -> None:
    smoothed = {"Euclidean, smoothed hinge": ours(Euclidean(), MultiClassHinge(smooth=True))}
    diagonal = {"Diagonal, momentum, average": OURS["Diagonal, average"]()}
    compare(options, "training_step", {k: v for k, v in TORCHS.items() if k != "AdamW foreach"} | diagonal | smoothed)


def muon(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """torch's Muon for the matrices, AdamW for all else (biases, norms, convolutions)."""
    given = list(params)
    matrices = torch.optim.Muon([p for p in given if p.dim() == 2], lr=1e-3)
    rest = torch.optim.AdamW([p for p in given if p.dim() != 2], lr=1e-3, fused=True)
    rest.register_step_post_hook(lambda *_: (matrices.step(), matrices.zero_grad()))
    return rest


def metric_cost(options: Options) -> None:
    given = {f"{kind}()": ours(getattr(metrics, kind)(), **UNSET) for kind in ("Euclidean", "Diagonal", "Kronecker")}
    soap = partial(load("pytorch_optimizer", extra="peers").SOAP, lr=1e-3)
    compare(options, "metric_cost", given | {"SOAP, average": soap, "Muon, average": muon})
