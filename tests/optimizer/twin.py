"""One step in float64 and plain formulas, parameter by parameter: what any kernel, metric and option must give."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxsvm.metrics import Diagonal
from tests.cases import PaperOptimizer as ProxOptimizer


class Expected(NamedTuple):
    """What a parameter and its state are after the step."""

    w: Tensor
    state: dict[str, Tensor]


class _Member(NamedTuple):
    p: Tensor
    w: Tensor
    g: Tensor
    M: Tensor
    v: Tensor
    group: dict[str, Any]
    eta: float


def _kept(optimizer: ProxOptimizer, p: Tensor, name: str, start: Tensor) -> Tensor:
    return optimizer.state[p][name].double() if name in optimizer.state.get(p, {}) else start


def _members(optimizer: ProxOptimizer) -> list[_Member]:
    found = []
    for group, metric in zip(optimizer.param_groups, optimizer._metrics, strict=True):
        for p in group["params"]:
            if p.grad is None:
                continue
            w, g = p.detach().double().clone(), p.grad.double().clone()
            v, M = torch.zeros_like(w), torch.ones_like(w)
            if isinstance(metric, Diagonal):
                t = _kept(optimizer, p, "t", torch.zeros(()))
                v = metric.beta2 * _kept(optimizer, p, "v", v) + (1 - metric.beta2) * g**2
                M = (v / (1 - metric.beta2 ** (t + 1))).sqrt() + metric.eps
            found.append(_Member(p, w, g, M, v, group, float(group["lr"])))
    return found


def step(optimizer: ProxOptimizer, value: float) -> tuple[float, dict[Tensor, Expected]]:
    """γ, and each moved parameter after ``optimizer.step(loss=value)``; to be called before it."""
    members = _members(optimizer)
    r_delta = sum(m.eta * m.group["weight_decay"] * float((m.w * m.g).sum()) for m in members)
    delta_delta = sum(m.eta * float((m.g * m.g / m.M).sum()) for m in members)
    ascent = value - r_delta
    gamma = min(max(ascent / delta_delta, 0.0), 1.0) if delta_delta > 0 else float(ascent > 0)
    moved = {}
    for p, w, g, M, v, group, eta in members:
        if eta == 0:  # nothing of such a group moves
            continue
        mu, decay, longest, state = group["momentum"], group["weight_decay"], group["average"], {}
        new = w - eta * (decay * w + gamma * g / M)
        if mu:
            state["z"] = mu * _kept(optimizer, p, "z", torch.zeros_like(w)) - eta * gamma * (decay * w + g / M)
            new = new + mu * state["z"]
        if longest is not None:
            t = float(_kept(optimizer, p, "t", torch.zeros(())))
            beta = min(longest, (1 + t) / (10 + t))
            state["average"] = beta * _kept(optimizer, p, "average", w) + (1 - beta) * new
        if v.any():
            state["v"] = v
        moved[p] = Expected(new, state)
    return gamma, moved
