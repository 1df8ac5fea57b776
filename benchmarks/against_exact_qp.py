"""Seconds to a certified relative gap on one step of a network, against the exact QP (Clarabel through cvxpy)."""

from __future__ import annotations

import time
from typing import Any

from tqdm import tqdm

from benchmarks.common import Options, begun, figure, interleaved, write
from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW


def main(options: Options) -> None:
    net, x, y = begun(n=32 if options.quick else 128)

    def problem(eta: float) -> ProxProblem:
        return ProxProblem.from_scores(MultiClassHinge(), net(x), y, net.parameters(), lr=eta)

    def solvers(tol: float) -> dict[str, Any]:
        return {
            "MultiStepFW": MultiStepFW(max_steps=3000, tol=tol),
            "CorrectiveFW": CorrectiveFW(max_steps=3000, tol=tol),
            "BlockFW": BlockFW(tol=tol),
        }

    BlockFW(max_passes=1, compiled=True).solve(problem(1.0))  # compile outside of the timing
    rows = []
    for eta in tqdm((0.1, 1.0, 10.0), desc="against ExactQP"):
        began = time.perf_counter()
        best = problem(eta)
        exact = ExactQP(max_entries=10**9).solve(best)
        exact_seconds = time.perf_counter() - began
        for tol in (1e-2, 1e-4):
            runs = {name: lambda s=s, eta=eta: s.solve(problem(eta)) for name, s in solvers(tol).items()}
            seconds = interleaved(runs, options.repeats)
            for name, solver in solvers(tol).items():
                p = problem(eta)
                point = solver.solve(p)
                rows.append(
                    {
                        "η": eta,
                        "relative gap": tol,
                        "solver": name,
                        "seconds": seconds[name],
                        "ExactQP seconds": exact_seconds,
                        "times faster": exact_seconds / seconds[name],
                        "steps": point.steps,
                        "reached": float(p.relative_gap(point)),
                        "exact − D": float(best.dual(exact) - p.dual(point)),
                    }
                )
    size = f"n = {len(x)}, K = 10, {sum(p.numel() for p in net.parameters()):,} parameters, float32"
    note = f"One step of an MLP on digits: {size}. Each time includes the forward pass; compiling is not included."
    write(options, "against_exact_qp", rows, note)

    def draw(fig: Any, axes: Any) -> None:
        for ax, tol in zip(axes, (1e-2, 1e-4), strict=True):
            for i, name in enumerate(solvers(tol)):
                mine = [r for r in rows if r["solver"] == name and r["relative gap"] == tol]
                at = [k + 0.25 * (i - 1) for k in range(len(mine))]
                bars = ax.bar(at, [r["times faster"] for r in mine], width=0.23, label=name)
                ax.bar_label(bars, fmt="%.0f×", fontsize=8)
            goal = 100 if tol == 1e-2 else 10
            ax.axhline(goal, color="k", lw=1, ls="--", label=f"goal: {goal}×")
            ax.set(yscale="log", title=f"to a relative gap of {tol:g}", ylabel="times faster than ExactQP")
            ax.set_xticks(range(3), ["η = 0.1", "η = 1", "η = 10"])
            ax.legend(fontsize=8)

    figure(options, "against_exact_qp", draw, ncols=2, figsize=(10, 4))
