"""Network passes (vjp + jvp) to a relative gap of 1e-2: plain, corrective and block solvers."""

from __future__ import annotations

from typing import Any

import torch
from tqdm import tqdm

from benchmarks.common import Options, begun, figure, write
from proxsvm import ProxProblem
from proxsvm.linearization.graph import Linearization
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, MultiStepFW


class Counting:
    """Counts the vjps and jvps of a problem; a batch of b rows of the Jacobian counts as b vjps."""

    def __init__(self, line: Linearization) -> None:
        self.vjps = self.jvps = 0
        vjp, jvp, jacobian = line.vjp, line.jvp, line.jacobian

        def counted_vjp(*args: Any) -> Any:
            self.vjps += 1
            return vjp(*args)

        def counted_jvp(*args: Any) -> Any:
            self.jvps += 1
            return jvp(*args)

        def counted_jacobian(*args: Any) -> Any:
            J = jacobian(*args)
            self.vjps += len(J)
            return J

        line.vjp, line.jvp, line.jacobian = counted_vjp, counted_jvp, counted_jacobian  # type: ignore[method-assign]


def main(options: Options) -> None:
    net, x, y = begun(n=32 if options.quick else 128, dtype=torch.double)
    most = 500 if options.quick else 3000
    solvers = {
        "plain (MultiStepFW)": MultiStepFW(max_steps=most, tol=1e-2),
        "corrective (CorrectiveFW)": CorrectiveFW(max_steps=most, tol=1e-2),
        "block (BlockFW)": BlockFW(tol=1e-2),
    }
    rows = []
    for eta in tqdm((0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), desc="network passes"):
        for name, solver in solvers.items():
            problem = ProxProblem.from_scores(MultiClassHinge(), net(x), y, net.parameters(), lr=eta)
            count = Counting(problem.linearization)
            point = solver.solve(problem)
            row = {"η": eta, "solver": name, "vjps": count.vjps, "jvps": count.jvps}
            row |= {"passes": count.vjps + count.jvps, "reached": float(problem.relative_gap(point))}
            rows.append(row)
    note = f"To a relative gap of 1e-2 on one step of an MLP on digits, n = {len(x)}, K = 10; at most {most} steps."
    write(options, "passes", rows, note)

    def draw(fig: Any, ax: Any) -> None:
        for name, marker in zip(solvers, "osD", strict=True):
            mine = [r for r in rows if r["solver"] == name]
            ax.plot([r["η"] for r in mine], [r["passes"] for r in mine], marker=marker, label=name)
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="η",
            ylabel="network passes, vjp + jvp",
            title="to a relative gap of 1e-2",
        )
        ax.legend()

    figure(options, "passes", draw, figsize=(7, 4.5))
