"""The entries to :mod:`proxsvm._kernels.class_loops`: what torch's threads call by address, and what Python calls.

Numba's cache checks *this* file only; :func:`~proxsvm._kernels.native.cached` also covers the loops.

This module imports numba (the extra ``fast``): import it when a loss needs it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from proxsvm._kernels.class_loops import count, run, single
from proxsvm._kernels.native import cached, numba, types


def _run_float32(address: int) -> None:
    run(address, np.float32(0))


def _run_float64(address: int) -> None:
    run(address, np.float64(0))


def _count_float32(address: int) -> None:
    count(address, np.float32(0))


def _count_float64(address: int) -> None:
    count(address, np.float64(0))


def _single_float32(u: int, y: int, s: int, weight: int, n: int, K: int, ignore: int, kind: int, mean: int) -> Any:
    return single(u, y, s, weight, n, K, ignore, kind, mean, np.float32(0))


def _single_float64(u: int, y: int, s: int, weight: int, n: int, K: int, ignore: int, kind: int, mean: int) -> Any:
    return single(u, y, s, weight, n, K, ignore, kind, mean, np.float64(0))


JOB = functools.partial(numba.cfunc, "void(uint64)")
SINGLE = functools.partial(
    numba.njit, types.Tuple([types.float64, types.float64, types.int64, types.int64])(*[types.int64] * 9)
)
ENTRIES = {
    torch.float32: ((JOB, _count_float32), (JOB, _run_float32), (SINGLE, _single_float32)),
    torch.float64: ((JOB, _count_float64), (JOB, _run_float64), (SINGLE, _single_float64)),
}


@functools.cache
def compiled(dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """``count``, ``run`` and ``single``."""
    by_address, in_threads, in_python = (cached(*entry) for entry in ENTRIES[dtype])
    return by_address, in_threads, in_python
