"""The usual two parameter groups, with and without weight decay."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def no_decay(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups for ``ProxOptimizer(..., weight_decay=...)``: weights decay; biases, norms and other vectors do not.

    Parameters with fewer than two dimensions go into the second group, whose weight decay is 0. Those that need no
    gradient are left out, shared ones are listed once, and a group may be empty.

    >>> weights, rest = no_decay(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    >>> [tuple(p.shape) for p in weights["params"]], [tuple(p.shape) for p in rest["params"]], rest["weight_decay"]
    ([(3, 2)], [(3,), (3,), (3,)], 0.0)
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    weights: list[Tensor] = [p for p in trained if p.dim() >= 2]
    return [{"params": weights}, {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}]
