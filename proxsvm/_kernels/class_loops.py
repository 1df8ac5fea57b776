"""One loop over the rows of class scores, compiled by numba: the plain hinge, the smoothed one and the cross-entropy.

They differ in a row's atom. With α in the simplex of the classes it is s = α − e_y, and

    hinge           α = e_k of the best class                              b = u_k − u_y + [k ≠ y]
    smooth hinge    α = softmax(u) where that has b > 0, else the hinge's  b = ⟨s, u⟩ + 1 − α_y
    cross-entropy   α = softmax(u)                                         b = log Σ_k exp(u_k) − u_y

A job is an array in memory, with the fields of :mod:`proxsvm._kernels.class_rows`. The rows are cut into blocks, which
the threads of torch's own OpenMP take one by one; each block has its own sum, so no bit depends on the number of
threads. p s is written where the gradient will be, row by row, while the row is in the cache.

This module imports numba (the extra ``fast``): import it when a loss needs it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxsvm._kernels import class_rows as field
from proxsvm._kernels.native import EXACT, at, carray, exact, extending, jit, take, types
from proxsvm._kernels.tensors import Array

CHUNK = 1 << 12  # scores whose exponentials are all computed first: what was just written is slow to read

# A search over floats is vectorised only if it is written as a search over integers. Read as integers, their bits have
# the same order once the digits of the negative ones are flipped; a NaN ranks highest. Comparing every k with y would
# cost more than the search, so it covers the scores after y, then those before.

LOW32, HIGH32, INF32 = np.int32(-(2**31)), np.int32(2**31 - 1), np.int32(0x7F800000)
LOW64, HIGH64, INF64 = np.int64(-(2**63)), np.int64(2**63 - 1), np.int64(0x7FF0000000000000)


@exact  # type: ignore[untyped-decorator]
def _flip32(bits: Any) -> Any:
    return np.int32(bits ^ ((bits >> np.int32(31)) & HIGH32))


@exact  # type: ignore[untyped-decorator]
def _flip64(bits: Any) -> Any:
    return np.int64(bits ^ ((bits >> np.int64(63)) & HIGH64))


@exact  # type: ignore[untyped-decorator]
def _span32(u: Array, best: Any, least: Any) -> Any:
    for k in range(len(u)):
        bits = np.float32(u[k]).view(np.int32)
        rank = _flip32(bits)
        if (bits & HIGH32) > INF32:
            rank = HIGH32
        least = min(least, rank)
        best = max(best, rank)
    return best, least


def _extremes32(u: Array, y: int) -> Any:
    best, least = _span32(u[y + 1 :], LOW32, HIGH32)
    if y >= 0:
        _, least = _span32(u[y : y + 1], best, least)
        best, least = _span32(u[:y], best, least)
    return np.int32(_flip32(best)).view(np.float32), np.int32(_flip32(least)).view(np.float32)


@exact  # type: ignore[untyped-decorator]
def _span64(u: Array, best: Any, least: Any) -> Any:
    for k in range(len(u)):
        bits = np.float64(u[k]).view(np.int64)
        rank = _flip64(bits)
        if (bits & HIGH64) > INF64:
            rank = HIGH64
        least = min(least, rank)
        best = max(best, rank)
    return best, least


def _extremes64(u: Array, y: int) -> Any:
    best, least = _span64(u[y + 1 :], LOW64, HIGH64)
    if y >= 0:
        _, least = _span64(u[y : y + 1], best, least)
        best, least = _span64(u[:y], best, least)
    return np.int64(_flip64(best)).view(np.float64), np.int64(_flip64(least)).view(np.float64)


def _extremes(u: Array, y: int) -> Any:
    """The largest u_k with k ≠ y, and the smallest of all."""


@extending.overload(_extremes, jit_options=EXACT)  # type: ignore[untyped-decorator]
def _extremes_of(u: Array, y: int) -> Any:  # numba compares the annotations
    return _extremes32 if u.dtype == types.float32 else _extremes64


@exact  # type: ignore[untyped-decorator]
def _first(u: Array, value: Any, y: int) -> Any:
    """The first k ≠ y with u_k = value; y if there is none."""
    n = np.int32(len(u))
    best = n
    for k in range(len(u)):
        rank = np.int32(k)
        if u[k] != value:
            rank = n
        if k == y:
            rank = n
        best = min(best, rank)
    return np.int64(best) if best < n else y


# exp(x) for x ≤ 0: x = power · log 2 + rest, the first digits of log 2 apart, and the Taylor series of the rest.

SERIES32 = tuple(np.float32(1 / math.factorial(k)) for k in reversed(range(7)))
SERIES64 = tuple(1 / math.factorial(k) for k in reversed(range(14)))
LOG2E, LOG2, LOG2_REST = 1 / math.log(2), 0.693359375, -2.1219444005469058277e-4
UNDERFLOW32, UNDERFLOW64 = (float(math.log(np.finfo(t).tiny) + 1) for t in (np.float32, np.float64))


def _exp32(x: Any) -> Any:
    power = np.floor(x * np.float32(LOG2E) + np.float32(0.5))
    rest = x - power * np.float32(LOG2) - power * np.float32(LOG2_REST)
    total = np.float32(0)
    for term in SERIES32:
        total = total * rest + term
    scaled = total * np.int32((np.int32(power) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(0) if x < np.float32(UNDERFLOW32) else scaled


def _exp64(x: Any) -> Any:
    power = np.floor(x * LOG2E + 0.5)
    rest = x - power * LOG2 - power * LOG2_REST
    total = 0.0
    for term in SERIES64:
        total = total * rest + term
    scaled = total * np.int64((np.int64(power) + np.int64(1023)) << np.int64(52)).view(np.float64)
    return 0.0 if x < UNDERFLOW64 else scaled


def _exp(x: Any) -> Any:
    """exp(x) for x ≤ 0."""


@extending.overload(_exp, jit_options=EXACT)  # type: ignore[untyped-decorator]
def _exp_of(x: Any) -> Any:
    return _exp32 if x == types.float32 else _exp64


def _as32(x: Any, like: Any) -> Any:
    return np.float32(x)


def _as64(x: Any, like: Any) -> Any:
    return np.float64(x)


def _as(x: Any, like: Any) -> Any:
    """``x`` in the precision of ``like``: numba promotes a float32 and an integer to float64."""


@extending.overload(_as, jit_options=EXACT)  # type: ignore[untyped-decorator]
def _as_of(x: Any, like: Any) -> Any:
    return _as32 if like == types.float32 else _as64


# The atom of a row.


@exact  # type: ignore[untyped-decorator]
def _above(u_k: Any, u_y: Any, rest: Any) -> Any:
    """(u_k − u_y) + rest, in this order: at large scores u_k + rest would lose the digits of the rest."""
    return (u_k - u_y) + rest


@jit  # type: ignore[untyped-decorator]
def _hinge(u: Array, y: int, zero: Any) -> Any:
    """max(0, u_k − u_y + 1) with the best k ≠ y; that k, or y where the hinge is 0; and the smallest score."""
    u_k, least = _extremes(u, y)
    if len(u) == 1:
        return zero * u[0], y, least
    margin = _above(u_k, u[y], _as(1.0, zero))
    return (zero, y, least) if margin <= 0 else (margin, _first(u, u_k, y), least)


@jit  # type: ignore[untyped-decorator]
def _exponentials(u: Array, alpha: Array) -> Any:
    """α_k = exp(u_k − max u); returns max u and the smallest score."""
    top, least = _extremes(u, -1)
    for k in range(len(u)):
        alpha[k] = _exp(u[k] - top)
    return top, least


@jit  # type: ignore[untyped-decorator]
def _sum(alpha: Array, zero: Any) -> Any:
    total = zero
    for k in range(len(alpha)):
        total += alpha[k]
    return total


@jit  # type: ignore[untyped-decorator]
def _mean(u: Array, u_y: Any, alpha: Array, zero: Any) -> Any:
    """Σ α_k (u_k − u_y)."""
    total = zero
    for k in range(len(u)):
        total += alpha[k] * (u[k] - u_y)
    return total


@jit  # type: ignore[untyped-decorator]
def _scale(s: Array, factor: Any) -> None:
    for k in range(len(s)):
        s[k] *= factor


@jit  # type: ignore[untyped-decorator]
def _smooth_hinge(u: Array, y: int, s: Array, share: Any, zero: Any) -> Any:
    """b; s holds the exponentials on entry, p s on return."""
    mass = _sum(s, zero)
    b = _as(1.0, zero) + (_mean(u, u[y], s, zero) - s[y]) / mass
    if b <= 0:  # the softmax cannot raise the dual: the hinge's own atom, which may be 0
        b, k, _ = _hinge(u, y, zero)
        s[:] = zero
        s[k] = share
    else:
        _scale(s, share / mass)
    s[y] -= share
    return b


@jit  # type: ignore[untyped-decorator]
def _cross_entropy(u: Array, y: int, top: Any, s: Array, share: Any, zero: Any) -> Any:
    """b; s holds the exponentials on entry, p s on return."""
    mass = _sum(s, zero)
    _scale(s, share / mass)
    s[y] -= share
    return _above(top, u[y], _as(math.log(mass), zero))


# A block of rows: Σ weight · b, and whether a score is −∞.


@jit  # type: ignore[untyped-decorator]
def _weight_of(y: int, weight: Array, ignore: int) -> float:
    if y == ignore:
        return 0.0
    return np.float64(weight[y]) if len(weight) else 1.0


@jit  # type: ignore[untyped-decorator]
def _plain_rows(u: Array, y: Array, s: Array, weight: Array, ignore: int, share: float, zero: Any) -> Any:
    total, masked = 0.0, False
    for i in range(len(y)):
        p = _weight_of(y[i], weight, ignore)
        if len(s):
            s[i] = zero
        if p == 0:
            continue
        b, k, least = _hinge(u[i], y[i], zero)
        masked |= least == -np.inf
        total += p * b
        if len(s):
            s[i, k] += _as(share * p, zero)
            s[i, y[i]] -= _as(share * p, zero)
    return total, masked


@jit  # type: ignore[untyped-decorator]
def _soft_rows(u: Array, y: Array, s: Array, weight: Array, ignore: int, share: float, kind: int, zero: Any) -> Any:
    total, masked, size = 0.0, False, max(1, CHUNK // u.shape[1])
    tops = np.empty(size, u.dtype)
    for begin in range(0, len(y), size):
        end = min(begin + size, len(y))
        for i in range(begin, end):
            tops[i - begin], least = _exponentials(u[i], s[i])
            masked |= least == -np.inf
        for i in range(begin, end):
            p = _weight_of(y[i], weight, ignore)
            if p == 0:
                s[i] = zero
            elif kind == field.SMOOTH:
                total += p * _smooth_hinge(u[i], y[i], s[i], _as(share * p, zero), zero)
            else:
                total += p * _cross_entropy(u[i], y[i], tops[i - begin], s[i], _as(share * p, zero), zero)
    return total, masked


# The job.


@jit  # type: ignore[untyped-decorator]
def run(address: int, zero: Any) -> None:
    job, K = at(address, np.int64(0)), at(address, np.int64(0))[field.CLASSES]
    n, rows, share = job[field.N], job[field.ROWS], at(address, np.float64(0))[field.SHARE]
    needed = n if job[field.S] != 0 else 0
    u, s = carray(at(np.uint64(job[field.U]), zero), (n, K)), carray(at(np.uint64(job[field.S]), zero), (needed, K))
    y = carray(at(np.uint64(job[field.Y]), np.int64(0)), n)
    weight = carray(at(np.uint64(job[field.WEIGHT]), zero), K if job[field.WEIGHT] != 0 else 0)
    sums = carray(at(np.uint64(job[field.SUMS]), np.float64(0)), job[field.BLOCKS])
    while True:
        block = take(address + np.uint64(8 * field.TAKEN))
        if block >= job[field.BLOCKS]:
            return
        begin, end = block * rows, min((block + 1) * rows, n)
        given = u[begin:end], y[begin:end], s[begin:end], weight, job[field.IGNORE], share
        sums[block], masked = (
            _plain_rows(*given, zero) if job[field.KIND] == field.HINGE else _soft_rows(*given, job[field.KIND], zero)
        )
        if masked:
            job[field.STATUS] = field.MASKED


@jit  # type: ignore[untyped-decorator]
def count(address: int, zero: Any) -> None:
    """Check the classes, and find how many samples count and the share of a weight of 1."""
    job, mass, counted = at(address, np.int64(0)), 0.0, 0
    K, ignore = job[field.CLASSES], job[field.IGNORE]
    y = carray(at(np.uint64(job[field.Y]), np.int64(0)), job[field.N])
    weight = carray(at(np.uint64(job[field.WEIGHT]), zero), K if job[field.WEIGHT] != 0 else 0)
    for i in range(job[field.N]):
        if y[i] != ignore and (y[i] < 0 or y[i] >= K):
            job[field.STATUS] = field.NO_SUCH_CLASS
            return
        counted += y[i] != ignore
        mass += _weight_of(y[i], weight, ignore)
    job[field.COUNTED] = counted
    at(address, np.float64(0))[field.SHARE] = 1.0 / mass if job[field.MEAN] != 0 else 1.0


@jit  # type: ignore[untyped-decorator]
def single(
    u: int, y: int, s: int, weight: int, n: int, K: int, ignore: int, kind: int, mean: int, zero: Any
) -> tuple[float, float, int, int]:
    """A job of one block, not allocated in Python: Σ p b, the share, the number of samples that count, the status."""
    job = np.zeros(field.WORDS + 1, np.int64)
    address, reals = np.uint64(job.ctypes.data), job.view(np.float64)
    job[field.BLOCKS], job[field.ROWS], job[field.N], job[field.CLASSES] = 1, n, n, K
    job[field.U], job[field.Y], job[field.S], job[field.WEIGHT] = u, y, s, weight
    job[field.SUMS], job[field.IGNORE], job[field.KIND] = address + np.uint64(8 * field.WORDS), ignore, kind
    job[field.MEAN] = mean
    count(address, zero)
    if job[field.STATUS] == field.FINE:
        run(address, zero)
    return reals[field.SHARE] * reals[field.WORDS], reals[field.SHARE], job[field.COUNTED], job[field.STATUS]
