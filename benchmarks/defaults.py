"""What should ``ProxOptimizer(criterion, SingleStepFW(), model.parameters())`` do by default?"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.common import Options, write
from benchmarks.metric import AVERAGE, DATA, EPOCHS
from proxsvm import ProxOptimizer
from proxsvm.losses import ConvexLoss, CrossEntropy, L1Regression, MultiClassHinge
from proxsvm.solvers import SingleStepFW

STUDIES = ("digits, cross-entropy", "digits, hinge", "letters, cross-entropy", "letters, hinge", "california", "bike")
LRS, MOMENTA, SEEDS = (0.01, 0.1, 1.0), (0.0, 0.9), (0, 1)


def train(job: dict[str, Any], x: Tensor, y: Tensor) -> dict[str, float]:
    """Test error of the last weights and of their average: % wrong, or the mean absolute error in units of σ(y)."""
    torch.manual_seed(job["seed"])
    order = torch.randperm(len(x))
    test, fit = order.tensor_split([len(x) // 4])
    classes = not y.is_floating_point()
    outputs = int(y.max()) + 1 if classes else 1
    net = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))
    criterion: ConvexLoss = L1Regression()
    if classes:
        criterion = MultiClassHinge(smooth=True) if job["study"].endswith("hinge") else CrossEntropy()
    optimizer = ProxOptimizer(
        criterion, SingleStepFW(), net.parameters(), lr=job["lr"], momentum=job["momentum"], average=AVERAGE
    )
    for _ in range(job["epochs"]):
        for batch in fit[torch.randperm(len(fit))].split(64):
            optimizer.zero_grad()
            criterion(net(x[batch]), y[batch]).backward()
            optimizer.step()

    @torch.no_grad()
    def error() -> float:
        out = net(x[test])
        if not bool(out.isfinite().all()):
            return float("inf")
        return float((out.argmax(1) != y[test]).float().mean() * 100 if classes else (out - y[test]).abs().mean())

    last = error()
    optimizer.eval()
    return {"None": last, str(AVERAGE): error()}  # an average does not change the training


def table(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean error over the seeds, a row per setting; ``worst``: the largest ratio to a study's lowest error."""
    studies = list(dict.fromkeys(r["study"] for r in runs))
    errors = {
        (mu, lr, average): [
            float(np.mean([r[average] for r in runs if (r["study"], r["momentum"], r["lr"]) == (study, mu, lr)]))
            for study in studies
        ]
        for mu in MOMENTA
        for lr in LRS
        for average in ("None", str(AVERAGE))
    }
    lowest = np.min(list(errors.values()), axis=0)
    return [
        {"momentum": mu, "lr": lr, "average": average}
        | dict(zip(studies, found, strict=True))
        | {"worst": float(np.max(found / lowest)), "mean": float(np.exp(np.mean(np.log(found / lowest))))}
        for (mu, lr, average), found in errors.items()
    ]


def main(options: Options) -> None:
    studies = STUDIES[:2] if options.quick else STUDIES
    jobs = [
        {"study": study, "momentum": mu, "lr": lr, "seed": seed, "epochs": epochs}
        for study in studies
        for epochs in [1 if options.quick else EPOCHS[study.split(",")[0]]]
        for seed in SEEDS
        for mu in MOMENTA
        for lr in LRS
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "defaults.jsonl"  # every run is kept: a second start resumes where the first one stopped
    done = {_key(r): r for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    sets: dict[str, tuple[Tensor, Tensor]] = {}
    for job in tqdm(jobs, desc="defaults"):
        if _key(job) not in done:
            data = job["study"].split(",")[0]
            if data not in sets:
                sets[data] = DATA[data](options.data)
            done[_key(job)] = {**job, **train(job, *sets[data])}
            with path.open("a") as file:
                file.write(json.dumps(done[_key(job)]) + "\n")
    note = (
        "Test error: % wrong (digits, letters), mean |error|/σ (the others); worst and mean: ratios to each study's "
        f"lowest error. Two seeds, an MLP of 128-128, batches of 64, epochs {EPOCHS}."
    )
    write(options, "defaults", table([done[_key(job)] for job in jobs]), note)


def _key(job: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(str(job[k]) for k in ("study", "momentum", "lr", "seed", "epochs"))
