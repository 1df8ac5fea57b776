"""Scalars per sample: a slice of rows at a time, and with a gradient that is already known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SLICE = 2**18  # elements that fit into a core's cache


def in_slices(f: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """``f(*rows)``, a slice of rows at a time on the CPU: the temporaries of ``f`` stay small, and in the cache.

    >>> in_slices(lambda a, b: a + b, torch.ones(3), torch.ones(3))
    tensor([2., 2., 2.])
    """
    first = rows[0]
    size = max(1, len(first) * SLICE // max(1, first.numel()))
    if size >= len(first) or first.device.type != "cpu" or torch.compiler.is_compiling():
        return f(*rows)
    return torch.cat([f(*part) for part in zip(*(torch.split(r, size) for r in rows), strict=True)])


def row_dots(a: Tensor, b: Tensor) -> Tensor:
    """⟨a_i, b_i⟩ for each row, ``[n]``; torch would store all the products first.

    >>> row_dots(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([11.])
    """
    return in_slices(torch.linalg.vecdot, a, b)


def relative(u: Tensor, reference: Tensor) -> Tensor:
    """u − reference, for references that may be −∞, the score of a true class that is masked: 0 · ∞ would be NaN.

    >>> relative(torch.tensor([2.0, -torch.inf]), torch.tensor([1.0, -torch.inf]))
    tensor([1., -inf])
    """
    return u - reference.clamp(min=torch.finfo(u.dtype).min / 2)


class _Tangent(torch.autograd.Function):
    """The values ``[n]`` of the planes s at the scores u, which autograd need not compute again."""

    @staticmethod
    def forward(value: Tensor, *planes: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1 : 1 + len(inputs) // 2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s = ctx.saved_tensors
        return None, *[None] * len(s), *(grads[0].reshape(-1, *[1] * (x.dim() - 1)) * x for x in s)


def tangent(value: Tensor, s: tuple[Tensor, ...], scores: tuple[Tensor, ...]) -> Tensor:
    """``value``, ``[n]``, as a function of the ``scores`` whose gradient is ``s``.

    >>> u = torch.tensor([[3.0, 1.0]], requires_grad=True)
    >>> torch.autograd.grad(tangent(torch.tensor([5.0]), (torch.tensor([[2.0, -1.0]]),), (u,)), u)
    (tensor([[ 2., -1.]]),)
    """
    found: Tensor = _Tangent.apply(value, *s, *scores)  # type: ignore[no-untyped-call, unused-ignore]
    return found
