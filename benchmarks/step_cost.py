"""What several inner steps cost in training: a step of each solver against a single step, on a conv net."""

from __future__ import annotations

import copy

import torch
from torch import nn

from benchmarks.common import Options, interleaved, ratio, write
from proxsvm import ProxOptimizer
from proxsvm.linearization.cheap_jvp import cheap_jvp
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import CorrectiveFW, DualSolver, MultiStepFW, SingleStepFW

SOLVERS: dict[str, DualSolver] = {
    "SingleStepFW()": SingleStepFW(),
    "MultiStepFW(2)": MultiStepFW(2, tol=0.0),
    "MultiStepFW(3)": MultiStepFW(3, tol=0.0),
    "MultiStepFW(5)": MultiStepFW(5, tol=0.0),
    "CorrectiveFW(2)": CorrectiveFW(2, tol=0.0),
    "CorrectiveFW(3)": CorrectiveFW(3, tol=0.0),
}


def conv_net(width: int) -> nn.Module:
    """Six 3 × 3 convolutions with batch norm, for 32 × 32 images."""
    layers: list[nn.Module] = []
    channels = 3
    for block, stride in ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1)):
        inputs, channels = channels, block * width
        layers += [nn.Conv2d(inputs, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def main(options: Options) -> None:
    torch.manual_seed(0)
    net, loss = conv_net(8 if options.quick else 16), MultiClassHinge(smooth=True)
    nets = {"": net, ", cheap_jvp": cheap_jvp(copy.deepcopy(net))}
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    state = {k: v.clone() for k, v in net.state_dict().items()}

    def step(net: nn.Module, solver: DualSolver) -> float:
        net.load_state_dict(state)
        optimizer = ProxOptimizer(loss, solver, net.parameters(), lr=1.0, metric=Euclidean(), memory=0.0)
        optimizer.step(lambda: loss(net(x), y))
        return float(optimizer.last.dual)

    runs = {
        name + how: (lambda net=net, solver=solver: step(net, solver))
        for name, solver in SOLVERS.items()
        for how, net in nets.items()
    }
    times = interleaved(runs, options.rounds(11, quick=5), warm_up=1)
    rows = [
        {
            "what": name,
            "milliseconds": 1e3 * times[name].median,
            "times a single step": ratio(times, name, "SingleStepFW()"),
            "dual reached": runs[name](),
        }
        for name in runs
    ]
    note = (
        "One training step, forward pass included: a conv net with batch norm, n = 32. N steps take a forward pass, "
        "N vjps and N − 1 jvps."
    )
    write(options, "step_cost", rows, note)
