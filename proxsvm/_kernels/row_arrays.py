"""Operations on a row of the features, on numpy arrays, for the interpreter. ``row_loops.py`` has the same functions as
loops, for numba: an interpreted loop over the entries would be a hundred times slower."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxsvm._kernels.tensors import Array


def dot(a: Array, b: Array) -> Any:
    """⟨a, b⟩."""
    return a @ b


def add(w: Array, scale: Any, x: Array) -> None:
    """w += scale · x."""
    w += scale * x


# A row x_i of the features: z_j = ⟨W_k, x_i⟩ and W_k += g_j x_i for the classes k = ks[j], j < size. Dense rows are
# data[i], ``[n, F]``; sparse ones are CSR, where data has one dimension, and their W is stored feature by feature, so
# that the classes of a feature are contiguous.


def row_scores(W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    """z_j = ⟨W_k, x_i⟩."""
    if data.ndim == 2:
        z[:size] = W[ks[:size]] @ data[i]
    else:
        row = slice(starts[i], starts[i + 1])
        z[:size] = W[ks[:size, None], indices[row]] @ data[row]


def row_update(
    W: Array, ks: Array, size: int, g: Array, buffer: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i."""
    if data.ndim == 2:
        for j in range(size):
            W[ks[j]] += g[j] * data[i]
    else:
        row = slice(starts[i], starts[i + 1])
        for j in range(size):
            W[ks[j], indices[row]] += g[j] * data[row]


def three_scores(W: Array, i: int, data: Array, indices: Array, starts: Array) -> Any:
    """The three scores of a row."""
    row = slice(starts[i], starts[i + 1])
    return W[:, indices[row]] @ data[row]


def three_update(W: Array, a: Any, b: Any, c: Any, i: int, data: Array, indices: Array, starts: Array) -> None:
    """W += (a, b, c) x_iᵀ."""
    row = slice(starts[i], starts[i + 1])
    W[:, indices[row]] += np.outer((a, b, c), data[row])


def squared_norms(norms: Array, data: Array, starts: Array) -> None:
    """‖x_i‖² of sparse rows."""
    filled = np.flatnonzero(np.diff(starts))
    norms[:] = 0.0
    if len(filled):
        norms[filled] = np.add.reduceat(np.square(data, dtype=np.float64), starts[filled])
