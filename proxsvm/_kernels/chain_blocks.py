"""The inner loops of the linear chain models. All stand in one module, so that numba's cache is right.

A block is one sequence i of T positions, with scores v = X_i W, ``[T, K]``, and A, ``[K, K]``. Moving its part of the
dual point by ``ds`` (labels, ``[T, K]``) and ``de`` (pairs of labels, ``[K, K]``) moves W by −C X_iᵀ ds, A by −C de,
and v by −C G ds with G = X_i X_iᵀ. A sweep visits the sequences in ``order`` and writes their gaps, each when it was
visited, to ``gaps``, ``[n]``; with ``move`` False nothing moves, and their sum is the gap of the dual point.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from proxsvm._kernels.jit import njit
from proxsvm._kernels.tensors import Array


class Sequences(NamedTuple):
    """All positions as the rows of a CSR matrix; sequence i begins at row ``starts[i]``."""

    data: Array
    indices: Array
    rows: Array
    starts: Array


@njit
def scores(x: Sequences, first: int, T: int, W: Array, v: Array) -> None:
    """``v`` becomes X_i W."""
    for t in range(T):
        u = v[t]
        u[:] = 0.0
        for p in range(x.rows[first + t], x.rows[first + t + 1]):
            w, a = W[x.indices[p]], x.data[p]
            for k in range(len(u)):
                u[k] += a * w[k]


@njit
def update(x: Sequences, first: int, T: int, W: Array, ds: Array, scale: float) -> None:
    """Add scale · X_iᵀ ds to W."""
    for t in range(T):
        d = ds[t]
        if d.any():
            for p in range(x.rows[first + t], x.rows[first + t + 1]):
                w, a = W[x.indices[p]], scale * x.data[p]
                for k in range(len(d)):
                    w[k] += a * d[k]


@njit
def gram(x: Sequences, first: int, T: int, buffer: Array, G: Array) -> None:
    """``G`` becomes X_i X_iᵀ; ``buffer`` has a zero for every feature, before and after."""
    for t in range(T):
        begin, end = x.rows[first + t], x.rows[first + t + 1]
        for p in range(begin, end):
            buffer[x.indices[p]] += x.data[p]
        for r in range(t + 1):
            total = 0.0
            for p in range(x.rows[first + r], x.rows[first + r + 1]):
                total += x.data[p] * buffer[x.indices[p]]
            G[r, t] = G[t, r] = total
        for p in range(begin, end):
            buffer[x.indices[p]] = 0.0


@njit
def viterbi(v: Array, A: Array, alpha: Array, path: Array) -> float:
    """The best score, its labels in ``path``, and in ``alpha`` the best score of a sequence up to t with each label."""
    T, K = v.shape
    back = np.zeros((T, K), np.int64)
    alpha[0] = v[0]
    for t in range(1, T):
        here, from_ = alpha[t], back[t]
        here[:] = -np.inf
        for j in range(K):
            a, row = alpha[t - 1, j], A[j]
            for k in range(K):
                if a + row[k] > here[k]:
                    here[k] = a + row[k]
                    from_[k] = j
        here += v[t]
    best = alpha[T - 1].argmax()
    value: float = alpha[T - 1, best]
    for t in range(T - 1, -1, -1):
        path[t] = best
        best = back[t, best]
    return value


@njit
def marginals(v: Array, A: Array, alpha: Array, mu: Array, e: Array) -> float:
    """log Z; p(y_t) in ``mu``, and the sum over t of p(y_t, y_{t+1}) in ``e``. Each position is scaled to sum 1."""
    T, K = v.shape
    common = A.max()
    E = np.exp(np.maximum(A - common, -600.0))  # above 0, so that every sequence is possible
    log_z: float = (T - 1) * common
    scale = np.empty(T)
    for t in range(T):
        top, here = v[t].max(), alpha[t]
        mu[t] = np.exp(v[t] - top)
        if t == 0:
            here[:] = 1.0
        else:
            here[:] = 0.0
            for j in range(K):
                a, row = alpha[t - 1, j], E[j]
                for k in range(K):
                    here[k] += a * row[k]
        here *= mu[t]
        scale[t] = here.sum()
        here /= scale[t]
        log_z += top + math.log(scale[t])
    beta, message = np.ones(K), np.empty(K)
    e[:] = 0.0
    for t in range(T - 1, -1, -1):
        message[:] = mu[t] * beta / scale[t]
        mu[t] = alpha[t] * beta
        if t > 0:
            for j in range(K):
                a, row, out, total = alpha[t - 1, j], E[j], e[j], 0.0
                for k in range(K):
                    total += row[k] * message[k]
                    out[k] += a * message[k]
                beta[j] = total
    e *= E
    return log_z


@njit
def step(
    G: Array, ds: Array, de: Array, gain: float, C: float, limit: float, v: Array, A: Array, moved: Array
) -> float:
    """Move v and A by the best γ ≤ limit, gain / (C ‖Jᵀ(ds, de)‖²); ``moved`` sums γ ds. Returns γ."""
    T, K = ds.shape
    g, square = np.zeros((T, K)), (de * de).sum()
    for r in range(T):
        d = ds[r]
        if d.any():
            for t in range(T):
                a, out = G[t, r], g[t]
                if a != 0.0:
                    for k in range(K):
                        out[k] += a * d[k]
    square += (g * ds).sum()
    gamma = limit
    if gain < limit * C * square:
        gamma = max(gain / (C * square), 0.0)
    v -= C * gamma * g
    A -= C * gamma * de
    moved += gamma * ds
    return gamma


@njit
def sweep_likelihood(
    x: Sequences, order: Array, gaps: Array, W: Array, A: Array, C: float, move: bool, mu: Array, e: Array, c: Array
) -> None:
    """Frank-Wolfe steps towards the marginals; ``mu``, ``e`` and the offset ``c`` are convex combinations of them.

    ``mu``: ``[N, K]`` for all positions, ``e``: ``[n, K, K]``, ``c``: ``[n]``.
    """
    K, longest = len(A), (x.starts[1:] - x.starts[:-1]).max()
    G_, buffer, de = np.empty((longest, longest)), np.zeros(len(W)), np.empty((K, K))
    buffers = np.empty((4, longest, K))
    for i in order:
        first, T = x.starts[i], x.starts[i + 1] - x.starts[i]
        v, alpha, ds, moved = buffers[0, :T], buffers[1, :T], buffers[2, :T], buffers[3, :T]
        own, G = mu[first : first + T], G_[:T, :T]
        moved[:] = 0.0
        scores(x, first, T, W, v)
        for repeat in range(2):  # a second step needs no product with the features
            log_z = marginals(v, A, alpha, ds, de)
            gain = log_z - c[i] - (own * v).sum() - (e[i] * A).sum()
            if repeat == 0:
                gaps[i] = gain
                if not move:
                    break
                gram(x, first, T, buffer, G)
            entropy = log_z - (ds * v).sum() - (de * A).sum()
            ds -= own
            de -= e[i]
            gamma = step(G, ds, de, gain, C, 1.0, v, A, moved)
            own += gamma * ds
            e[i] += gamma * de
            c[i] += gamma * (entropy - c[i])
        if move:
            update(x, first, T, W, moved, -C)


@njit
def evaluate(v: Array, A: Array, paths: Array, value: Array) -> None:
    """The score of each labelling ``paths[:, m]``, for as many as ``value`` has entries."""
    value[:] = 0.0
    for t in range(len(v)):
        for m in range(len(value)):
            value[m] += v[t, paths[t, m]]
            if t > 0:
                value[m] += A[paths[t - 1, m], paths[t, m]]


@njit
def exchange(
    G: Array, up: Array, down: Array, gain: float, C: float, limit: float, v: Array, A: Array, de: Array, moved: Array
) -> float:
    """:func:`step` from the labelling ``down`` to ``up``, whose ds and de have few entries; ``de`` is 0 again after."""
    T, square = len(v), 0.0
    differ = np.flatnonzero(up != down)
    for q in differ:
        for r in differ:
            same = 1.0 * (up[q] == up[r]) + 1.0 * (down[q] == down[r])
            square += G[q, r] * (same - 1.0 * (up[q] == down[r]) - 1.0 * (down[q] == up[r]))
    for t in range(1, T):
        de[up[t - 1], up[t]] += 1.0
        de[down[t - 1], down[t]] -= 1.0
    for t in range(1, T):
        square += de[up[t - 1], up[t]] - de[down[t - 1], down[t]]  # the sum of all squares
    gamma = limit
    if gain < limit * C * square:
        gamma = gain / (C * square)
    for t in range(1, T):
        de[up[t - 1], up[t]] = de[down[t - 1], down[t]] = 0.0
        A[up[t - 1], up[t]] -= C * gamma
        A[down[t - 1], down[t]] += C * gamma
    for r in differ:
        moved[r, up[r]] += gamma
        moved[r, down[r]] -= gamma
        for t in range(T):
            v[t, up[r]] -= C * gamma * G[t, r]
            v[t, down[r]] += C * gamma * G[t, r]
    return gamma


@njit
def sweep_hinge(
    x: Sequences, order: Array, gaps: Array, W: Array, A: Array, C: float, move: bool, costs: Array, state: Any
) -> None:
    """At most ten pairwise steps over a sequence's working set, which the best labelling has joined where it has space.

    ``costs``: of each label at each position, ``[N, K]``; ``state``: the working sets, ``[N, M]``, and their weights,
    ``[n, M]``, of which those above 0 come first.
    """
    (paths, weight), K, longest = state, len(A), (x.starts[1:] - x.starts[:-1]).max()
    G_, buffer, de, values = np.empty((longest, longest)), np.zeros(len(W)), np.zeros((K, K)), np.empty(weight.shape[1])
    buffers, labels = np.empty((3, longest, K)), np.empty((3, longest), np.int64)
    for i in order:
        first, T, a = x.starts[i], x.starts[i + 1] - x.starts[i], weight[i]
        v, alpha, moved = buffers[0, :T], buffers[1, :T], buffers[2, :T]
        path, G, best, up, down = paths[first : first + T], G_[:T, :T], labels[0, :T], labels[1, :T], labels[2, :T]
        n = (a > 0).sum()
        scores(x, first, T, W, v)
        v += costs[first : first + T]
        top = viterbi(v, A, alpha, best)
        evaluate(v, A, path, values[:n])
        gain = top - (a[:n] * values[:n]).sum()
        gaps[i] = gain
        if not move or gain <= 1e-12 * abs(top):
            continue
        if top > values[:n].max() and n < len(a):
            path[:, n] = best
            n += 1
        value = values[:n]
        gram(x, first, T, buffer, G)
        moved[:] = 0.0
        for _ in range(10):
            evaluate(v, A, path, value)
            u, d = value.argmax(), np.where(a[:n] > 0, value, np.inf).argmin()
            rise = value[u] - value[d]
            if rise <= 0.1 * gain:
                break
            up[:] = path[:, u]
            down[:] = path[:, d]
            gamma = exchange(G, up, down, rise, C, a[d], v, A, de, moved)
            a[u] += gamma
            a[d] -= gamma
        update(x, first, T, W, moved, -C)
        kept = 0
        for m in range(n):
            if a[m] > 0:
                a[kept] = a[m]
                path[:, kept] = path[:, m]
                kept += 1
        a[kept:n] = 0.0


@njit
def expected_labels(x: Sequences, state: Any, mu: Array, e: Array) -> None:
    """Add the weighted counts over the working sets: of labels to ``mu``, ``[N, K]``, of pairs to ``e``, ``[K, K]``."""
    paths, weight = state
    for i in range(len(weight)):
        for m in range((weight[i] > 0).sum()):
            for t in range(x.starts[i], x.starts[i + 1]):
                mu[t, paths[t, m]] += weight[i, m]
                if t > x.starts[i]:
                    e[paths[t - 1, m], paths[t, m]] += weight[i, m]
