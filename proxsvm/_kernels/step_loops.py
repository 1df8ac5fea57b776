"""The two loops of a step, compiled by numba, and run by the threads that torch has already.

A job is eight words in memory: how many threads share it, how many tensors there are, the address of a table of chunks
(tensor, first element, elements), flags, the address of the sums, the bytes of an element, the address of OpenMP's
function for a thread's number (0: there is one thread), and the address of the scalars. Then three words per thread,
its share: how many chunks of it are taken, the first, and the one after the last. Then the addresses of all w, x, v, z,
averages and starts.

A thread works on its own share, the same in both loops: its core has read the same memory before. (To write to what
another core has just read takes twice as long.) Then it helps the others, so that a late thread delays nobody. The sums
are kept for each chunk: their order, and so every bit, is the same however many threads there are.

This module imports numba (the extra ``fast``): import it when a step needs it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from proxsvm._extras import load

numba: Any = load("numba", extra="fast")
ir: Any = load("llvmlite.ir", extra="fast")
extending: Any = load("numba.extending", extra="fast")
carray, types = numba.carray, numba.types

HEAD = 8  # words of a job before the shares
WITH_W, MOMENTS, VELOCITY, AVERAGE, START = 1, 2, 4, 8, 16  # flags of a job
SCALARS = 10  # push, lift, keep = 1 − drop, μ, rate; β₂, 1 − β₂, correction, eps, scale
BLOCK = 1 << 12  # elements that are summed up in their own precision, before they are added in float64
# NaN stays NaN; a division by zero is infinite, because a check for it would keep loops from being vectorised.
# Inlined, so that an entry holds all of its code. What is left outside exists twice, compiled for itself and again with
# the entry; the first runs where it was just compiled, the second from a file: other bits after a restart.
jit = numba.njit(fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy", forceinline=True)


@extending.intrinsic  # type: ignore[untyped-decorator]
def at(_: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to numbers of the type of ``like``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.uint64, like), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def take(_: Any, address: Any) -> Any:
    """The number at an address, which is raised by one for whoever comes next, in any thread."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        counter = builder.inttoptr(args[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.uint64), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def call(_: Any, address: Any) -> Any:
    """The number that a C function without arguments returns."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.inttoptr(args[0], ir.PointerType(ir.FunctionType(ir.IntType(32), [])))
        return builder.call(function, [])

    return types.int32(types.uint64), generate


@jit  # type: ignore[untyped-decorator]
def dots(w: Any, x: Any, zero: Any) -> Any:
    """⟨x, x⟩, ⟨w, x⟩ and ⟨w, w⟩ of a block."""
    xx, wx, ww = zero, zero, zero
    for j in range(len(x)):  # from 0: else numba guards against negative indices, one by one
        xx += x[j] * x[j]
        wx += w[j] * x[j]
        ww += w[j] * w[j]
    return xx, wx, ww


@jit  # type: ignore[untyped-decorator]
def square(x: Any, zero: Any) -> Any:
    """⟨x, x⟩ of a block."""
    xx = zero
    for j in range(len(x)):
        xx += x[j] * x[j]
    return xx


@jit  # type: ignore[untyped-decorator]
def dots_in_metric(w: Any, x: Any, v: Any, scalars: Any, zero: Any) -> Any:
    """⟨x, M⁻¹x⟩, ⟨w, x⟩ and ⟨w, M w⟩ of a block."""
    beta2, rest, correction, eps, scale = scalars[5], scalars[6], scalars[7], scalars[8], scalars[9]
    xx, wx, ww = zero, zero, zero
    for j in range(len(x)):
        g = scale * x[j]
        M = np.sqrt(correction * (beta2 * v[j] + rest * g * g)) + eps
        xx += x[j] * x[j] / M
        wx += w[j] * x[j]
        ww += w[j] * w[j] * M
    return xx, wx, ww


@jit  # type: ignore[untyped-decorator]
def distance(w: Any, start: Any, zero: Any) -> Any:
    """‖w − start‖² of a block."""
    total = zero
    for j in range(len(w)):
        u = w[j] - start[j]
        total += u * u
    return total


@jit  # type: ignore[untyped-decorator]
def distance_in_metric(w: Any, start: Any, x: Any, v: Any, scalars: Any, zero: Any) -> Any:
    """‖w − start‖² of a block, in the metric."""
    beta2, rest, correction, eps, scale = scalars[5], scalars[6], scalars[7], scalars[8], scalars[9]
    total = zero
    for j in range(len(w)):
        g, u = scale * x[j], w[j] - start[j]
        total += u * u * (np.sqrt(correction * (beta2 * v[j] + rest * g * g)) + eps)
    return total


@jit  # type: ignore[untyped-decorator]
def move(w: Any, x: Any, scalars: Any) -> None:
    """w ← keep · w − push · x."""
    push, keep = scalars[0], scalars[2]
    for j in range(len(w)):
        w[j] = keep * w[j] - push * x[j]


@jit  # type: ignore[untyped-decorator]
def move_with_velocity(w: Any, x: Any, z: Any, scalars: Any) -> None:
    """The whole update."""
    push, lift, keep, mu = scalars[0], scalars[1], scalars[2], scalars[3]
    for j in range(len(w)):
        t = push * x[j]
        new = mu * z[j] - t - lift * w[j]
        z[j] = new
        w[j] = keep * w[j] - t + mu * new


@jit  # type: ignore[untyped-decorator]
def move_in_metric(w: Any, x: Any, v: Any, scalars: Any) -> None:
    """w ← keep · w − push · M⁻¹x, v ← v'."""
    push, keep = scalars[0], scalars[2]
    beta2, rest, correction, eps, scale = scalars[5], scalars[6], scalars[7], scalars[8], scalars[9]
    for j in range(len(w)):
        g = scale * x[j]
        new = beta2 * v[j] + rest * g * g
        v[j] = new
        w[j] = keep * w[j] - push * x[j] / (np.sqrt(correction * new) + eps)


