"""Seconds to a certified relative gap on one step of a network, against the exact QP (Clarabel through cvxpy)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.common import Options, begun, figure, interleaved, write
from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW

SEEDS = (1, 2, 3)  # CorrectiveFW's constants were chosen on others


def main(options: Options) -> None:
    rows = [row for width in (64, 256) for row in compare(options, width)]
    note = (
        f"One step of an MLP on digits: n = {32 if options.quick else 128}, K = 10, float32. Medians over "
        f"{len(SEEDS)} networks and batches, and the smallest of their ratios. MultiStepFW stops after 1000 steps. "
        "Each time includes the forward pass; compiling is not included."
    )
    write(options, "against_exact_qp", rows, note)
    nets = list(dict.fromkeys(r["network"] for r in rows))
    names = list(dict.fromkeys(r["solver"] for r in rows))

    def draw(fig: Any, axes: Any) -> None:
        for line, net in zip(axes, nets, strict=True):
            for ax, (tol, goal) in zip(line, ((1e-2, 100), (1e-4, 10)), strict=True):
                for i, name in enumerate(names):
                    wanted = (net, name, tol)
                    mine = [r for r in rows if (r["network"], r["solver"], r["relative gap"]) == wanted]
                    at = [k + 0.25 * (i - 1) for k in range(len(mine))]
                    bars = ax.bar(at, [r["times faster"] for r in mine], width=0.23, label=name)
                    ax.bar_label(bars, fmt="%.0f×", fontsize=8)
                ax.axhline(goal, color="k", lw=1, ls="--", label=f"goal: {goal}×")
                ax.set(yscale="log", ylabel="times faster than ExactQP", title=f"MLP {net}, relative gap {tol:g}")
                ax.set_xticks(range(3), ["η = 0.1", "η = 1", "η = 10"])
                ax.margins(y=0.15)
        axes[0, 0].legend(fontsize=8)

    figure(options, "against_exact_qp", draw, nrows=2, ncols=2, figsize=(10, 7.5))


def compare(options: Options, width: int) -> list[dict[str, Any]]:
    begin = [begun(n=32 if options.quick else 128, width=width, seed=seed) for seed in SEEDS]

    def problem(seed: int, eta: float) -> ProxProblem:
        net, x, y = begin[seed]
        return ProxProblem.from_scores(MultiClassHinge(), net(x), y, net.parameters(), lr=eta)

    def solvers(tol: float) -> dict[str, Any]:
        return {
            "MultiStepFW": MultiStepFW(max_steps=1000, tol=tol),
            "CorrectiveFW": CorrectiveFW(max_steps=3000, tol=tol),
            "BlockFW": BlockFW(tol=tol),
        }

    BlockFW(max_passes=1, compiled=True).solve(problem(0, 1.0))  # compile outside the timing
    exact_qp, rows = ExactQP(max_entries=10**9), []
    for eta in tqdm((0.1, 1.0, 10.0), desc="against ExactQP"):
        found: dict[tuple[float, str], list[tuple[float, ...]]] = {}
        for seed in range(len(SEEDS)):
            best = problem(seed, eta)
            began = time.perf_counter()
            exact = exact_qp.solve(best)
            exact_seconds = time.perf_counter() - began
            for tol in (1e-2, 1e-4):
                runs = {name: lambda s=s: s.solve(problem(seed, eta)) for name, s in solvers(tol).items()}  # noqa: B023
                seconds = interleaved(runs, options.repeats)
                for name, solver in solvers(tol).items():
                    p = problem(seed, eta)
                    point = solver.solve(p)
                    missing = float(best.dual(exact) - p.dual(point))
                    reached = float(p.relative_gap(point))
                    here = seconds[name], exact_seconds, exact_seconds / seconds[name], point.steps, reached, missing
                    found.setdefault((tol, name), []).append(here)
        for (tol, name), each in found.items():
            middle = [float(np.median(column)) for column in zip(*each, strict=True)]
            rows.append(
                {
                    "network": f"64-{width}-10",
                    "η": eta,
                    "relative gap": tol,
                    "solver": name,
                    "seconds": middle[0],
                    "ExactQP seconds": middle[1],
                    "times faster": middle[2],
                    "at least": min(times for _, _, times, *_ in each),
                    "steps": int(middle[3]),
                    "reached": middle[4],
                    "exact − D": middle[5],
                }
            )
    return rows
