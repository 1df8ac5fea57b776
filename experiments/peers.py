"""Peers that no maintained package has, and Muon with AdamW for what it does not train.

BPGrad: Zhang, Wu, Wang, CVPR 2018, https://arxiv.org/abs/1711.06959.
DoG: Ivgi, Hinder, Carmon, DoG is SGD's Best Friend, ICML 2023, https://arxiv.org/abs/2302.12022.
Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/; its step in AdamW's size: Liu et al., 2025,
https://arxiv.org/abs/2502.16982.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class BPGrad(torch.optim.Optimizer):
    """Steps along the gradient whose length a Lipschitz function needs at least to fall to zero.

    A function with Lipschitz constant L and values above 0 has no minimum nearer than f / L. That is the length of the
    step, and it shrinks with the loss; η = 1/L is the learning rate:

        v ← μ v − η f g / (‖g‖ + ε),        w ← w + v

    ‖g‖ is over all parameters. This is the one-batch case (m = 1 in the authors' solver), and what the Deep
    Frank-Wolfe paper's code does: there, as here, weight decay λ is a part of the objective, f + λ/2 ‖w‖² and
    g + λ w. That paper's text says Nesterov momentum for BPGrad; its code, and BPGrad's publication, have the above.

    Example: f(w) = ‖w‖ at (3, 4) is 5, and with η = 1 one step of that length is the minimum.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = BPGrad([w], lr=1.0, eps=0.0)
    >>> loss = w.norm()
    >>> loss.backward()
    >>> optimizer.step(loss=loss)
    >>> w.detach().abs().max() < 1e-6
    tensor(True)
    """

    def __init__(
        self, params: Params, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0, eps: float = 1e-5
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.eps = eps

    @torch.no_grad()
    def step(self, *, loss: Tensor) -> None:  # type: ignore[override]
        """One step; ``loss`` is the value that was differentiated."""
        moved, grads = _decayed(self)
        value = loss + sum(group["weight_decay"] / 2 * p.square().sum() for group, p in moved)
        factor = value / (_norm(grads) + self.eps)
        for (group, p), g in zip(moved, grads, strict=True):
            velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
            p.add_(velocity.mul_(group["momentum"]).sub_(group["lr"] * factor * g))


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
        self, params: Params, lr: float = 1.0, weight_decay: float = 0.0, start: float = 1e-6, eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "step_size": 0.0})
        self.start, self.eps = start, eps

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        moved, grads = _decayed(self)
        starts = [self.state[p].setdefault("start", p.clone()) for _, p in moved]
        totals = self.state[self.param_groups[0]["params"][0]]  # so that a state dict has them
        distance = _norm([p - start for (_, p), start in zip(moved, starts, strict=True)])
        totals["distance"] = torch.maximum(totals.get("distance", self.start * (1 + _norm(starts))), distance)
        totals["squares"] = totals.get("squares", 0.0) + _norm(grads).square()
        eta = totals["distance"] / (totals["squares"] + self.eps).sqrt()
        for (group, p), g in zip(moved, grads, strict=True):
            group["step_size"] = group["lr"] * eta
            p.sub_(group["step_size"] * g)


class Muon(torch.optim.Optimizer):
    """torch's Muon for the matrices of hidden layers, flattened convolutions included; AdamW for the rest.

    The rest is what its authors leave to AdamW: vectors, embeddings and the last matrix. Both have the same ``lr``:
    Muon's update is scaled to the size of AdamW's.
    """

    def __init__(self, model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        super().__init__(model.parameters(), {"lr": lr, "weight_decay": weight_decay})
        tables = {p for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
        matrices = [p for p in model.parameters() if p.dim() > 1 and p not in tables]
        self.matrices = matrices[:-1] or matrices
        self.flat = [nn.Parameter(p.detach().flatten(1).clone()) for p in self.matrices]
        rest = [p for p in model.parameters() if p not in set(self.matrices)]
        options = {"lr": lr, "weight_decay": weight_decay}
        self.parts = {"muon": torch.optim.Muon(self.flat, adjust_lr_fn="match_rms_adamw", **options)}
        self.parts |= {"adamw": torch.optim.AdamW(rest, **options)} if rest else {}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p, flat in zip(self.matrices, self.flat, strict=True):
            flat.copy_(p.flatten(1))
            flat.grad = None if p.grad is None else p.grad.flatten(1)
        for part in self.parts.values():
            part.param_groups[0]["lr"] = self.param_groups[0]["lr"]  # a schedule's
            part.step()
        for p, flat in zip(self.matrices, self.flat, strict=True):
            p.copy_(flat.view(p.shape))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        for name, part in self.parts.items():
            part.load_state_dict(state.pop(name))
        super().load_state_dict(state)


def _decayed(optimizer: torch.optim.Optimizer) -> tuple[list[tuple[dict[str, Any], Tensor]], list[Tensor]]:
    """The parameters that have gradients, with their groups, and the gradients of the objective with its decay."""
    moved = [(group, p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return moved, [p.grad.add(p, alpha=group["weight_decay"]) for group, p in moved]


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors)).norm()
