"""The Deep Frank-Wolfe algorithm in the paper's letters (Algorithm 1, typos corrected): the optimizer's plain twin."""

from __future__ import annotations

import torch
from torch import Tensor


def get_s(u: Tensor, y: int, smooth: bool) -> Tensor:
    """The dual direction of one sample, a point of the simplex over classes (appendix A.6)."""
    K = len(u)
    Delta = torch.tensor([float(k != y) for k in range(K)], dtype=u.dtype)
    b = u - u[y] + Delta
    conditional_gradient = torch.zeros_like(u)
    conditional_gradient[b.argmax()] = 1
    s_ce = torch.softmax(u, 0)
    return s_ce if smooth and s_ce @ b > 0 else conditional_gradient


def dfw_step(
    w: Tensor, z: Tensor, scores: Tensor, y: Tensor, *, eta: float, mu: float, l2: float, smooth: bool
) -> tuple[Tensor, Tensor, float]:
    """One step on the flat parameters ``w`` with the Jacobian computed sample by sample: (w, z, γ)."""
    n, K = scores.shape
    value, delta = torch.zeros(()), torch.zeros_like(w)
    for i in range(n):
        s = get_s(scores[i].detach(), int(y[i]), smooth)
        b = torch.stack([scores[i, k] - scores[i, y[i]] + float(k != y[i]) for k in range(K)])
        (grad,) = torch.autograd.grad(s @ b, w, retain_graph=True)
        value, delta = value + (s @ b).detach() / n, delta + grad / n
    r = l2 * w.detach()
    gamma = float(((-eta * delta @ r + value) / (eta * delta @ delta)).clamp(0, 1)) if delta.any() else 0.0
    z = mu * z - eta * gamma * (r + delta)
    return w.detach() - eta * (r + gamma * delta) + mu * z, z, gamma
