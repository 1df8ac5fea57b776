"""Which loss? The single step with each of them on two sets of classes and two of real numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.common import Options, write
from benchmarks.metric import DATA, EPOCHS
from proxsvm import ProxOptimizer
from proxsvm.losses import (
    ConvexLoss,
    CrossEntropy,
    Huber,
    L1Regression,
    MultiClassHinge,
    SquaredError,
    TopKHinge,
    WestonWatkinsHinge,
)
from proxsvm.solvers import SingleStepFW

ETAS = (0.01, 0.1, 1.0)
CLASSES: dict[str, Callable[[], ConvexLoss]] = {
    "CrossEntropy()": CrossEntropy,
    "CrossEntropy(label_smoothing=0.1)": partial(CrossEntropy, label_smoothing=0.1),
    "MultiClassHinge(smooth=True)": partial(MultiClassHinge, smooth=True),
    "MultiClassHinge()": MultiClassHinge,
    "TopKHinge(2)": partial(TopKHinge, 2),
    "WestonWatkinsHinge()": WestonWatkinsHinge,
}
NUMBERS: dict[str, Callable[[], ConvexLoss]] = {
    "SquaredError()": SquaredError,
    "Huber(0.5)": partial(Huber, 0.5),
    "L1Regression()": L1Regression,
}
LOSSES = {"digits": CLASSES, "letters": CLASSES, "california": NUMBERS, "bike": NUMBERS}
ERRORS = {"digits": ("% wrong", "% not among the best two"), "california": ("mean |error|/σ", "root mean square/σ")}


def train(job: dict[str, Any], x: Tensor, y: Tensor) -> dict[str, float]:
    """The two errors of the averaged weights on a quarter for choosing η and on a quarter for the table."""
    torch.manual_seed(job["seed"])
    val, test, *rest = torch.randperm(len(x)).split(len(x) // 4)
    fit, classes = torch.cat(rest), not y.is_floating_point()
    outputs = int(y.max()) + 1 if classes else 1
    net = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))
    criterion = LOSSES[job["data"]][job["loss"]]()
    optimizer = ProxOptimizer(criterion, SingleStepFW(), net.parameters(), job["lr"], 0.9, average=0.995)
    for _ in range(job["epochs"]):
        for batch in fit[torch.randperm(len(fit))].split(64):
            optimizer.zero_grad()
            criterion(net(x[batch]), y[batch]).backward()
            optimizer.step()
    optimizer.eval()
    found: dict[str, float] = {}
    for name, at in (("val", val), ("test", test)):
        with torch.no_grad():
            out = net(x[at])
        if classes:
            wrong = out.topk(2, 1).indices != y[at, None]
            errors = 100 * wrong[:, 0].float().mean(), 100 * wrong.all(1).float().mean()
        else:
            errors = (out - y[at]).abs().mean(), (out - y[at]).square().mean().sqrt()
        found |= {f"{name} {k}": float(error) for k, error in enumerate(errors)}
    return found


def main(options: Options) -> None:
    epochs = dict.fromkeys(EPOCHS, 1) if options.quick else EPOCHS
    keys = ("data", "loss", "lr", "seed", "epochs")
    jobs = [
        dict(zip(keys, (data, loss, lr, seed, epochs[data]), strict=True))
        for data in (["digits"] if options.quick else DATA)
        for loss in LOSSES[data]
        for lr in ETAS
        for seed in ([0] if options.quick else [0, 1, 2])
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "loss.jsonl"  # every run is kept: a second start resumes where the first one stopped
    lines = path.read_text().splitlines() if path.exists() else []
    done = {tuple(str(r[k]) for k in keys): r for r in map(json.loads, lines)}
    sets: dict[str, tuple[Tensor, Tensor]] = {}
    for job in tqdm(jobs, desc="loss"):
        key = tuple(str(job[k]) for k in keys)
        if key not in done:
            if job["data"] not in sets:
                sets[job["data"]] = DATA[job["data"]](options.data)
            done[key] = {**job, **train(job, *sets[job["data"]])}
            with path.open("a") as file:
                file.write(json.dumps(done[key]) + "\n")
    runs = [done[tuple(str(job[k]) for k in keys)] for job in jobs]
    rows = [_row(data, loss, runs) for data, loss in dict.fromkeys((r["data"], r["loss"]) for r in runs)]
    note = (
        "Errors of the averaged weights on a quarter that was held out, mean ± sample standard deviation over "
        f"{len({r['seed'] for r in runs})} seed(s); η (of {ETAS}) was chosen by the first error on another quarter. "
        f"An MLP of 128-128, momentum 0.9, batches of 64, epochs {epochs}. Errors: {ERRORS['digits']} of classes, "
        f"{ERRORS['california']} of numbers."
    )
    write(options, "loss", rows, note)


def _row(data: str, loss: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    own = {lr: [r for r in runs if (r["data"], r["loss"], r["lr"]) == (data, loss, lr)] for lr in ETAS}
    lr = min(ETAS, key=lambda lr: np.mean([r["val 0"] for r in own[lr]]))
    tests = [np.array([r[f"test {k}"] for r in own[lr]]) for k in (0, 1)]
    cells = [f"{t.mean():.3g}" + (f" ± {t.std(ddof=1):.2g}" if len(t) > 1 else "") for t in tests]
    return {"data": data, "loss": loss, "η": lr, "error": cells[0], "second error": cells[1]}
