"""What a metric costs in a whole training step, beside the peers that precondition: SOAP and Muon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from benchmarks.common import Options
from benchmarks.training_step import AVERAGE, Make, compare, ours, torchs
from proxsvm import metrics
from proxsvm._extras import load
from proxsvm.losses import CrossEntropy


def muon(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """torch's Muon for the matrices, AdamW for all else (biases, norms, convolutions)."""
    given = list(params)
    matrices = torch.optim.Muon([p for p in given if p.dim() == 2], lr=1e-3)
    rest = torch.optim.AdamW([p for p in given if p.dim() != 2], lr=1e-3, fused=True)

    def after(*_: Any) -> None:
        matrices.step()
        matrices.zero_grad()

    rest.register_step_post_hook(after)
    return rest


def main(options: Options) -> None:
    given: dict[str, Any] = {"lr": "auto", "memory": 0.9, "average": AVERAGE, "weight_decay": 0.0}  # nothing set
    names = ("Euclidean", "Diagonal", "Kronecker")
    found = {name: getattr(metrics, name) for name in names if hasattr(metrics, name)}
    makes: dict[str, Make] = {
        "AdamW fused, average": torchs(torch.optim.AdamW, average=True, fused=True),
        **{f"{name}()": ours(CrossEntropy(), metric=metric(), **given) for name, metric in found.items()},
        "SOAP, average": torchs(load("pytorch_optimizer", extra="peers").SOAP, average=True, lr=1e-3),
        "Muon, average": torchs(muon, average=True),
    }
    note = "Ratios to AdamW fused with torch's average; ours with only the metric set; SOAP of pytorch_optimizer."
    compare(options, "metric_cost", makes, note)