@jit  # type: ignore[untyped-decorator]
def move_in_metric_with_velocity(w: Any, x: Any, v: Any, z: Any, scalars: Any) -> None:
    """The whole update in the metric, v ← v'."""
    push, lift, keep, mu = scalars[0], scalars[1], scalars[2], scalars[3]
    beta2, rest, correction, eps, scale = scalars[5], scalars[6], scalars[7], scalars[8], scalars[9]
    for j in range(len(w)):
        g = scale * x[j]
        moment = beta2 * v[j] + rest * g * g
        v[j] = moment
        t = push * x[j] / (np.sqrt(correction * moment) + eps)
        new = mu * z[j] - t - lift * w[j]
        z[j] = new
        w[j] = keep * w[j] - t + mu * new


@jit  # type: ignore[untyped-decorator]
def mean(average: Any, w: Any, scalars: Any) -> None:
    """w̄ ← w̄ − rate · (w̄ − w)."""
    rest = scalars[4]
    for j in range(len(w)):
        average[j] -= rest * (average[j] - w[j])


@jit  # type: ignore[untyped-decorator]
def _products(address: int, zero: float) -> None:
    job = at(address, np.uint64(0))
    threads, tensors, flags, size = np.int64(job[0]), np.int64(job[1]), job[3], job[5]
    table, sums, scalars = at(job[2], np.int64(0)), at(job[4], np.float64(0)), at(job[7], zero)
    me = np.int64(call(job[6])) if job[6] != 0 else 0
    first = HEAD + 3 * threads
    for other in range(threads):
        share = HEAD + 3 * ((me + other) % threads)
        while True:
            k = np.int64(job[share + 1]) + take(address + np.uint64(8 * share))
            if k >= np.int64(job[share + 2]):
                break
            i, begin, end = first + table[3 * k], table[3 * k + 1], table[3 * k + 1] + table[3 * k + 2]
            all_xx, all_wx, all_ww, all_uu = 0.0, 0.0, 0.0, 0.0
            while begin < end:
                length, start = min(BLOCK, end - begin), np.uint64(begin) * size
                w, x = carray(at(job[i] + start, zero), length), carray(at(job[i + tensors] + start, zero), length)
                if flags & MOMENTS:
                    v = carray(at(job[i + 2 * tensors] + start, zero), length)
                    xx, wx, ww = dots_in_metric(w, x, v, scalars, zero)
                elif flags & WITH_W:
                    xx, wx, ww = dots(w, x, zero)
                else:
                    xx, wx, ww = square(x, zero), zero, zero
                all_xx += xx
                all_wx += wx
                all_ww += ww
                if flags & START:
                    start_w = carray(at(job[i + 5 * tensors] + start, zero), length)
                    if flags & MOMENTS:
                        v = carray(at(job[i + 2 * tensors] + start, zero), length)
                        all_uu += distance_in_metric(w, start_w, x, v, scalars, zero)
                    else:
                        all_uu += distance(w, start_w, zero)
                begin += BLOCK
            sums[4 * k], sums[4 * k + 1], sums[4 * k + 2], sums[4 * k + 3] = all_xx, all_wx, all_ww, all_uu


