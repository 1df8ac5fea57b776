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
    def are_classes(y: Array, K: int) -> bool:
        bad = 0
        for i in range(len(y)):
            bad += y[i] < 0 or y[i] >= K
        return bad == 0

    @jit  # type: ignore[untyped-decorator]
    def hinge(u: Array, y: int) -> Any:
        """max(0, u_k − u_y + 1) with the best k ≠ y, and that k; y itself where the hinge is 0."""
        if len(u) == 1:
            return zero, y
        u_k = largest(u, y)
        margin = u_k - u[y] + one
        return (zero, y) if margin <= 0 else (margin, first(u, u_k, y))

    @jit  # type: ignore[untyped-decorator]
    def plain(u: Array, y: Array, b: Array, k: Array) -> None:
        for i in range(len(y)):
            b[i], k[i] = hinge(u[i], y[i])

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
    def smooth(u: Array, y: Array, b: Array, scale: Array, alpha: Array) -> None:
        n, K = u.shape
        size = max(1, CHUNK // K)
        for begin in range(0, n, size):  # what was written a moment ago is slow to read: first all exponentials
            chunk = range(begin, min(begin + size, n))
            for i in chunk:
                exponentials(u[i], alpha[i])
            for i in chunk:
                total, mean = sums(u[i], u[i, y[i]], alpha[i])
                scale[i] = one / total
                b[i] = one + (mean - alpha[i, y[i]]) * scale[i]
                if b[i] <= 0:  # the softmax cannot raise the dual: the hinge's own atom, which may be 0
                    b[i], k = hinge(u[i], y[i])
                    alpha[i] = zero
                    alpha[i, k] = scale[i] = one

    # Without a grad, p s itself.

    @jit  # type: ignore[untyped-decorator]
    def gradient_plain(grad: Any, share: float, s: Array, y: Array, k: Array) -> None:
        weight = real(share) if grad is None else real(share) * grad[()]
        for i in range(len(y)):
            s[i] = zero
            s[i, k[i]] += weight
            s[i, y[i]] -= weight

    @jit  # type: ignore[untyped-decorator]
    def gradient_smooth(grad: Any, share: float, s: Array, y: Array, scale: Array) -> None:
        weight = real(share) if grad is None else real(share) * grad[()]
        for i in range(len(y)):
            s_i, factor = s[i], weight * scale[i]
            for k in range(len(s_i)):
                s_i[k] *= factor
            s_i[y[i]] -= weight

    @jit  # type: ignore[untyped-decorator]
    def small_plain(u: Array, y: Array, share: float, s: Array) -> Any:
        """Σ p b, and p s at once; None where a class is not there."""
        if not are_classes(y, u.shape[1]):
            return None
        b, k = np.empty(len(y), u.dtype), np.empty(len(y), np.int64)
        plain(u, y, b, k)
        gradient_plain(None, share, s, y, k)
        return b.sum() * share

    @jit  # type: ignore[untyped-decorator]
    def small_smooth(u: Array, y: Array, share: float, s: Array) -> Any:
        if not are_classes(y, u.shape[1]):
            return None
        b, scale = np.empty(len(y), u.dtype), np.empty(len(y), u.dtype)
        smooth(u, y, b, scale, s)
        gradient_smooth(None, share, s, y, scale)
        return b.sum() * share

    return SimpleNamespace(
        are_classes=are_classes,
        small_plain=small_plain,
        small_smooth=small_smooth,
        plain=plain,
        smooth=smooth,
        gradient_plain=gradient_plain,
        gradient_smooth=gradient_smooth,
    )
