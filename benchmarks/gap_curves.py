"""The certified gap of every solver against its steps and its seconds, from the traces that they report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.common import Options, begun, figure, write
from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, MultiStepFW, Trace

ETAS = (1.0, 10.0)


def main(options: Options) -> None:
    net, x, y = begun(n=32 if options.quick else 128, dtype=torch.double)
    most = 100 if options.quick else 400
    solvers = {
        "MultiStepFW": MultiStepFW(max_steps=most, tol=1e-6),
        "CorrectiveFW": CorrectiveFW(max_steps=most, tol=1e-6),
        "BlockFW": BlockFW(max_passes=most, tol=1e-6),
    }
    curves: dict[tuple[float, str], list[Trace]] = {}
    for eta in tqdm(ETAS, desc="gap curves"):
        problem = ProxProblem.from_scores(MultiClassHinge(), net(x), y, net.parameters(), lr=eta)
        BlockFW(max_passes=1, compiled=True).solve(problem)
        for name, solver in solvers.items():
            seen: list[Trace] = []
            replace(solver, callback=seen.append).solve(problem)
            curves[eta, name] = seen
    rows = [
        {
            "η": eta,
            "solver": name,
            "steps": seen[-1].step,
            "seconds": seen[-1].seconds,
            "relative gap": seen[-1].gap / (seen[-1].primal - seen[0].dual),
        }
        for (eta, name), seen in curves.items()
    ]
    write(options, "gap_curves", rows, f"One step of an MLP on digits, n = {len(x)}, float64; at most {most} steps.")

    def draw(fig: Any, axes: Any) -> None:
        for row, eta in enumerate(ETAS):
            for column, what in enumerate(("step", "seconds")):
                ax = axes[row, column]
                for name in solvers:
                    seen = curves[eta, name]
                    gap = [max(t.gap / (t.primal - seen[0].dual), 1e-9) for t in seen]
                    ax.plot([getattr(t, what) for t in seen], gap, label=name)
                ax.set(yscale="log", xlabel="steps or passes" if what == "step" else "seconds", title=f"η = {eta:g}")
                ax.set_ylabel("relative gap")
        axes[0, 0].legend()

    figure(options, "gap_curves", draw, nrows=2, ncols=2, figsize=(10, 7), sharey=True)
