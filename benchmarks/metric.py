"""Which metric, with which η and momentum? The single step in both metrics, SGD and Adam, on four data sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.common import Options, digits, write
from experiments.tabular import bike, california
from proxsvm import ProxOptimizer
from proxsvm._numbers import to_float
from proxsvm.losses import ConvexLoss, CrossEntropy, L1Regression
from proxsvm.metrics import Diagonal, Euclidean, Metric
from proxsvm.solvers import SingleStepFW

AVERAGE = 0.995
ETAS: dict[str, list[Any]] = {
    "Euclidean": [0.01, 0.1, 1.0, 10.0, "auto"],
    "Diagonal": [1e-3, 1e-2, 0.1, 1.0, "auto"],
    "Earlier": [1e-3, 1e-2, 0.1, 1.0, "auto"],
    "SGD": [0.01, 0.03, 0.1, 0.3],
    "Adam": [3e-4, 1e-3, 3e-3, 1e-2],
}
MOMENTA = {"Earlier": [0.0], "SGD": [0.9], "Adam": [0.9]}  # the others: without and with
EPOCHS = {"digits": 20, "letters": 4, "california": 15, "bike": 15}


class Earlier(Diagonal):
    """M from the earlier gradients only, as in ADOPT (Taniguchi et al., NeurIPS 2024); the first step has its own."""

    def _M(self, cell: Any) -> list[Tensor]:
        steps = to_float(cell.steps)
        if not steps:
            return super()._M(cell)
        return [(v / (1 - self.beta2**steps)).sqrt() + self.eps for v in cell.state("v")]

    products = Metric.products
    advance = Metric.advance


def letters(data: Path) -> tuple[Tensor, Tensor]:
    """The letters of the OCR words, one by one: 128 pixels, 26 classes (``letter.data``, Taskar et al. 2003)."""
    rows = [line.split("\t") for line in (data / "letter.data").read_text().splitlines()]
    x = torch.tensor([[float(pixel) for pixel in row[6:134]] for row in rows])
    return x, torch.tensor([ord(row[1]) - ord("a") for row in rows])


def regression(read: Callable[[Path], tuple[np.ndarray, np.ndarray, int]], data: Path) -> tuple[Tensor, Tensor]:
    """Standardised features and target."""
    x, y, _ = read(data)
    x, y = (x - x.mean(0)) / x.std(0).clip(1e-9), (y - y.mean()) / y.std()
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None]


DATA: dict[str, Callable[[Path], tuple[Tensor, Tensor]]] = {
    "digits": lambda data: digits(),
    "letters": letters,
    "california": lambda data: regression(california, data),
    "bike": lambda data: regression(bike, data),
}


def train(job: dict[str, Any], x: Tensor, y: Tensor) -> dict[str, float]:
    """Test error of the last weights and of their average: % wrong, or the mean absolute error in units of σ(y)."""
    torch.manual_seed(job["seed"])
    order = torch.randperm(len(x))
    held = len(x) // 4
    test, fit = order[:held], order[held:]
    classes = not y.is_floating_point()
    outputs = int(y.max()) + 1 if classes else 1
    net = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))
    criterion: ConvexLoss = CrossEntropy() if classes else L1Regression()
    optimizer, mean = _optimizer(job, net, criterion)
    for _ in range(job["epochs"]):
        for batch in fit[torch.randperm(len(fit))].split(64):
            optimizer.zero_grad()
            criterion(net(x[batch]), y[batch]).backward()
            optimizer.step()
            mean.update_parameters(net)

    @torch.no_grad()
    def error(model: nn.Module) -> float:
        out = model(x[test])
        if not bool(out.isfinite().all()):
            return float("inf")
        return float((out.argmax(1) != y[test]).float().mean() * 100 if classes else (out - y[test]).abs().mean())

    return {"last": error(net), "averaged": error(mean)}


def _optimizer(job: dict[str, Any], net: nn.Module, criterion: ConvexLoss) -> tuple[Any, Any]:
    def beta(average: Tensor, weight: Tensor, count: Tensor | int) -> Tensor:
        return torch.lerp(average, weight, 1 - min(AVERAGE, (1 + int(count)) / (10 + int(count))))

    mean = torch.optim.swa_utils.AveragedModel(net, avg_fn=beta)
    lr, mu = job["lr"], job["momentum"]
    if job["method"] == "SGD":
        return torch.optim.SGD(net.parameters(), lr, momentum=mu, nesterov=mu > 0), mean
    if job["method"] == "Adam":
        return torch.optim.Adam(net.parameters(), lr), mean
    metric = {"Diagonal": Diagonal(), "Earlier": Earlier(), "Euclidean": Euclidean()}[job["method"]]
    return ProxOptimizer(criterion, SingleStepFW(), net.parameters(), lr, mu, metric=metric), mean


def main(options: Options) -> None:
    seeds = [0] if options.quick else [0, 1]
    epochs = dict.fromkeys(EPOCHS, 1) if options.quick else EPOCHS
    jobs = [
        {
            "data": data,
            "method": method,
            "momentum": mu,
            "lr": lr,
            "seed": seed,
            "epochs": epochs[data],
        }
        for data in (["digits"] if options.quick else DATA)
        for seed in seeds
        for method, etas in ETAS.items()
        for mu in MOMENTA.get(method, [0.0, 0.9])
        for lr in etas
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "metric.jsonl"  # every run is kept: a second start resumes where the first one stopped
    done = {_key(r): r for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    sets: dict[str, tuple[Tensor, Tensor]] = {}
    for job in tqdm(jobs, desc="metric"):
        if _key(job) not in done:
            if job["data"] not in sets:
                sets[job["data"]] = DATA[job["data"]](options.data)
            done[_key(job)] = {**job, **train(job, *sets[job["data"]])}
            with path.open("a") as file:
                file.write(json.dumps(done[_key(job)]) + "\n")
    runs = [done[_key(job)] for job in jobs]
    rows = []
    for data, method, mu in dict.fromkeys((r["data"], r["method"], r["momentum"]) for r in runs):
        own = [r for r in runs if (r["data"], r["method"], r["momentum"]) == (data, method, mu)]

        def cell(lr: Any, own: list[dict[str, Any]] = own) -> str:
            chosen = [r for r in own if r["lr"] == lr]
            return " / ".join(f"{np.mean([r[k] for r in chosen]):.3g}" for k in ("averaged", "last"))

        etas = ETAS[method]
        cells = {f"η {k + 1}": f"{cell(lr)} ({lr})" for k, lr in enumerate(etas)}
        rows.append({"data": data, "method": method, "μ": mu, **cells, **({} if len(etas) > 4 else {"η 5": ""})})
    note = (
        "Test error, average of the weights / last weights (η): % wrong (digits, letters), mean |error|/σ (the others)."
    )
    write(options, "metric", rows, f"{note} {len(seeds)} seed(s), an MLP of 128-128, batches of 64, epochs {EPOCHS}.")


def _key(job: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(str(job[k]) for k in ("data", "method", "momentum", "lr", "seed", "epochs"))
