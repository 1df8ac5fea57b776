"""``MultiClassHinge`` with the 0/1 cost as loops over the rows of the scores, compiled by numba (the extra ``fast``).

The formulas are those of its oracle and of its smoothed atom; with α in the simplex of the classes

    s = α − e_y        b = ⟨s, u⟩ + 1 − α_y        α = e_k of the best class, or softmax(u) where that has b > 0.

Some thirty calls of torch are saved, which are most of the time of a small batch, and on a large one all memory but the
gradient's own: the loops write p s where the gradient will be, row by row, while the row is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from proxsvm.losses.base import Origin, in_transform
from proxsvm.losses.hinge_loops import loops_of

if TYPE_CHECKING:
    from proxsvm.losses.multi_class_hinge import MultiClassHinge

PLAIN = (Tensor, nn.Parameter)
HALF = (torch.float16, torch.bfloat16)
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
    share, needed = loss._share(len(target)), loss.smooth or (scores.requires_grad and torch.is_grad_enabled())
    s = torch.empty_like(scores) if needed else scores.new_empty(0)
    total = _in_blocks(loops.smooth if loss.smooth else loops.plain, share, scores, target, s)
    if total is None:  # a class is not there
        return None
    value: Tensor = _Value.apply(scores, s, total)  # type: ignore[no-untyped-call]
    if value.requires_grad:
        value.origin = Origin(loss, scores, target, share)  # type: ignore[attr-defined]
    return value


def _in_memory(scores: Tensor, target: Tensor) -> bool:
    """Whether loops can walk the memory: contiguous floats ``[n, K]`` and classes ``[n]`` on the CPU, in eager mode."""
    return (
        not torch.compiler.is_compiling()
        and not in_transform()
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
        and not scores.is_neg()  # the memory of such a view holds the numbers with the other sign
    )


class _Value(torch.autograd.Function):
    """Σ p b, whose gradient in the scores is p s: made already, and given away in the last backward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, s: Tensor, total: float) -> Tensor:
        ctx.save_for_backward(s)
        return scores.new_full((), total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (s,) = ctx.saved_tensors
        if not _is_last(grad):
            return s * grad, None, None
        is_one = loops_of(grad.dtype).number(grad.data_ptr()) == 1
        return s if is_one else s.mul_(grad), None, None


def _is_last(grad: Tensor) -> bool:
    """Whether a backward pass is the last on its graph, with one ``grad`` whose memory can be read as it is."""
    return not (
        torch.is_grad_enabled()  # the gradient will be differentiated
        or torch._C._autograd._get_current_graph_task_keep_graph()
        or in_transform()
        or torch._C._functorch.is_legacy_batchedtensor(grad)
        or grad.is_neg()
        or grad._is_zerotensor()
    )


def _in_blocks(loop: Callable[..., float | None], share: float, u: Tensor, y: Tensor, s: Tensor) -> float | None:
    """``loop`` over all rows; blocks that are worth a thread do not depend on their number, nor does a bit of the sum.

    Threads of Python, whose lock the loops do not hold: numba's own end the process after a fork or at a second caller.
    """
    n, K = u.shape
    at_u, at_y, at_s = u.data_ptr(), y.data_ptr(), s.data_ptr()
    if n * K < 2 * GRAIN:
        return loop(share, n, K, at_u, at_y, at_s)
    size, row, entry = max(1, GRAIN // K), K * u.element_size(), y.element_size()

    def run(i: int) -> float | None:
        return loop(share, min(size, n - i), K, at_u + i * row, at_y + i * entry, at_s and at_s + i * row)

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        totals = list(threads.map(run, range(0, n, size)))
    return None if None in totals else sum(total or 0.0 for total in totals)
