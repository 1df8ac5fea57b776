"""BPGrad, as the paper's baseline configures it.

Zhang, Wu, Wang, BPGrad: Towards Global Optimality in Deep Learning via Branch and Pruning, CVPR 2018,
https://arxiv.org/abs/1711.06959.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class BPGrad(torch.optim.Optimizer):
    """Steps along the gradient whose length a Lipschitz function needs at least to fall to a lower bound.

    A function with Lipschitz constant L and lower bound ρ f* has no minimum nearer than (f − ρ f*) / L, where f* is the
    lowest value seen. That is the length of the step, and it shrinks with the loss; η = 1/L is the learning rate:

        v ← μ v − η (f − ρ f*) g / (‖g‖ + ε),        w ← w + v

    ‖g‖ is over all parameters. ρ = 0 is the one-batch case (m = 1 in the authors' solver), and what the Deep
    Frank-Wolfe paper's code does: there, as here, weight decay λ is a part of the objective, f + λ/2 ‖w‖² and
    g + λ w. That paper's text says Nesterov momentum for BPGrad; its code, and BPGrad's publication, have the above.

    Args:
        params: parameters or group dicts.
        lr: η = 1/L.
        momentum: μ in [0, 1).
        weight_decay: λ.
        rho: ρ in [0, 1).
        eps: ε.

    Example: f(w) = ‖w‖ at (3, 4) is 5, and with η = 1 one step of that length is the minimum.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = BPGrad([w], lr=1.0, eps=0.0)
    >>> loss = w.norm()
    >>> loss.backward()
    >>> _ = optimizer.step(loss=loss)
    >>> w.detach().abs().max() < 1e-6
    tensor(True)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        rho: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        for name, value, fits, expected in (
            ("lr", lr, lr > 0, "above 0"),
            ("momentum", momentum, 0 <= momentum < 1, "in [0, 1)"),
            ("weight_decay", weight_decay, weight_decay >= 0, "of 0 or more"),
            ("rho", rho, 0 <= rho < 1, "in [0, 1)"),
            ("eps", eps, eps >= 0, "of 0 or more"),
        ):
            if not fits:
                raise ValueError(f"{name} is {value}; expected a number {expected}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.rho, self.eps = rho, eps
        self.last_step: Tensor | None = None
        """The factor (f − ρ f*) / (‖g‖ + ε) of the last step, on the device."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None, *, loss: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """One step; the value is ``loss``, or what ``closure`` returns after ``backward()``. No synchronisation."""
        if (closure is None) == (loss is None):
            raise TypeError("BPGrad's step-size needs the value of the loss: step(loss=value), or step(closure)")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        assert loss is not None
        value, groups = loss.detach(), []
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in weights]
            if weights and (decay := group["weight_decay"]):
                value = value + decay / 2 * torch.stack(torch._foreach_norm(weights)).square().sum()
                grads = list(torch._foreach_add(grads, weights, alpha=decay))
            groups.append((group, weights, grads))
        every = [g for _, _, grads in groups for g in grads]
        if not every:
            return loss
        norm = torch.stack(torch._foreach_norm(every)).norm()
        self.last_step = (value - self.rho * self._lowest(value)) / (norm + self.eps)
        for group, weights, grads in groups:
            if weights:
                self._move(weights, torch._foreach_mul(grads, self.last_step * -group["lr"]), group["momentum"])
        return loss

    def _move(self, weights: list[Tensor], moves: tuple[Tensor, ...], momentum: float) -> None:
        if momentum:
            velocities = [self.state[p].setdefault("velocity", torch.zeros_like(p)) for p in weights]
            torch._foreach_mul_(velocities, momentum)
            torch._foreach_add_(velocities, moves)
            moves = tuple(velocities)
        torch._foreach_add_(weights, moves)

    def _lowest(self, value: Tensor) -> Tensor:
        """f*, kept with the first parameter's state so that a state dict has it."""
        state = self.state[self.param_groups[0]["params"][0]]
        lowest = torch.minimum(state.get("lowest", value), value)
        state["lowest"] = lowest
        return lowest
