"""The value of a class loss in a few of torch's own operations, for accelerators without Triton.

With a = u − e_y, a class k is worth a_k − a_y = u_k − u_y + [k ≠ y] to the hinge, and y itself is worth 0. So the hinge
is the cross-entropy with max a in place of log Σ exp u: torch's ``nll_loss`` of a − max a, which also checks the
classes on the device, ignores samples and weights them. Five calls forward and four backward; 15 and
four for the smoothed hinge. (a_y is rounded like a score: above 2^24 a float32 cannot tell u_y from u_y − 1.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._kernels.class_rows import Kind

REDUCTION = {"mean": 1, "sum": 2}  # the codes of torch's own operations


def value(kind: Kind, scores: Tensor, target: Tensor, weight: Tensor | None, ignore: int, mean: bool) -> Tensor:
    """Σ p b of scores ``[n, K]`` and classes ``[n]``.

    >>> value("hinge", torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]), None, -100, True)
    tensor(0.5000)
    """
    reduction = "mean" if mean else "sum"
    if kind == "cross-entropy":
        return F.cross_entropy(scores, target, weight, ignore_index=ignore, reduction=reduction)
    found: Tensor = _Hinge.apply(scores, target, weight, ignore, REDUCTION[reduction], kind == "smooth hinge")  # type: ignore[no-untyped-call]
    return found


class _Hinge(torch.autograd.Function):
    """Σ p b, whose gradient in the scores is p (α − e_y), with α = e_k or the softmax."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, target: Tensor, weight: Tensor | None, ignore: int, reduction: int, smooth: bool
    ) -> Tensor:
        y = target.clamp(0, u.shape[1] - 1)[:, None]
        a = u.scatter(1, y, -1.0, reduce="add")
        best, k = a.max(1, keepdim=True)
        alpha = None
        if smooth:
            p = u.softmax(1)
            finite = a.clamp(min=torch.finfo(a.dtype).min)  # a masked class, −∞, adds nothing: its p is 0
            mean = finite.mul_(p).sum(1, keepdim=True)
            helps = mean > a.gather(1, y)
            best = torch.where(helps, mean, best)
            alpha = torch.where(helps, p, torch.zeros_like(p).scatter_(1, k, 1))
        total, mass = torch.ops.aten.nll_loss_forward(a.sub_(best), target, weight, reduction, ignore)
        ctx.save_for_backward(u, target, weight, mass, k, alpha)
        ctx.options = reduction, ignore
        found: Tensor = total
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        u, target, weight, mass, k, alpha = ctx.saved_tensors
        s: Tensor = torch.ops.aten.nll_loss_backward(grad, u, target, weight, *ctx.options, mass)  # −p e_y
        p = s.sum(1, keepdim=True).neg_()
        s = s.scatter_add_(1, k, p) if alpha is None else s.addcmul_(p, alpha)
        return s, None, None, None, None, None
