"""Which η are usable? One step, five steps and gap-driven steps on digits, from η = 0.01 to 1000."""

from __future__ import annotations

import math
from itertools import product
from statistics import fmean
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from benchmarks.common import Options, digits, figure, mlp, write
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import CorrectiveFW, DualSolver, MultiStepFW, SingleStepFW

SOLVERS: dict[str, DualSolver] = {
    "SingleStepFW()": SingleStepFW(),
    "MultiStepFW(5)": MultiStepFW(5, tol=0.0),
    "MultiStepFW(20, fraction=0.3)": MultiStepFW(20, fraction=0.3),
    "CorrectiveFW(20, fraction=0.3)": CorrectiveFW(20, fraction=0.3),
}
PLAN = {"MLP": (10, (0, 1)), "conv net": (4, (0,))}  # epochs and seeds


def build(name: str) -> nn.Module:
    if name == "MLP":
        return mlp(64, 64, 10)
    first = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
    then = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()
    return nn.Sequential(*first, *then, nn.Flatten(), nn.Linear(256, 10))


def train(name: str, smooth: bool, solver: DualSolver, eta: float, epochs: int, seed: int) -> tuple[float, float]:
    """The accuracy on a quarter of the digits, and the inner steps per step."""
    x, y = digits()
    torch.manual_seed(seed)
    fit, test = torch.randperm(len(x)).tensor_split([1347])
    net, loss, inner = build(name), MultiClassHinge(smooth=smooth), []
    optimizer = ProxOptimizer(loss, solver, net.parameters(), lr=eta, metric=Euclidean(), memory=0.0)
    for _ in range(epochs):
        for batch in fit[torch.randperm(len(fit))].split(64):
            optimizer.step(lambda batch=batch: loss(net(x[batch]), y[batch]))
            inner.append(optimizer.last.steps)
    with torch.no_grad():
        return 100 * float((net.eval()(x[test]).argmax(1) == y[test]).float().mean()), fmean(inner)


def main(options: Options) -> None:
    half = 1 if options.quick else 2
    etas = [round(10 ** (k / half), 6) for k in range(-2 * half, 3 * half + 1)]
    plan = dict.fromkeys(PLAN, (2, (0,))) if options.quick else PLAN
    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float]]] = {}
    for (net, (epochs, seeds)), smooth in tqdm(list(product(plan.items(), (False, True))), desc="usable η"):
        title = f"{net}, {'smoothed hinge' if smooth else 'hinge'}"
        found = {
            name: [[train(net, smooth, solver, eta, epochs, seed) for seed in seeds] for eta in etas]
            for name, solver in SOLVERS.items()
        }
        curves[title] = {name: [fmean(a for a, _ in runs) for runs in each] for name, each in found.items()}
        best = max(map(max, curves[title].values()))
        for name, accuracy in curves[title].items():
            good = [e for e, a in zip(etas, accuracy, strict=True) if a >= best - 2]
            row = {"trained": title, "solver": name, "best accuracy": max(accuracy)}
            row |= {"decades of η within 2 points": math.log10(good[-1] / good[0]) if good else 0.0}
            row |= {"from η": good[0] if good else "none", "to η": good[-1] if good else "none"}
            rows.append({**row, "inner steps": fmean(k for runs in found[name] for _, k in runs)})
    write(options, "usable_eta", rows, f"Digits, batches of 64, no momentum; epochs and seeds: {plan}.")

    def draw(_: Any, axes: Any) -> None:
        for ax, (title, lines) in zip(axes.flat, curves.items(), strict=True):
            for (name, accuracy), marker in zip(lines.items(), "osD^", strict=True):
                ax.plot(etas, accuracy, marker=marker, ms=4, label=name)
            ax.set(xscale="log", ylim=(45, 101), title=title, xlabel="η", ylabel="test accuracy, %")
        axes[0, 1].legend(loc="lower right", fontsize=9)

    figure(options, "usable_eta", draw, nrows=2, ncols=2, figsize=(10, 7), sharex=True, sharey=True)
