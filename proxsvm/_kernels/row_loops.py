"""Operations on a row of the features as loops, which numba compiles. ``row_arrays.py`` has the same functions on numpy
arrays, for the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxsvm._kernels.tensors import Array


def dot(a: Array, b: Array) -> Any:
    """⟨a, b⟩."""
    total = a.dtype.type(0)
    for f in range(a.shape[0]):
        total += a[f] * b[f]
    return total


def add(w: Array, scale: Any, x: Array) -> None:
    """w += scale · x."""
    factor = w.dtype.type(scale)
    for f in range(w.shape[0]):
        w[f] += factor * x[f]


# A row x_i of the features: z_j = ⟨W_k, x_i⟩ and W_k += g_j x_i for the classes k = ks[j], j < size. Dense rows are
# data[i], ``[n, F]``; sparse ones are CSR, where data has one dimension, and their W is stored feature by feature, so
# that the classes of a feature are contiguous.


def row_scores(W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    """z_j = ⟨W_k, x_i⟩."""
    if data.ndim == 2:  # numba resolves this at compile time
        dense_scores(W, ks, size, z, data[i])
    else:
        sparse_scores(W, ks, size, z, i, data, indices, starts)


def row_update(
    W: Array, ks: Array, size: int, g: Array, buffer: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i; ``buffer`` has one entry per class."""
    if data.ndim == 2:
        dense_update(W, ks, size, g, data[i])
    else:
        sparse_update(W, ks, size, g, buffer, i, data, indices, starts)


def dense_scores(W: Array, ks: Array, size: int, z: Array, x: Array) -> None:
    """z_j = ⟨W_k, x⟩."""
    for j in range(size):
        w = W[ks[j]]
        total = w.dtype.type(0)
        for f in range(x.shape[0]):
            total += w[f] * x[f]
        z[j] = total


def dense_update(W: Array, ks: Array, size: int, g: Array, x: Array) -> None:
    """W_k += g_j x."""
    for j in range(size):
        w = W[ks[j]]
        scale = w.dtype.type(g[j])
        for f in range(x.shape[0]):
            w[f] += scale * x[f]


# A loop over many classes of a feature is vectorised, and faster over all of them than over some; the sums of a few
# classes stay in registers.


def sparse_scores(W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    """z_j = ⟨W_k, x_i⟩."""
    begin, end, last, zero = starts[i], starts[i + 1], size - 1, W.dtype.type(0)
    if size > 4 and 8 * size >= W.shape[0]:
        z[:] = 0.0
        for at in range(begin, end):
            f, x = indices[at], data[at]
            for k in range(W.shape[0]):
                z[k] += W[k, f] * x
        for j in range(size):  # ks ascends, so nothing is overwritten before it is read
            z[j] = z[ks[j]]
    elif size <= 2:
        k, l, a, b = ks[0], ks[last], zero, zero
        for at in range(begin, end):
            f, x = indices[at], data[at]
            a += W[k, f] * x
            b += W[l, f] * x
        z[0] = a
        z[last] = b
    else:
        for j in range(0, size, 4):
            k, l, m, n = ks[j], ks[min(j + 1, last)], ks[min(j + 2, last)], ks[min(j + 3, last)]
            a = b = c = d = zero
            for at in range(begin, end):
                f, x = indices[at], data[at]
                a += W[k, f] * x
                b += W[l, f] * x
                c += W[m, f] * x
                d += W[n, f] * x
            z[min(j + 3, last)] = d
            z[min(j + 2, last)] = c
            z[min(j + 1, last)] = b
            z[j] = a


def sparse_update(
    W: Array, ks: Array, size: int, g: Array, buffer: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i; ``buffer`` has one entry per class."""
    begin, end = starts[i], starts[i + 1]
    if size > 2 and 8 * size >= W.shape[0]:
        buffer[:] = 0.0
        for j in range(size):
            buffer[ks[j]] = g[j]
        for at in range(begin, end):
            f, x = indices[at], data[at]
            for k in range(W.shape[0]):
                W[k, f] += buffer[k] * x
        return
    for j in range(0, size - 1, 2):
        k, l, a, b = ks[j], ks[j + 1], W.dtype.type(g[j]), W.dtype.type(g[j + 1])
        for at in range(begin, end):
            f, x = indices[at], data[at]
            W[k, f] += a * x
            W[l, f] += b * x
    if size % 2 == 1:
        k, a = ks[size - 1], W.dtype.type(g[size - 1])
        for at in range(begin, end):
            W[k, indices[at]] += a * data[at]


# The same for exactly three classes on sparse rows, without an array.


def three_scores(W: Array, i: int, data: Array, indices: Array, starts: Array) -> Any:
    """The three scores of a row."""
    a = b = c = 0.0
    for at in range(starts[i], starts[i + 1]):
        f, x = indices[at], data[at]
        a += W[0, f] * x
        b += W[1, f] * x
        c += W[2, f] * x
    return a, b, c


def three_update(W: Array, a: Any, b: Any, c: Any, i: int, data: Array, indices: Array, starts: Array) -> None:
    """W += (a, b, c) x_iᵀ."""
    for at in range(starts[i], starts[i + 1]):
        f, x = indices[at], data[at]
        W[0, f] += a * x
        W[1, f] += b * x
        W[2, f] += c * x


def squared_norms(norms: Array, data: Array, starts: Array) -> None:
    """‖x_i‖² of sparse rows."""
    for i in range(norms.shape[0]):
        total = 0.0
        for at in range(starts[i], starts[i + 1]):
            total += data[at] * data[at]
        norms[i] = total


def products(W: Array, v: Array, data: Array, indices: Array, starts: Array) -> None:
    """v = X Wᵀ, ``[n, K]``, for sparse rows. Without numba, torch does this."""
    K = W.shape[0]
    everyone = np.arange(K)
    for i in range(v.shape[0]):
        if K == 3:
            v[i, 0], v[i, 1], v[i, 2] = three_scores(W, i, data, indices, starts)
        else:
            sparse_scores(W, everyone, K, v[i], i, data, indices, starts)