@jit  # type: ignore[untyped-decorator]
def _advance(address: int, zero: float) -> None:
    job = at(address, np.uint64(0))
    threads, tensors, flags, size = np.int64(job[0]), np.int64(job[1]), job[3], job[5]
    table, scalars = at(job[2], np.int64(0)), at(job[7], zero)
    me = np.int64(call(job[6])) if job[6] != 0 else 0
    first = HEAD + 3 * threads
    for other in range(threads):
        share = HEAD + 3 * ((me + other) % threads)
        while True:  # backwards: what the inner products have read last is in the cache still
            k = np.int64(job[share + 2]) - 1 - take(address + np.uint64(8 * share))
            if k < np.int64(job[share + 1]):
                break
            i, begin, end = first + table[3 * k], table[3 * k + 1], table[3 * k + 1] + table[3 * k + 2]
            step = BLOCK if flags & AVERAGE else end - begin  # the average reads w while the block is in the cache
            while begin < end:
                length, start = min(step, end - begin), np.uint64(begin) * size
                w, x = carray(at(job[i] + start, zero), length), carray(at(job[i + tensors] + start, zero), length)
                v = carray(at(job[i + 2 * tensors] + start, zero), length)
                z = carray(at(job[i + 3 * tensors] + start, zero), length)
                if flags & MOMENTS and flags & VELOCITY:
                    move_in_metric_with_velocity(w, x, v, z, scalars)
                elif flags & MOMENTS:
                    move_in_metric(w, x, v, scalars)
                elif flags & VELOCITY:
                    move_with_velocity(w, x, z, scalars)
                else:
                    move(w, x, scalars)
                if flags & AVERAGE:
                    mean(carray(at(job[i + 4 * tensors] + start, zero), length), w, scalars)
                begin += step


def _products_float32(address: int) -> None:
    _products(address, np.float32(0))


def _products_float64(address: int) -> None:
    _products(address, np.float64(0))


def _advance_float32(address: int) -> None:
    _advance(address, np.float32(0))


def _advance_float64(address: int) -> None:
    _advance(address, np.float64(0))


SOURCES = {
    ("products", torch.float32): _products_float32,
    ("products", torch.float64): _products_float64,
    ("advance", torch.float32): _advance_float32,
    ("advance", torch.float64): _advance_float64,
}


@functools.cache
def compiled(name: str, dtype: torch.dtype) -> Any:
    """A loop, with its ``address``: from numba's files of earlier processes, or compiled, in about half a second."""
    source = SOURCES[name, dtype]
    try:
        return numba.cfunc("void(uint64)", cache=True)(source)
    except Exception:  # no folder to write to, a full disk, a damaged file: it goes without
        return numba.cfunc("void(uint64)")(source)


class Team(NamedTuple):
    """``run(function, data, threads, 0)`` of OpenMP, and the address of its function for a thread's number."""

    run: Callable[[int, int, int, int], None]
    number: int


@functools.cache
def team() -> Team | None:
    """The threads of torch's own OpenMP; None where torch has no such.

    numba has threads of its own, which we leave alone: they would stand in the way of torch's, and depending on what is
    installed they abort the process where two threads of Python step at once, or where it was forked.
    """
    try:
        library = ctypes.CDLL(torch._C.__file__)
        run = library.GOMP_parallel  # in gcc's, LLVM's and Intel's library
        number = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return Team(run, number or 0)


def run(name: str, dtype: torch.dtype, job: int, threads: int) -> None:
    """Run a loop on the job at an address."""
    loop, found = compiled(name, dtype), team()
    if threads > 1 and found is not None:
        found.run(loop.address, job, threads, 0)
    else:
        loop.ctypes(job)
