"""The two loops of a fused step, compiled by numba, and run by the threads that torch has already.

A job is eight numbers in memory: how many threads share it, how many tensors there are, the address of a table of
chunks (tensor, first element, elements), a flag (read w, or move z), the address of numbers that come in or go out, the
bytes of an element, and the address of OpenMP's function for a thread's number (0: there is one thread). Then three
numbers a thread, its share: how many chunks of it are taken, the first, and the one after the last. Then the addresses
of all w, all x and all z.

A thread walks its own share, the same in both loops: its core has read the same memory before. (To write to what
another core has just read takes twice as long.) Then it helps the others, so that whoever comes late delays nobody. The
sums are kept for each chunk: their order, and so every bit, is the same however many threads there are.

This module imports numba (the extra ``fast``): import it when a step needs it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from proxsvm.extras import load

numba: Any = load("numba", extra="fast")
ir: Any = load("llvmlite.ir", extra="fast")
extending: Any = load("numba.extending", extra="fast")
carray, types = numba.carray, numba.types

HEAD = 8  # numbers of a job before the shares
BLOCK = 1 << 12  # elements that are summed up in their own precision, before they are added in float64
jit = numba.njit(fastmath={"reassoc", "contract", "nsz", "arcp"})  # NaN stays NaN


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
def _products(address: int, zero: float) -> None:
    job = at(address, np.uint64(0))
    threads, tensors, with_w, size = np.int64(job[0]), np.int64(job[1]), job[3] != 0, job[5]
    table, sums = at(job[2], np.int64(0)), at(job[4], np.float64(0))
    me = np.int64(call(job[6])) if job[6] != 0 else 0
    first = HEAD + 3 * threads
    for other in range(threads):
        share = HEAD + 3 * ((me + other) % threads)
        while True:
            k = np.int64(job[share + 1]) + take(address + np.uint64(8 * share))
            if k >= np.int64(job[share + 2]):
                break
            i, begin, end = first + table[3 * k], table[3 * k + 1], table[3 * k + 1] + table[3 * k + 2]
            at_w, at_x = job[i], job[i + tensors]
            all_xx, all_wx, all_ww = 0.0, 0.0, 0.0
            while begin < end:
                length, start = min(BLOCK, end - begin), np.uint64(begin) * size
                w, x = carray(at(at_w + start, zero), length), carray(at(at_x + start, zero), length)
                xx, wx, ww = zero, zero, zero
                if with_w:
                    for j in range(length):  # from 0: else numba looks out for negative places, one by one
                        xx += x[j] * x[j]
                        wx += w[j] * x[j]
                        ww += w[j] * w[j]
                else:
                    for j in range(length):
                        xx += x[j] * x[j]
                all_xx += xx
                all_wx += wx
                all_ww += ww
                begin += BLOCK
            sums[3 * k], sums[3 * k + 1], sums[3 * k + 2] = all_xx, all_wx, all_ww


@jit  # type: ignore[untyped-decorator]
def _advance(address: int, zero: float) -> None:
    job = at(address, np.uint64(0))
    threads, tensors, with_z, size = np.int64(job[0]), np.int64(job[1]), job[3] != 0, job[5]
    table, given = at(job[2], np.int64(0)), at(job[4], zero)
    push, pull, shrink, skip, mu = given[0], given[1], given[2], given[3], given[4]
    if skip != 0:
        return
    me = np.int64(call(job[6])) if job[6] != 0 else 0
    first = HEAD + 3 * threads
    for other in range(threads):
        share = HEAD + 3 * ((me + other) % threads)
        while True:  # backwards: what the inner products have read last is in the cache still
            k = np.int64(job[share + 2]) - 1 - take(address + np.uint64(8 * share))
            if k < np.int64(job[share + 1]):
                break
            i, length = first + table[3 * k], table[3 * k + 2]
            start = np.uint64(table[3 * k + 1]) * size
            w, x = carray(at(job[i] + start, zero), length), carray(at(job[i + tensors] + start, zero), length)
            if with_z:
                z = carray(at(job[i + 2 * tensors] + start, zero), length)
                for j in range(length):
                    t = push * (x[j] + pull * w[j])
                    v = mu * z[j] - t
                    z[j] = v
                    w[j] = shrink * w[j] - t + mu * v
            else:
                for j in range(length):
                    w[j] = shrink * w[j] - push * (x[j] + pull * w[j])


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
