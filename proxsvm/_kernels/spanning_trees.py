"""The sum over all spanning trees, compiled; ``structures/spanning_tree.py`` has the plain twin."""

from __future__ import annotations

import numpy as np

from proxsvm._kernels.jit import njit
from proxsvm._kernels.tensors import Array
from proxsvm._scores import FORBIDDEN


@njit
def eliminate(weights: Array, most: Array, sizes: Array, log_z: Array, mu: Array) -> None:
    """log Z of each sample, ``[B]``, FORBIDDEN without a tree, and the marginals of its arcs, ``[B, N, N]``, 0 before.

    ``weights`` are those of the arcs, float64, 0 where there is none, each less ``most``, ``[B, N]``, of its word.
    """
    N = weights.shape[1]
    w, g, scale = np.empty((N, N)), np.empty((N, N)), np.empty(N)
    for b in range(len(sizes)):
        n, rooted = sizes[b] + 1, 0  # rooted: the word that is the root's child because it has no other head
        w[:] = weights[b]
        total = 0.0
        for k in range(n - 1, 0, -1):
            own, s = w[k, :k], 0.0
            for h in range(0 if rooted else 1, k):
                s += w[h, k]
            if s == 0.0 and not rooted:
                s, rooted = w[0, k], k
                w[0, :k] = 0.0
            if s == 0.0:
                total = FORBIDDEN
                break
            total += np.log(s) + most[b, k]
            scale[k] = s
            for h in range(k):
                row = w[h, : k + 1]
                p = row[k] / s
                row[k] = p
                for m in range(k):
                    row[m] += p * own[m]
        log_z[b] = max(total, FORBIDDEN)
        if total <= FORBIDDEN:
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
            for h in range(0 if k <= rooted else 1, k):
                g[h, k] += (1 - t) / s
            if k == rooted:
                g[0, :k] = 0.0
        for h in range(n):
            for m in range(n):
                mu[b, h, m] = weights[b, h, m] * g[h, m]
