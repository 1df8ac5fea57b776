"""Which η are usable? One step, five steps and gap-driven steps, from η = 0.01 to 1000."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.common import Options, conv_net, digits, figure, mlp, write
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import CorrectiveFW, DualSolver, MultiStepFW, SingleStepFW

SOLVERS: dict[str, DualSolver] = {
    "SingleStepFW()": SingleStepFW(),
    "MultiStepFW(5)": MultiStepFW(5, tol=0.0),
    "MultiStepFW(20, fraction=0.3)": MultiStepFW(20, fraction=0.3),
    "CorrectiveFW(20, fraction=0.3)": CorrectiveFW(20, fraction=0.3),
}
NETS = {"MLP": mlp, "conv net": conv_net}


def train(net_name: str, solver: DualSolver, eta: float, smooth: bool, seed: int, epochs: int) -> dict[str, Any]:
    x, y = digits()
    torch.manual_seed(seed)
    order = torch.randperm(len(x))
    train_at, test_at = order[:1347], order[1347:]
    net, loss = NETS[net_name](), MultiClassHinge(smooth=smooth)
    optimizer = ProxOptimizer(loss, solver, net.parameters(), lr=eta)
    steps, taken, began = 0, 0, time.perf_counter()
    for _ in range(epochs):
        net.train()
        for batch in train_at[torch.randperm(len(train_at))].split(64):
            optimizer.step(lambda batch=batch: loss(net(x[batch]), y[batch]))
            steps, taken = steps + 1, taken + optimizer.last.steps
    seconds = time.perf_counter() - began
    net.eval()
    with torch.no_grad():
        train_loss = float(MultiClassHinge()(net(x[train_at]), y[train_at]))
        accuracy = float((net(x[test_at]).argmax(1) == y[test_at]).float().mean())
    return {"train_loss": train_loss, "accuracy": 100 * accuracy, "seconds": seconds, "inner": taken / steps}


def main(options: Options) -> None:
    half = 1 if options.quick else 2
    etas = [round(10 ** (k / half), 6) for k in range(-2 * half, 3 * half + 1)]
    schedule = {"MLP": (10, [0, 1]), "conv net": (4, [0])}  # epochs and seeds
    if options.quick:
        schedule = {net: (2, [0]) for net in NETS}
    jobs = [
        {"net": net, "smooth": smooth, "solver": solver, "eta": eta, "seed": seed, "epochs": epochs}
        for net, (epochs, seeds) in schedule.items()
        for seed in seeds
        for smooth in (False, True)
        for eta in etas
        for solver in SOLVERS
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "usable_eta.jsonl"  # every run is kept: a second start resumes where the first one stopped
    done = {_key(r): r for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    for job in tqdm(jobs, desc="usable η"):
        if _key(job) not in done:
            result = train(job["net"], SOLVERS[job["solver"]], job["eta"], job["smooth"], job["seed"], job["epochs"])
            done[_key(job)] = {**job, **result}
            with path.open("a") as file:
                file.write(json.dumps(done[_key(job)]) + "\n")
    runs = [done[_key(job)] for job in jobs]
    rows = []
    for net in NETS:
        for smooth in (False, True):
            of_net = [r for r in runs if r["net"] == net and r["smooth"] == smooth]
            best = max(_mean(of_net, s, e, "accuracy") for s in SOLVERS for e in etas)
            for solver in SOLVERS:
                accuracy = [_mean(of_net, solver, e, "accuracy") for e in etas]
                good = [e for e, a in zip(etas, accuracy, strict=True) if a >= best - 2]
                rows.append(
                    {
                        "net": net,
                        "smoothed": smooth,
                        "solver": solver,
                        "best accuracy": max(accuracy),
                        "decades of η within 2 points": math.log10(good[-1] / good[0]) if good else 0.0,
                        "from η": good[0] if good else "none",
                        "to η": good[-1] if good else "none",
                        "train loss at η = 100": _mean(of_net, solver, 100.0, "train_loss"),
                        "inner steps": float(np.mean([r["inner"] for r in of_net if r["solver"] == solver])),
                        "seconds per run": float(np.median([r["seconds"] for r in of_net if r["solver"] == solver])),
                    }
                )
    made = "; ".join(f"{net}: {epochs} epochs, {len(seeds)} seed(s)" for net, (epochs, seeds) in schedule.items())
    write(options, "usable_eta", rows, f"Digits, batches of 64, no momentum. {made}.")

    def draw(fig: Any, axes: Any) -> None:
        for row, smooth in enumerate((False, True)):
            for column, net in enumerate(NETS):
                ax = axes[row, column]
                of_net = [r for r in runs if r["net"] == net and r["smooth"] == smooth]
                for solver, marker in zip(SOLVERS, "osD^", strict=True):
                    accuracy = [_mean(of_net, solver, e, "accuracy") for e in etas]
                    ax.plot(etas, accuracy, marker=marker, ms=4, label=solver)
                ax.set(xscale="log", ylim=(45, 101), title=f"{net}, {'smoothed hinge' if smooth else 'hinge'}")
                ax.set_xlabel("η")
                ax.set_ylabel("test accuracy, %")
        axes[0, 1].legend(loc="lower right", fontsize=9)
        fig.suptitle("Which η can be used, on digits")

    figure(options, "usable_eta", draw, nrows=2, ncols=2, figsize=(10, 7), sharex=True, sharey=True)


def _key(job: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(job[k] for k in ("net", "smooth", "solver", "eta", "seed", "epochs"))


def _mean(runs: list[dict[str, Any]], solver: str, eta: float, what: str) -> float:
    return float(np.mean([r[what] for r in runs if r["solver"] == solver and r["eta"] == eta]))
