"""What several inner steps cost in training: a step of each solver against a single step, on a conv net."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from benchmarks.common import Options, figure, spread, write
from proxsvm import ProxOptimizer
from proxsvm.linearization.cheap_jvp import cheap_jvp
from proxsvm.linearization.graph import Linearization
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
    nets = {"": net, ", cheap_jvp": cheap_jvp(copy.deepcopy(net))}
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

    def step(net: nn.Module, solver: DualSolver) -> Any:
        net.load_state_dict(state)
        optimizer = ProxOptimizer(loss, solver, net.parameters(), lr=1.0)
        optimizer.step(lambda: loss(net(x), y))
        return optimizer.last

    runs = {
        name + how: (lambda net=net, solver=solver: step(net, solver))
        for name, solver in solvers.items()
        for how, net in nets.items()
    }
    for how, net in copy.deepcopy(nets).items():  # the parts of a step; their weights stay
        line = Linearization(net(x), list(net.parameters()))
        s, d = torch.randn(32, 10) / 32, [torch.randn_like(w) for w in net.parameters()]
        line.jvp(d)  # its graph is built once
        runs |= {
            f"forward pass{how}": lambda net=net: net(x),
            f"vjp{how}": lambda line=line, s=s: line.vjp(s),
            f"jvp{how}": lambda line=line, d=d: line.jvp(d),
        }
    quartiles = spread(runs, 5 if options.quick else 11, warm_up=1)
    single = quartiles["SingleStepFW()"][1]
    rows = [
        {
            "what": name,
            "milliseconds": 1000 * median,
            "times a single step": median / single,
            "dual reached": float(step(net, solvers[name.split(",")[0]]).dual) if "FW" in name else "",
        }
        for name, (_, median, _) in quartiles.items()
    ]
    note = (
        "One training step, forward pass included: a conv net with batch norm, n = 32; and the parts of it. N steps "
        "take a forward pass, N vjps and N − 1 jvps."
    )
    write(options, "step_cost", rows, note)

    def draw(fig: Any, ax: Any) -> None:
        shown = [r for r in rows if "FW" in r["what"]]
        colors = ["C1" if "cheap" in r["what"] else "C0" for r in shown]
        bars = ax.barh([r["what"] for r in shown], [r["times a single step"] for r in shown], color=colors)
        ax.bar_label(bars, fmt="%.1f×")
        ax.invert_yaxis()
        ax.set(xlabel="cost of a training step, times a single step")

    figure(options, "step_cost", draw, figsize=(8, 5))
