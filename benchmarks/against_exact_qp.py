"""Seconds to a certified relative gap on one step of a network, against the exact QP (Clarabel through cvxpy)."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from pandas import DataFrame
from tqdm import tqdm

from benchmarks.common import Options, begun, interleaved, write
from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, DualSolver, ExactQP, MultiStepFW

SEEDS = (1, 2, 3)  # CorrectiveFW's constants were chosen on others
ETAS, GOALS = (0.1, 1.0, 10.0), {1e-2: 100, 1e-4: 10}


def solvers(tol: float) -> dict[str, DualSolver]:
    return {
        "MultiStepFW": MultiStepFW(max_steps=1000, tol=tol),
        "CorrectiveFW": CorrectiveFW(max_steps=3000, tol=tol),
        "BlockFW": BlockFW(tol=tol),
    }


def measure(options: Options, width: int, eta: float, seed: int) -> dict[tuple[float, str], tuple[float, ...]]:
    """(gap, solver) → its seconds, ExactQP's, their ratio, steps, the gap reached, and the dual that is missing."""
    net, x, y = begun(n=32 if options.quick else 128, width=width, seed=seed)

    def problem() -> ProxProblem:
        return ProxProblem.from_scores(MultiClassHinge(), net(x), y, net.parameters(), lr=eta)

    BlockFW(max_passes=1).solve(problem())  # compile outside the timing
    best = problem()
    began = time.perf_counter()
    exact = ExactQP(max_entries=10**9).solve(best)
    slow = time.perf_counter() - began
    found = {}
    for tol in GOALS:
        runs = {name: lambda s=s: s.solve(problem()) for name, s in solvers(tol).items()}
        times = interleaved(runs, options.rounds(3, quick=1))
        for name, solver in solvers(tol).items():
            p, seconds = problem(), times[name].median
            point = solver.solve(p)
            missing = float(best.dual(exact) - p.dual(point))
            found[tol, name] = seconds, slow, slow / seconds, point.steps, float(p.relative_gap(point)), missing
    return found


def main(options: Options) -> None:
    rows: list[dict[str, Any]] = []
    for width, eta in tqdm([(width, eta) for width in (64, 256) for eta in ETAS], desc="against ExactQP"):
        each = [measure(options, width, eta, seed) for seed in SEEDS]
        for tol, name in each[0]:
            columns = list(zip(*(found[tol, name] for found in each), strict=True))
            seconds, slow, faster, steps, reached, missing = map(median, columns)
            row = {"network": f"64-{width}-10", "η": eta, "relative gap": tol, "solver": name, "seconds": seconds}
            row |= {"ExactQP seconds": slow, "times faster": faster, "at least": min(columns[2]), "steps": int(steps)}
            rows.append({**row, "reached": reached, "exact − D": missing})
    note = (
        f"One step of an MLP on digits: n = {32 if options.quick else 128}, K = 10, float32. Medians over {len(SEEDS)} "
        "networks and batches, and the smallest of their ratios. MultiStepFW stops after 1000 steps. Each time "
        "includes the forward pass; compiling is not included."
    )
    write(options, "against_exact_qp", rows, note)

    figure = Figure(figsize=(10, 7.5), layout="constrained")
    for ax, ((net, tol), mine) in zip(
        figure.subplots(2, 2).flat, DataFrame(rows).groupby(["network", "relative gap"], sort=False), strict=True
    ):
        mine.pivot(index="η", columns="solver", values="times faster").plot.bar(
            ax=ax, rot=0, logy=True, width=0.8, legend=False
        )
        for bars in ax.containers:
            ax.bar_label(bars, fmt="%.0f×", fontsize=8)
        ax.axhline(GOALS[tol], color="k", lw=1, ls="--", label="goal")
        ax.set(ylabel="times faster than ExactQP", title=f"MLP {net}, relative gap {tol:g}")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(options.out / "against_exact_qp.png", dpi=120)
