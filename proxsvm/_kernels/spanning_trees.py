"""The sum over all spanning trees, compiled; ``structures/spanning_tree.py`` has the plain twin."""

from __future__ import annotations

import numpy as np

from proxsvm._kernels.jit import njit
from proxsvm._kernels.tensors import Array

TINY = 1e-200  # smaller sums may have lost terms to underflow


@njit
def eliminate(weights: Array, most: Array, sizes: Array, log_z: Array, mu: Array) -> None:
    """log Z of each sample, ``[B]``, and the marginals of its arcs, ``[B, N, N]``, 0 before; NaN and 0 where a word has
    no head but the root, or only heads that are this unlikely.

    ``weights`` are those of the arcs, float64, 0 where there is none, each less ``most``, ``[B, N]``, of its word.
    """
    N = weights.shape[1]
    w, g, scale = np.empty((N, N)), np.empty((N, N)), np.empty(N)
    for b in range(len(sizes)):
        n, total = sizes[b] + 1, 0.0
        w[:] = weights[b]
        for k in range(n - 1, 0, -1):
            own, s = w[k, :k], 0.0
            for h in range(min(k - 1, 1), k):  # the root is the head of the last one alone
                s += w[h, k]
            if not s > TINY:
                total = np.nan
                break
            total += np.log(s) + most[b, k]
            scale[k] = s
            for h in range(k):
                row = w[h, : k + 1]
                p = row[k] / s
                row[k] = p
                for m in range(k):
                    row[m] += p * own[m]
        log_z[b] = total
        if not np.isfinite(total):
            continue
        g[:] = 0.0  # the derivatives of log Z in the weights, backwards
        for k in range(1, n):
            own, out, s, t = w[k, :k], g[k, :k], scale[k], 0.0
            for h in range(k):
                row, p, c = g[h, : k + 1], w[h, k], 0.0
                for m in range(k):
                    c += row[m] * own[m]
                    out[m] += p * row[m]
                row[k] = c / s
                t += c * p
            for h in range(min(k - 1, 1), k):
                g[h, k] += (1 - t) / s
        for h in range(n):
            for m in range(n):
                mu[b, h, m] = weights[b, h, m] * g[h, m]
