"""How well conditioned is a step in the diagonal metric, for multi-step solvers, in the first steps of training?"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.common import Options, write
from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import BlockFW, CorrectiveFW


def main(options: Options) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 4)).double()
    x, y = torch.randn(16, 10, dtype=torch.float64), torch.randint(4, (16,))
    rows = []
    for eps in (1e-8, 1e-4, 1e-3, 1e-2):
        row: dict[str, float | str] = {"eps": eps}
        for solver in (CorrectiveFW(max_steps=200, tol=1e-4), BlockFW(max_passes=200, tol=1e-4)):
            problem = ProxProblem.from_scores(
                MultiClassHinge(), model(x), y, model.parameters(), lr=0.01, metric=Diagonal(eps=eps)
            )
            point = solver.solve(problem)
            gap = float(problem.relative_gap(point))
            row[type(solver).__name__] = f"{point.steps} (gap {gap:.1e})"
        rows.append(row)
    write(
        options,
        "metric_eps",
        rows,
        "Steps or passes to a relative gap of 1e-4, in a first step, η = 0.01, at most 200.",
    )
