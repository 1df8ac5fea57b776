"""DoG: Ivgi, Hinder, Carmon, DoG is SGD's Best Friend, ICML 2023, https://arxiv.org/abs/2302.12022."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class DoG(torch.optim.Optimizer):
    """SGD whose step-size is the distance from the start over the gradients' norms so far.

        η_t = r̄_t / √(Σ_{i≤t} ‖g_i‖² + ε),     r̄_t = max over i ≤ t of ‖w_i − w_0‖, at least r_ε (1 + ‖w_0‖)

    over all parameters; ``lr`` multiplies η_t, and 1 is its authors' setting for every task. They evaluate an average
    of the weights. Weight decay λ adds λ w to the gradient.

    Example: the first step has the length r_ε (1 + ‖w_0‖).

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = DoG([w], start=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> round(5 - float(w.detach().norm()), 4)
    0.6
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1.0,
        weight_decay: float = 0.0,
        start: float = 1e-6,
        eps: float = 1e-8,
    ) -> None:
        for name, value, fits in (
            ("lr", lr, lr > 0),
            ("weight_decay", weight_decay, weight_decay >= 0),
            ("start", start, start > 0),
        ):
            if not fits:
                raise ValueError(f"{name} is {value}; expected a positive number")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "step_size": 0.0})
        self.start, self.eps = start, eps

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """One step, without synchronising."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not moved:
            return loss
        weights = [p for _, p in moved]
        starts = [self.state[p].setdefault("start", p.clone()) for p in weights]
        grads = [p.grad.add(p, alpha=group["weight_decay"]) for group, p in moved]
        totals = self.state[self.param_groups[0]["params"][0]]  # so that a state dict has them
        least = self.start * (1 + _norm(starts))
        totals["distance"] = torch.maximum(totals.get("distance", least), _norm(torch._foreach_sub(weights, starts)))
        totals["squares"] = totals.get("squares", 0.0) + _norm(grads).square()
        eta = totals["distance"] / (totals["squares"] + self.eps).sqrt()
        for (group, p), g in zip(moved, grads, strict=True):
            group["step_size"] = group["lr"] * eta
            p.sub_(group["step_size"] * g)
        return loss


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).norm()
