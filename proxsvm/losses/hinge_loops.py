"""The loops of :mod:`proxsvm.losses.compiled_hinge`, compiled by numba (the extra ``fast``)."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch

from proxsvm.extras import load

CHUNK = 1 << 12  # scores that are walked twice while they are in the cache

Array: TypeAlias = "np.ndarray[Any, Any]"


@functools.cache
def loops_of(dtype: torch.dtype) -> Any:
    """The compiled loops, or None where numba is not installed. Each compiles at its first call, in half a second."""
    try:
        numba = load("numba", extra="fast")
    except ModuleNotFoundError:
        return None
    from proxsvm.loops import at

    real: Any
    whole: Any
    real, whole = (np.float32, np.int32) if dtype == torch.float32 else (np.float64, np.int64)
    limits, zero, one = np.finfo(real), real(0), real(1)
    exact = numba.njit(nogil=True, fastmath={"contract"})
    jit = numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"})  # NaN stays NaN

    # A search among floats is compiled to vector instructions only as one among whole numbers. Those of their bits are
    # in the same order once the digits of the negative ones are flipped; a NaN is made the highest.
    lowest, highest = whole(np.iinfo(whole).min), whole(np.iinfo(whole).max)
    sign, infinity = whole(limits.bits - 1), real(np.inf).view(whole)

    @exact  # type: ignore[untyped-decorator]
    def flipped(bits: Any) -> Any:
        return whole(bits ^ ((bits >> sign) & highest))

    @exact  # type: ignore[untyped-decorator]
    def largest(u: Array, y: int) -> Any:
        """The largest u_k with k ≠ y."""
        best = lowest
        for k in range(len(u)):
            bits = real(u[k]).view(whole)
            rank = flipped(bits)
            if (bits & highest) > infinity:
                rank = highest
            if k == y:
                rank = lowest
            best = max(best, rank)
        return whole(flipped(best)).view(real)

    @exact  # type: ignore[untyped-decorator]
    def first(u: Array, value: Any, y: int) -> Any:
        """The first k ≠ y with u_k = value; y if there is none."""
        best = whole(len(u))
        for k in range(len(u)):
            rank = whole(k)
            if u[k] != value:
                rank = highest
            if k == y:
                rank = highest
            best = min(best, rank)
        return best if best < len(u) else y

    # exp(x) for x ≤ 0: x = power · log 2 + rest, the first digits of log 2 apart, and Taylor's series of the rest.
    series = tuple(real(1 / math.factorial(k)) for k in reversed(range(7 if dtype == torch.float32 else 13)))
    log2e, half, log2, log2_rest = real(1 / math.log(2)), real(0.5), real(0.693359375), real(-2.1219444005469058277e-4)
    bias, mantissa, underflow = whole(limits.maxexp - 1), whole(limits.nmant), real(math.log(limits.tiny) + 1)

    @exact  # type: ignore[untyped-decorator]
    def exp(x: Any) -> Any:
        power = np.floor(x * log2e + half)
        rest = x - power * log2 - power * log2_rest
        total = zero
        for term in series:
            total = total * rest + term
        return zero if x < underflow else total * whole((whole(power) + bias) << mantissa).view(real)

    @jit  # type: ignore[untyped-decorator]
    def hinge(u: Array, y: int) -> Any:
        """max(0, u_k − u_y + 1) with the best k ≠ y, and that k; y itself where the hinge is 0."""
        if len(u) == 1:
            return zero, y
        u_k = largest(u, y)
        margin = u_k - u[y] + one
        return (zero, y) if margin <= 0 else (margin, first(u, u_k, y))

    @jit  # type: ignore[untyped-decorator]
    def exponentials(u: Array, alpha: Array) -> None:
        top = largest(u, -1)
        for k in range(len(u)):
            alpha[k] = exp(u[k] - top)

    @jit  # type: ignore[untyped-decorator]
    def sums(u: Array, u_y: Any, alpha: Array) -> Any:
        """Σ α_k and Σ α_k (u_k − u_y)."""
        total, mean = zero, zero
        for k in range(len(u)):
            total += alpha[k]
            mean += alpha[k] * (u[k] - u_y)
        return total, mean

    @jit  # type: ignore[untyped-decorator]
    def scale(s: Array, factor: Any) -> None:
        for k in range(len(s)):
            s[k] *= factor

    @jit  # type: ignore[untyped-decorator]
    def matrix(address: int, n: int, K: int) -> Any:
        return numba.carray(at(np.uint64(address), zero), (n, K))

    @jit  # type: ignore[untyped-decorator]
    def classes(address: int, n: int, K: int) -> Any:
        """The n classes, or None where one is not there."""
        y, bad = numba.carray(at(np.uint64(address), np.int64(0)), n), 0
        for i in range(n):
            bad += y[i] < 0 or y[i] >= K
        return None if bad else y

    # Addresses are handed over faster than arrays.

    @jit  # type: ignore[untyped-decorator]
    def number(address: int) -> Any:
        """Of a 0-dim tensor; ``item()`` would say that somebody waits for a device."""
        return at(np.uint64(address), zero)[0]

    # Σ p b of n rows, whose p s is written; None where a class is not there.

    @jit  # type: ignore[untyped-decorator]
    def plain(p: float, n: int, K: int, at_u: int, at_y: int, at_s: int) -> float | None:
        u, y, s = matrix(at_u, n, K), classes(at_y, n, K), matrix(at_s, n, K)
        if y is None:
            return None
        share, total = real(p), 0.0
        for i in range(n):
            b, k = hinge(u[i], y[i])
            if at_s:  # of an empty tensor it is 0
                s[i] = zero
                s[i, k] += share
                s[i, y[i]] -= share
            total += b
        return p * total

    @jit  # type: ignore[untyped-decorator]
    def smooth(p: float, n: int, K: int, at_u: int, at_y: int, at_s: int) -> float | None:
        u, y, s = matrix(at_u, n, K), classes(at_y, n, K), matrix(at_s, n, K)
        if y is None:
            return None
        share, total, size = real(p), 0.0, max(1, CHUNK // K)
        for begin in range(0, n, size):  # what was written a moment ago is slow to read: first all exponentials
            chunk = range(begin, min(begin + size, n))
            for i in chunk:
                exponentials(u[i], s[i])
            for i in chunk:
                mass, mean = sums(u[i], u[i, y[i]], s[i])
                b = one + (mean - s[i, y[i]]) / mass
                if b <= 0:  # the softmax cannot raise the dual: the hinge's own atom, which may be 0
                    b, k = hinge(u[i], y[i])
                    s[i] = zero
                    s[i, k] = share
                else:
                    scale(s[i], share / mass)
                s[i, y[i]] -= share
                total += b
        return p * total

    return SimpleNamespace(number=number, plain=plain, smooth=smooth)
