"""The value of a class loss, with the kernel that supports its input: numba's loop, Triton's, or a few torch calls.

On the CPU the loop saves some thirty torch calls, which take most of the time of a small batch, and on a large one
all memory except the gradient's: it writes p s into the gradient's buffer, row by row, while the row is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from proxsvm._kernels import class_torch, class_triton
from proxsvm._kernels.class_rows import Kind, in_memory, is_rows, run
from proxsvm._kernels.class_triton import on_gpu
from proxsvm._kernels.tensors import PLAIN, in_transform, number, widened
from proxsvm.losses.base import Origin

if TYPE_CHECKING:
    from proxsvm.losses._classes import ClassLoss


def compiled_value(loss: ClassLoss, scores: Tensor, target: Tensor) -> Tensor | None:
    """The loss value; None where no kernel supports the input: the base class computes it, or says what is wrong.

    >>> from proxsvm.losses import MultiClassHinge
    >>> compiled_value(MultiClassHinge(), torch.zeros(1, 2), torch.tensor([2]))       # there is no class 2
    """
    kind = loss.row_kernel()
    if kind is None or torch.compiler.is_compiling() or type(scores) not in PLAIN:
        return None
    scores = widened(scores)
    if in_memory(scores, target):
        way = _by_numba
    elif on_gpu(scores, target):
        way = _by_triton
    elif not scores.is_cpu and is_rows(scores, target):
        way = _by_torch
    else:
        return None
    weight = loss.weight
    if weight is not None:
        if weight.shape != scores.shape[1:] or weight.device != scores.device:
            return None
        weight = weight.to(scores.dtype).contiguous()
    return way(loss, kind, scores, target, weight)


def _by_numba(loss: ClassLoss, kind: Kind, scores: Tensor, target: Tensor, weight: Tensor | None) -> Tensor | None:
    needed = kind != "hinge" or (scores.requires_grad and torch.is_grad_enabled())
    s = torch.empty_like(scores) if needed else None
    rows = run(kind, scores, target, s, weight, loss.ignore_index, loss.reduction == "mean")
    if rows is None:
        return None
    value: Tensor = _apply(scores, s, rows.total, loss.formula_of(target))
    if value.requires_grad:
        alike = weight is None and rows.counted == target.numel()
        p = rows.share if alike else loss.coefficients(scores, target, None)
        value.origin = Origin(loss, scores, target, p)  # type: ignore[attr-defined]
    return value


def _by_triton(loss: ClassLoss, kind: Kind, scores: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    mean = loss.reduction == "mean"
    found = class_triton.value(kind, scores, target, weight, loss.ignore_index, mean, loss.formula_of(target))
    return _with_origin(found, loss, scores, target)


def _by_torch(loss: ClassLoss, kind: Kind, scores: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    found = class_torch.value(kind, scores, target, weight, loss.ignore_index, loss.reduction == "mean")
    return _with_origin(found, loss, scores, target)


def _with_origin(value: Tensor, loss: ClassLoss, scores: Tensor, target: Tensor) -> Tensor:
    """The value, with an origin whose sample weights are computed when they are needed."""
    if value.requires_grad:
        origin = Origin(loss, scores, target, lambda: loss.coefficients(scores, target, None))
        value.origin = origin  # type: ignore[attr-defined]
    return value


class _Value(torch.autograd.Function):
    """Σ p b, whose gradient in the scores is p s: computed already, and handed over in the last backward pass.

    ``formula`` computes the value from the scores with operations that autograd knows: a gradient that is itself
    differentiated goes through it. None for a piecewise-linear loss, whose s does not change.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, s: Tensor | None, total: float, formula: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        if s is not None:
            ctx.save_for_backward(s, *([] if formula is None else [scores]))
        ctx.formula = formula
        return scores.new_full((), total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        s, *scores = ctx.saved_tensors
        if scores and torch.is_grad_enabled():
            (again,) = torch.autograd.grad(ctx.formula(*scores), scores, grad, create_graph=True)
            return again, None, None, None
        if not _is_last(grad):
            return s * grad, None, None, None
        return s if number(grad) == 1 else s.mul_(grad), None, None, None


# What ``Function.apply`` calls where no transform is active, as here: its own checks take as long as a small loss.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Value).apply


def _is_last(grad: Tensor) -> bool:
    """Whether a backward pass is the last on its graph, with one ``grad`` whose memory can be read directly."""
    try:
        kept = torch._C._autograd._get_current_graph_task_keep_graph()
        batched = torch._C._functorch.is_legacy_batchedtensor(grad)
    except AttributeError:  # private functions of torch
        return False
    return not (
        torch.is_grad_enabled()  # the gradient will be differentiated
        or kept
        or batched
        or in_transform()
        or grad.is_neg()
        or grad._is_zerotensor()
    )
