"""What several inner steps cost in training: a step of each solver against a single step, on a conv net."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.common import Options, figure, interleaved, write
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import CorrectiveFW, DualSolver, MultiStepFW, SingleStepFW


def conv_net(width: int) -> nn.Module:
    """Six 3 × 3 convolutions with batch norm, for 32 × 32 images."""
    layers: list[nn.Module] = []
    channels = 3
    for block, stride in ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1)):
        layers += [
            nn.Conv2d(channels, block * width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(block * width),
            nn.ReLU(),
        ]
        channels = block * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def main(options: Options) -> None:
    torch.manual_seed(0)
    net, loss = conv_net(8 if options.quick else 16), MultiClassHinge(smooth=True)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    solvers: dict[str, DualSolver] = {
        "SingleStepFW()": SingleStepFW(),
        "MultiStepFW(2)": MultiStepFW(2, tol=0.0),
        "MultiStepFW(3)": MultiStepFW(3, tol=0.0),
        "MultiStepFW(5)": MultiStepFW(5, tol=0.0),
        "CorrectiveFW(2)": CorrectiveFW(2, tol=0.0),
        "CorrectiveFW(3)": CorrectiveFW(3, tol=0.0),
    }
    state = {k: v.clone() for k, v in net.state_dict().items()}

    def step(solver: DualSolver) -> Any:
        net.load_state_dict(state)
        optimizer = ProxOptimizer(loss, solver, net.parameters(), lr=1.0)
        optimizer.step(lambda: loss(net(x), y))
        return optimizer.last

    for solver in solvers.values():
        step(solver)
    seconds = interleaved({name: lambda s=s: step(s) for name, s in solvers.items()}, 5 if options.quick else 15)
    single = seconds["SingleStepFW()"]
    rows = [
        {
            "solver": name,
            "milliseconds": 1000 * seconds[name],
            "times a single step": seconds[name] / single,
            "dual reached": float(step(solver).dual),
        }
        for name, solver in solvers.items()
    ]
    write(options, "step_cost", rows, "One training step, forward pass included: a conv net with batch norm, n = 32.")

    def draw(fig: Any, ax: Any) -> None:
        bars = ax.barh([r["solver"] for r in rows], [r["times a single step"] for r in rows])
        ax.bar_label(bars, fmt="%.1f×")
        ax.invert_yaxis()
        ax.set(xlabel="cost of a training step, times a single step")

    figure(options, "step_cost", draw, figsize=(7, 3.5))
