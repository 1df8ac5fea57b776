"""Runs the compiled loop over the rows of class scores, where numba and torch's threads are available."""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from proxsvm._kernels.jit import load_numba
from proxsvm._kernels.tensors import PLAIN, Alike, in_forward_mode, traced, watched

GRAIN = 1 << 16  # scores per block: enough to be worth a thread
Kind: TypeAlias = Literal["hinge", "smooth hinge", "cross-entropy"]
KINDS: tuple[Kind, ...] = ("hinge", "smooth hinge", "cross-entropy")
HINGE, SMOOTH, CROSS_ENTROPY = range(3)  # their codes in a job

# The fields of a job, eight bytes each: how many blocks are taken, how many there are, and the rows per block; n and K;
# the addresses of the scores [n, K], the classes [n], p s [n, K] (or 0), the class weights [K] (or 0) and the sum of
# each block; the class to ignore, the kind of loss, and whether to divide by the total weight of the samples.
# The loop fills in the p of a weight of 1 (float64), how many samples count, and the status.
TAKEN, BLOCKS, ROWS, N, CLASSES, U, Y, S, WEIGHT, SUMS, IGNORE, KIND, MEAN, SHARE, COUNTED, STATUS = range(16)
FINE, NO_SUCH_CLASS, MASKED = range(3)  # values of the status
WORDS = 16


class Rows(NamedTuple):
    """Σ p b over the rows, the p of a weight of 1, and how many samples count."""

    total: float
    share: float
    counted: int


def is_rows(scores: Tensor, target: Tensor) -> bool:
    """Whether these are floats ``[n, K]`` and classes ``[n]`` on one device, untraced."""
    return (
        not traced()
        and type(scores) in PLAIN
        and type(target) is Tensor
        and scores.dtype in (torch.float32, torch.float64)
        and target.dtype == torch.int64
        and scores.device == target.device
        and scores.layout == target.layout == torch.strided
        and scores.dim() == 2
        and scores.shape[:1] == target.shape
        and scores.numel() > 0
    )


def readable_rows(scores: Tensor, target: Tensor) -> bool:
    """Whether they pass :func:`is_rows` and are stored row by row, as a kernel reads them."""
    return (
        is_rows(scores, target)
        and scores.is_contiguous()
        and target.is_contiguous()
        and not scores.is_neg()  # a negative view stores the values with the opposite sign
    )


def in_memory(scores: Tensor, target: Tensor) -> bool:
    """Whether numba's loop can take the input; one like the last that was accepted needs no further checks."""
    global _last
    if _last is not None and _last([scores, target]) and not watched() and not in_forward_mode():
        return True
    found = scores.is_cpu and readable_rows(scores, target)
    if found and not watched():
        _last = Alike([scores, target])
    return found


_last: Alike | None = None  # what the last accepted input was like


@functools.cache
def loops(dtype: torch.dtype) -> Any:
    """The compiled loops, or None where numba is missing or unusable: torch's operations give the same results."""
    try:
        load_numba()
        from proxsvm._kernels.class_entries import compiled

        return compiled(dtype)
    except Exception:
        logging.getLogger(__name__).debug("no compiled loop over class scores; using torch", exc_info=True)
        return None


def run(
    kind: Kind, u: Tensor, y: Tensor, s: Tensor | None, weight: Tensor | None, ignore: int, mean: bool
) -> Rows | None:
    """Sum the losses of the rows, and write p s into ``s``; None where a class does not exist or a score is −∞.

    ``s`` may be None for the plain hinge. ``u`` and ``y`` must be :func:`in_memory`, ``s`` like ``u``, and ``weight``
    contiguous, ``[K]`` and of the same dtype.
    """
    found = loops(u.dtype)
    if found is None:
        return None
    (count, rows, single), (n, K) = found, u.shape
    addresses = [0 if t is None else t.data_ptr() for t in (u, y, s, weight)]
    if n * K < 2 * GRAIN:
        total, share, counted, status = single(*addresses, n, K, ignore, KINDS.index(kind), mean)
        return Rows(total, share, counted) if status == FINE else None
    from proxsvm._kernels import native

    size = max(1, GRAIN // K)
    blocks = -(-n // size)
    sums = (ctypes.c_double * blocks)()
    fields = [0, blocks, size, n, K, *addresses, ctypes.addressof(sums), ignore, KINDS.index(kind), mean, 0, 0, 0]
    job = (ctypes.c_int64 * WORDS)(*fields)
    at = ctypes.addressof(job)
    count.ctypes(at)
    if job[STATUS] != FINE:
        return None
    native.run(rows, at, min(blocks, torch.get_num_threads()))
    share = ctypes.c_double.from_address(at + 8 * SHARE).value
    return Rows(share * sum(sums), share, job[COUNTED]) if job[STATUS] == FINE else None
