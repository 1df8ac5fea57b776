"""``MultiClassHinge`` with the 0/1 cost as loops over the rows of the scores, compiled by numba (the extra ``fast``).

The formulas are those of its oracle and of its smoothed atom; with α in the simplex of the classes

    s = α − e_y        b = ⟨s, u⟩ + 1 − α_y        α = e_k of the best class, or softmax(u) where that has b > 0.

Some thirty calls of torch are saved, which are most of the time of a small batch, and on a large one all memory but the
gradient's own: there the loops keep α where the gradient will be, or nothing but k.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from proxsvm.losses.base import Origin
from proxsvm.losses.hinge_loops import Array, loops_of

if TYPE_CHECKING:
    from proxsvm.losses.multi_class_hinge import MultiClassHinge

PLAIN = (Tensor, nn.Parameter)
HALF = (torch.float16, torch.bfloat16)
SMALL = 1 << 14  # scores up to which the calls of an autograd.Function cost more than a second copy
GRAIN = 1 << 19  # scores that are worth a thread, which takes some 100 µs to start


def compiled_value(loss: MultiClassHinge, scores: Tensor, target: Tensor) -> Tensor | None:
    """The loss value; None where the loops cannot take the input, and the base class does, or says what is wrong.

    >>> from proxsvm.losses import MultiClassHinge
    >>> compiled_value(MultiClassHinge(), torch.zeros(1, 2), torch.tensor([2]))       # there is no class 2
    """
    if type(scores) in PLAIN and scores.dtype in HALF and not torch.compiler.is_compiling():
        scores = scores.float()  # as the base class does
    loops = loops_of(scores.dtype) if _in_memory(scores, target) else None
    if loops is None:
        return None
    share = loss._share(len(target))
    value: Tensor | None = None
    if scores.numel() <= SMALL:
        value = _small(loops.small_smooth if loss.smooth else loops.small_plain, scores, target, share)
    elif loops.are_classes(target.numpy(), scores.shape[1]):
        value = (_Smooth if loss.smooth else _Plain).apply(scores, target, share)  # type: ignore[no-untyped-call]
    if value is not None and value.requires_grad:
        value.origin = Origin(loss, scores, target, share)  # type: ignore[attr-defined]
    return value


def _in_memory(scores: Tensor, target: Tensor) -> bool:
    """Whether loops can walk the memory: contiguous floats ``[n, K]`` and classes ``[n]`` on the CPU, in eager mode."""
    return (
        not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()  # their tensors have no memory
        and forward_ad._current_level < 0  # nor have the tangents of forward mode a formula here
        and type(scores) in PLAIN
        and type(target) is Tensor
        and scores.dtype in (torch.float32, torch.float64)
        and target.dtype == torch.int64
        and scores.is_cpu
        and target.is_cpu
        and scores.dim() == 2
        and scores.shape[:1] == target.shape
        and scores.numel() > 0
        and scores.is_contiguous()
        and target.is_contiguous()
    )


def _small(loop: Callable[..., float | None], scores: Tensor, y: Tensor, share: float) -> Tensor | None:
    """Value and gradient p s at once. The graph is that of ⟨p s, u⟩, to which only the offsets have to be added."""
    s = torch.empty_like(scores)
    total = loop(scores.detach().numpy(), y.numpy(), share, s.numpy())
    if total is None:  # a class that is not there
        return None
    value = torch.dot(scores.view(-1), s.view(-1))
    value.detach().numpy()[...] = total
    return value


def _is_last(grad: Tensor) -> bool:
    """Whether a backward pass is the last on its graph, with one ``grad`` that has memory (not a batch of vmap's)."""
    return not (
        torch._C._autograd._get_current_graph_task_keep_graph()
        or torch._C._are_functorch_transforms_active()
        or torch._C._functorch.is_legacy_batchedtensor(grad)
    )


class _Plain(torch.autograd.Function):
    """Σ p b, whose gradient in the scores is p_i s_i: a constant, which is made when it is asked for."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, y: Tensor, share: float) -> Tensor:
        b, k = scores.new_empty(y.shape), torch.empty_like(y)
        _in_threads(loops_of(scores.dtype).plain, scores.detach().numpy(), y.numpy(), b.numpy(), k.numpy())
        ctx.save_for_backward(k, y)
        ctx.shape, ctx.share = scores.shape, share
        return b.sum() * share

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        k, y = ctx.saved_tensors
        s, last = torch.empty(ctx.shape, dtype=grad.dtype), _is_last(grad)
        loop = functools.partial(loops_of(s.dtype).gradient_plain, grad.numpy() if last else None, ctx.share)
        _in_threads(loop, s.numpy(), y.numpy(), k.numpy())
        return s if last else s * grad, None, None


class _Smooth(torch.autograd.Function):
    """The same for the smoothed direction. It keeps α, up to a ``scale`` of each row."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, y: Tensor, share: float) -> Tensor:
        b, scale, alpha = scores.new_empty(y.shape), scores.new_empty(y.shape), torch.empty_like(scores)
        rows = scores.detach().numpy(), y.numpy(), b.numpy(), scale.numpy(), alpha.numpy()
        _in_threads(loops_of(scores.dtype).smooth, *rows)
        ctx.save_for_backward(alpha, scale, y)
        ctx.share = share
        return b.sum() * share

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        alpha, scale, y = ctx.saved_tensors
        last = _is_last(grad)
        s = alpha if last else alpha.clone()  # nobody will ask for α again: it becomes the gradient
        loop = functools.partial(loops_of(s.dtype).gradient_smooth, grad.numpy() if last else None, ctx.share)
        _in_threads(loop, s.numpy(), y.numpy(), scale.numpy())
        return s if last else s * grad, None, None


def _in_threads(loop: Callable[..., None], *rows: Array) -> None:
    """``loop(*rows)``, the rows shared out to as many threads as torch has and the size of the first is worth.

    Threads of Python, whose lock the loops do not hold: numba's own end the process after a fork or at a second caller.
    """
    count = min(torch.get_num_threads(), len(rows[0]), rows[0].size // GRAIN)
    if count <= 1:
        return loop(*rows)
    shares = zip(*(np.array_split(r, count) for r in rows), strict=True)
    first, *others = (Thread(target=loop, args=share) for share in shares)
    for thread in others:
        thread.start()
    first.run()
    for thread in others:
        thread.join()
