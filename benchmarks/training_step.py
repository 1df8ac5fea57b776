"""A whole training step (forward, backward, update): SingleStepFW and SGD, on the paper's three families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import Options, spread, write
from experiments.models import DenseNet, SentencePairBiLSTM, WideResNet
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW

NESTEROV: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}


def training_step(
    model: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer, x: tuple[Tensor, ...], y: Tensor
) -> Callable[[], None]:
    def run() -> None:
        optimizer.zero_grad()
        loss(model(*x), y).backward()
        optimizer.step()

    return run


def main(options: Options) -> None:
    """Time the loop that everyone writes, with cross-entropy and SGD, and with the smoothed hinge and SingleStepFW."""
    n = 16 if options.quick else 64
    images = (torch.randn(n, 3, 32, 32),)
    lengths = torch.randint(5, 20, (n,))
    sentences = (torch.randn(n, 20, 100), lengths, torch.randn(n, 20, 100), lengths)
    networks: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], int]] = {
        "WRN-16-4": (lambda: WideResNet(16, 4), images, 10),
        "DenseNet-22, growth 12": (lambda: DenseNet(22, 12), images, 10),
        "BiLSTM, 256 units": (lambda: SentencePairBiLSTM(100, 256, 512), sentences, 3),
    }
    rows = []
    for name, (build, x, classes) in networks.items():
        y = torch.randint(classes, (n,))
        runs = {}
        for kind in ("SGD foreach", "SGD fused", "SingleStepFW"):
            torch.manual_seed(0)
            model = build()
            params = list(model.parameters())
            if kind == "SingleStepFW":
                loss: nn.Module = MultiClassHinge(smooth=True)
                optimizer: torch.optim.Optimizer = ProxOptimizer(loss, SingleStepFW(), params, **NESTEROV)  # type: ignore[arg-type]
            else:
                loss, how = nn.CrossEntropyLoss(), {kind.split()[1]: True}
                optimizer = torch.optim.SGD(params, nesterov=True, **NESTEROV, **how)
            runs[kind] = training_step(model, loss, optimizer, x, y)
        seconds = spread(runs, repeats=3 if options.quick else 15, inner=1, warm_up=1)
        rows.append(
            {"network": name, "SGD foreach, ms": 1e3 * seconds["SGD foreach"][1]}
            | {f"{kind} /": seconds[kind][1] / seconds["SGD foreach"][1] for kind in ("SGD fused", "SingleStepFW")}
        )
    write(options, "training_step", rows, f"Batches of {n}; ratios to SGD with foreach.")
