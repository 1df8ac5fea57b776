"""Seconds to a certified relative gap on one step of a network, against the exact QP (Clarabel through cvxpy)."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from tqdm import tqdm

from benchmarks.common import Options, begun, figure, interleaved, write
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

    def draw(_: Any, axes: Any) -> None:
        panels = [(net, tol) for net in dict.fromkeys(r["network"] for r in rows) for tol in GOALS]
        for ax, (net, tol) in zip(axes.flat, panels, strict=True):
            for i, name in enumerate(solvers(tol)):
                mine = [r for r in rows if (r["network"], r["solver"], r["relative gap"]) == (net, name, tol)]
                at = [k + 0.25 * (i - 1) for k in range(len(mine))]
                ax.bar_label(ax.bar(at, [r["times faster"] for r in mine], width=0.23, label=name), fmt="%.0f×")
            ax.axhline(GOALS[tol], color="k", lw=1, ls="--", label="goal")
            ax.set(yscale="log", ylabel="times faster than ExactQP", title=f"MLP {net}, relative gap {tol:g}")
            ax.set_xticks(range(len(ETAS)), [f"η = {eta:g}" for eta in ETAS])
        axes[0, 0].legend()

    figure(options, "against_exact_qp", draw, nrows=2, ncols=2, figsize=(10, 7.5))
