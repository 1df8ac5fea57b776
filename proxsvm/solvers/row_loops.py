"""The innermost loops of BlockFW, each written twice: on numpy arrays for the interpreter, and as a loop for numba."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


def dot(a: Array, b: Array) -> Any:
    """⟨a, b⟩."""
    return a @ b


def add(w: Array, scale: Any, x: Array) -> None:
    """w += scale · x."""
    w += scale * x


def dot_loop(a: Array, b: Array) -> Any:
    """⟨a, b⟩."""
    total = a.dtype.type(0)
    for f in range(a.shape[0]):
        total += a[f] * b[f]
    return total


def add_loop(w: Array, scale: Any, x: Array) -> None:
    """w += scale · x."""
    factor = w.dtype.type(scale)
    for f in range(w.shape[0]):
        w[f] += factor * x[f]


# A row x_i of the features: z_j = ⟨W_k, x_i⟩ and W_k += g_j x_i for the classes k = ks[j], j < size. Dense rows lie in
# data[i]; sparse ones are CSR, and their W lies feature by feature, so that all classes of a feature are near.


def dense_scores(W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    """z_j = ⟨W_k, x_i⟩."""
    z[:size] = W[ks[:size]] @ data[i]


def dense_update(
    W: Array, ks: Array, size: int, g: Array, room: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i."""
    for j in range(size):
        W[ks[j]] += g[j] * data[i]


def sparse_scores(W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    """z_j = ⟨W_k, x_i⟩."""
    row = slice(starts[i], starts[i + 1])
    z[:size] = W[ks[:size, None], indices[row]] @ data[row]


def sparse_update(
    W: Array, ks: Array, size: int, g: Array, room: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i."""
    row = slice(starts[i], starts[i + 1])
    for j in range(size):
        W[ks[j], indices[row]] += g[j] * data[row]


def dense_scores_loop(
    W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """z_j = ⟨W_k, x_i⟩."""
    x = data[i]
    for j in range(size):
        w = W[ks[j]]
        total = w.dtype.type(0)
        for f in range(x.shape[0]):
            total += w[f] * x[f]
        z[j] = total


def dense_update_loop(
    W: Array, ks: Array, size: int, g: Array, room: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i."""
    x = data[i]
    for j in range(size):
        w = W[ks[j]]
        scale = w.dtype.type(g[j])
        for f in range(x.shape[0]):
            w[f] += scale * x[f]


# The classes of a feature lie side by side in memory. Of many of them the compiler makes vectors, and all are faster
# than some; of a few, the sums stay in registers.


def sparse_scores_loop(
    W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
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


def sparse_update_loop(
    W: Array, ks: Array, size: int, g: Array, room: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i; ``room`` is of the size of all classes."""
    begin, end = starts[i], starts[i + 1]
    if size > 2 and 8 * size >= W.shape[0]:
        room[:] = 0.0
        for j in range(size):
            room[ks[j]] = g[j]
        for at in range(begin, end):
            f, x = indices[at], data[at]
            for k in range(W.shape[0]):
                W[k, f] += room[k] * x
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


# The same for all of three classes, without an array.


def three_scores(W: Array, i: int, data: Array, indices: Array, starts: Array) -> Any:
    """The three scores of a row."""
    row = slice(starts[i], starts[i + 1])
    return W[:, indices[row]] @ data[row]


def three_update(W: Array, a: Any, b: Any, c: Any, i: int, data: Array, indices: Array, starts: Array) -> None:
    """W += (a, b, c) x_iᵀ."""
    row = slice(starts[i], starts[i + 1])
    W[:, indices[row]] += np.outer((a, b, c), data[row])


def three_scores_loop(W: Array, i: int, data: Array, indices: Array, starts: Array) -> Any:
    """The three scores of a row."""
    a = b = c = 0.0
    for at in range(starts[i], starts[i + 1]):
        f, x = indices[at], data[at]
        a += W[0, f] * x
        b += W[1, f] * x
        c += W[2, f] * x
    return a, b, c


def three_update_loop(W: Array, a: Any, b: Any, c: Any, i: int, data: Array, indices: Array, starts: Array) -> None:
    """W += (a, b, c) x_iᵀ."""
    for at in range(starts[i], starts[i + 1]):
        f, x = indices[at], data[at]
        W[0, f] += a * x
        W[1, f] += b * x
        W[2, f] += c * x
