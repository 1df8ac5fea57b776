"""The two loops of a step, compiled by numba and run by torch's own threads.

A job is eight words in memory: how many threads share it, how many tensors there are, the address of a table of chunks
(tensor, first element, elements), flags, the address of the sums, the bytes per element, the address of OpenMP's
function that returns the thread number (0: there is one thread), and the address of the scalars. Then three words per
thread for its share: how many of its chunks are taken, the first, and the one after the last. Then the addresses of all
w, x, v, z, averages and starts.

A thread works on its own share, the same in both loops: its core has already read that memory. (Writing to what
another core has just read takes twice as long.) Then it helps the others, so that a late thread does not hold them up.
The sums are kept per chunk: their order, and so every bit, is the same for any number of threads.

This module imports numba (the extra ``fast``): import it when a step needs it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from proxsvm._kernels.native import at, cached, call, carray, jit, numba, take
from proxsvm._kernels.step_compiled import AVERAGE, HEAD, MOMENTS, START, VELOCITY, WITH_W

BLOCK = 1 << 12  # elements summed in their own precision, before they are added in float64


@jit  # type: ignore[untyped-decorator]
def dots(w: Any, x: Any, zero: Any) -> Any:
    """⟨x, x⟩, ⟨w, x⟩ and ⟨w, w⟩ of a block."""
    xx, wx, ww = zero, zero, zero
    for j in range(len(x)):  # from 0: otherwise numba checks every index for a negative value
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
        while True:  # backwards: what the inner products read last is still in the cache
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
    """A loop, with its ``address``."""
    return cached(functools.partial(numba.cfunc, "void(uint64)"), SOURCES[name, dtype])
