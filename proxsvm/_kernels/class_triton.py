"""The value of a class loss on a GPU: one launch forward, one backward, in Triton (the extra ``gpu``).

The gradient is the only memory of the scores' size, and the host never synchronises: a class that does not exist fails
an assertion on the device. The kernels are in :mod:`proxsvm._kernels.class_triton_kernels`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels import step_triton
from proxsvm._kernels.class_rows import HINGE, KINDS, Kind, readable_rows
from proxsvm._kernels.tensors import assert_async, watched


def on_gpu(scores: Tensor, target: Tensor) -> bool:
    """Whether the kernels can take the input."""
    return (
        scores.device.type in step_triton.DEVICES
        and readable_rows(scores, target)
        and not watched()
        and step_triton.available(scores.dtype)
    )


def value(
    kind: Kind,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore: int,
    mean: bool,
    formula: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Σ p b of scores that are :func:`on_gpu`; ``weight`` is contiguous, ``[K]`` and of the same dtype.

    ``formula``: the value in operations known to autograd, for a gradient that is itself differentiated.
    """
    found: Tensor = _Rows.apply(scores, target, weight, KINDS.index(kind), ignore, mean, formula)  # type: ignore[no-untyped-call]
    return found


@functools.cache
def _ticket(device: torch.device, stream: int) -> Tensor:
    """Counts a kernel's finished programs; the last one resets it to 0."""
    return torch.zeros((), dtype=torch.int32, device=device)


class _Rows(torch.autograd.Function):
    """Σ p b, whose gradient in the scores is p s, computed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, y: Tensor, weight: Tensor | None, kind: int, ignore: int, mean: bool, formula: Any
    ) -> Tensor:
        from proxsvm._kernels import class_triton_kernels as kernels

        n, K = u.shape
        dtype = getattr(kernels.language, str(u.dtype).removeprefix("torch."))
        block = min(kernels.BLOCK, max(16, 1 << (K - 1).bit_length()))
        stream = torch.cuda.current_stream(u.device).cuda_stream if u.is_cuda else 0
        partial, ticket = u.new_empty(n, 3, dtype=torch.float64), _ticket(u.device, stream)
        value, out, chosen = u.new_empty(()), u.new_empty(2), torch.empty_like(y)
        tops, masses = (None, None) if kind == HINGE else (u.new_empty(n), u.new_empty(n))
        with step_triton.on(u):
            kernels.forward[(n,)](
                *(u, y, weight, partial, ticket, value, out, chosen, tops, masses, K, ignore),
                *(dtype, kind, mean, block, kernels.BLOCK),
            )
        assert_async(out.select(0, 1), f"a class index is outside [0, {K}), the K of the scores")
        ctx.save_for_backward(u, y, weight, out, chosen, tops, masses)
        ctx.options, ctx.formula = (K, ignore, dtype, kind, block), formula
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        from proxsvm._kernels import class_triton_kernels as kernels

        u, *rest = ctx.saved_tensors
        if ctx.formula is not None and torch.is_grad_enabled():
            (again,) = torch.autograd.grad(ctx.formula(u), u, grad, create_graph=True)
            return again, None, None, None, None, None, None
        s = torch.empty_like(u)
        K, ignore, *constants = ctx.options
        with step_triton.on(u):
            kernels.backward[(len(u),)](grad.contiguous(), u, *rest, s, K, ignore, *constants)
        return s, None, None, None, None, None, None
