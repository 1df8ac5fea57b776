"""The inner loops of BlockFW. One source for both ways to run them: compiled by numba where it is installed (the extra
``fast``), else by the interpreter on numpy arrays.

Every block is one sample i, with its scores v_i at the present dual point. Moving s_i by ``ds`` moves v_i by −H ds,
with H = p_i J_i diag(η) J_iᵀ, and the block's dual is ⟨s, v_i⟩ + c minus the quadratic of H.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from proxsvm.extras import load

Array: TypeAlias = "np.ndarray[Any, Any]"
Jit: TypeAlias = "Callable[[Any], Any]"


@functools.cache
def kernels(compiled: bool, sparse: bool = False) -> SimpleNamespace:
    """The loops as functions: ``compiled`` or interpreted, on ``sparse`` rows or dense ones."""
    if not compiled:
        return _define(
            _as_it_is, _dot, _add, *((_sparse_scores, _sparse_update) if sparse else (_dense_scores, _dense_update))
        )
    numba = load("numba", extra="fast")
    jit = numba.njit(fastmath={"reassoc", "contract", "nsz", "arcp"})
    rows = (_sparse_scores_loop, _sparse_update_loop) if sparse else (_dense_scores_loop, _dense_update_loop)
    return _define(jit, *(jit(f) for f in (_dot_loop, _add_loop, *rows)))


def _as_it_is(f: Any) -> Any:
    return f


def available() -> bool:
    """Whether numba is installed."""
    try:
        load("numba", extra="fast")
    except ModuleNotFoundError:
        return False
    return True


# ⟨a, b⟩ and w += scale · x, for the interpreter and for the compiler.


def _dot(a: Array, b: Array) -> Any:
    return a @ b


def _add(w: Array, scale: Any, x: Array) -> None:
    w += scale * x


def _dot_loop(a: Array, b: Array) -> Any:
    total = a.dtype.type(0)
    for f in range(a.shape[0]):
        total += a[f] * b[f]
    return total


def _add_loop(w: Array, scale: Any, x: Array) -> None:
    factor = w.dtype.type(scale)
    for f in range(w.shape[0]):
        w[f] += factor * x[f]


# A row x_i of the features: z_j = ⟨W_k, x_i⟩ and W_k += g_j x_i for the classes k = ks[j], j < size. Dense rows lie in
# data[i]; sparse ones are CSR, and their W lies feature by feature, so that all classes of a feature are near.


def _dense_scores(W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    z[:size] = W[ks[:size]] @ data[i]


def _dense_update(W: Array, ks: Array, size: int, g: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    for j in range(size):
        W[ks[j]] += g[j] * data[i]


def _sparse_scores(
    W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    row = slice(starts[i], starts[i + 1])
    z[:size] = W[ks[:size, None], indices[row]] @ data[row]


def _sparse_update(
    W: Array, ks: Array, size: int, g: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    row = slice(starts[i], starts[i + 1])
    for j in range(size):
        W[ks[j], indices[row]] += g[j] * data[row]


def _dense_scores_loop(
    W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    x = data[i]
    for j in range(size):
        w = W[ks[j]]
        total = w.dtype.type(0)
        for f in range(x.shape[0]):
            total += w[f] * x[f]
        z[j] = total


def _dense_update_loop(
    W: Array, ks: Array, size: int, g: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    x = data[i]
    for j in range(size):
        w = W[ks[j]]
        scale = w.dtype.type(g[j])
        for f in range(x.shape[0]):
            w[f] += scale * x[f]


# The classes of a feature lie side by side in memory. Of many of them the compiler makes vectors, and all are faster
# than some; of a few, the sums stay in registers.


def _sparse_scores_loop(
    W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
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


def _sparse_update_loop(
    W: Array, ks: Array, size: int, g: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    begin, end = starts[i], starts[i + 1]
    if size > 2 and 8 * size >= W.shape[0]:
        everyone = np.zeros(W.shape[0], W.dtype)
        for j in range(size):
            everyone[ks[j]] = g[j]
        for at in range(begin, end):
            f, x = indices[at], data[at]
            for k in range(W.shape[0]):
                W[k, f] += everyone[k] * x
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


def _define(jit: Jit, dot: Any, add: Any, row_scores: Any, row_update: Any) -> SimpleNamespace:
    @jit
    def threshold(z: Array, size: int) -> Any:
        """Shift the first ``size`` entries of z by their maximum and return θ with Σ_k (z_k − θ)₊ = 1.

        Entries below θ are dropped until none is; the largest never is, because θ < 0 = its value. θ is at least −1.
        The sums have no branches, which would be mispredicted.
        """
        largest = z[0]
        for j in range(1, size):
            largest = max(largest, z[j])
        for j in range(size):
            z[j] -= largest
        if size == 2:  # the most frequent case
            return max((z[0] + z[1] - 1.0) / 2.0, -1.0)
        theta, kept = -1.0, size + 1.0
        while True:
            total, count = 0.0, 0.0
            for j in range(size):
                total += z[j] if z[j] > theta else 0.0
                count += 1.0 if z[j] > theta else 0.0
            if count >= kept:
                return theta
            theta, kept = (total - 1.0) / count, count

    @jit
    def simplex_look(
        v: Array,
        cost: Array,
        alpha: Array,
        target: Array,
        live: Array,
        lives: Array,
        gain: Array,
        worth: Array,
    ) -> None:
        """At the scores v, ``[n, K]``: what each sample can ``gain``, its ``worth`` c + ½⟨s, v⟩, and which of its
        classes are ``live``: those with weight, and those that are worth as much as the least of them."""
        n, K = v.shape
        for i in range(n):
            most, least, mean, c = -np.inf, np.inf, 0.0, 0.0
            for k in range(K):
                value, a = v[i, k] + cost[i, k], alpha[i, k]
                most = max(most, value)
                if a > 0:
                    least = min(least, value)
                    mean += a * value
                    c += a * cost[i, k]
            gain[i], worth[i] = most - mean, (mean + c - v[i, target[i]]) / 2
            count = 0
            for k in range(K):
                if alpha[i, k] > 0 or v[i, k] + cost[i, k] >= least:
                    live[i, count] = k
                    count += 1
            lives[i] = count

    @jit
    def simplex_sweep(
        order: Array,
        least: float,
        step: Array,
        h: Array,
        cost: Array,
        alpha: Array,
        live: Array,
        lives: Array,
        W: Array,
        data: Array,
        indices: Array,
        starts: Array,
    ) -> Any:
        """The exact block step of the simplex, α ← Π(α + (v + cost)/h), on the samples in ``order`` and their live
        classes. Those that are left without a reason to get weight are live no more, until the next look.

        The samples that gained more than ``least``, in units of η·D, come to the front of ``order``; returns how many
        they are, and the sum of all gains.
        """
        K = W.shape[0]
        z, g, moving = np.empty(K), np.empty(K), np.empty(K, np.int64)
        front, total = 0, 0.0
        for t in range(order.shape[0]):
            i = order[t]
            ks, size, over_h = live[i], lives[i], 1.0 / h[i]
            if size < 2:
                continue
            row_scores(W, ks, size, z, i, data, indices, starts)
            most, mean = -np.inf, 0.0
            for j in range(size):
                k = ks[j]
                value, a = z[j] + cost[i, k], alpha[i, k]
                most = max(most, value)
                mean += a * value
                z[j] = a + value * over_h
            theta = threshold(z, size)
            count, left = 0, 0
            for j in range(size):
                k = ks[j]
                if z[j] >= theta or alpha[i, k] > 0:
                    new = max(z[j] - theta, 0.0)
                    change = new - alpha[i, k]
                    if abs(change) > 1e-14:
                        alpha[i, k] = new
                        moving[count], g[count] = k, -step[i] * change
                        count += 1
                    if z[j] >= theta:
                        ks[left] = k
                        left += 1
            lives[i] = left
            if count > 0:
                row_update(W, moving, count, g, i, data, indices, starts)
            gain = (most - mean) * step[i]
            total += gain
            if gain > least:
                order[front] = i
                front += 1
        return front, total

    @jit
    def box_sweep(
        order: Array,
        least: float,
        step: Array,
        h: Array,
        low: Array,
        high: Array,
        center: Array,
        band: float,
        s: Array,
        W: Array,
        data: Array,
        indices: Array,
        starts: Array,
    ) -> Any:
        """The exact coordinate step of the box; ``order`` and what it returns are as in ``simplex_sweep``."""
        M = W.shape[0]
        everyone = np.arange(M)
        z, g, moving = np.empty(M), np.empty(M), np.empty(M, np.int64)
        front, total = 0, 0.0
        for t in range(order.shape[0]):
            i = order[t]
            count, gain = 0, 0.0
            row_scores(W, everyone, M, z, i, data, indices, starts)
            for k in range(M):
                residual, old = z[k] - center[i, k], s[i, k]
                best = max(high[i, k] * (residual - band), low[i, k] * (residual + band), 0.0)
                gain += best - old * residual + band * abs(old)
                residual += h[i] * old
                size = max(abs(residual) - band, 0.0) / h[i]
                new = min(max(size if residual > 0 else -size, low[i, k]), high[i, k])
                if abs(new - old) > 1e-14:
                    s[i, k] = new
                    moving[count], g[count] = k, -step[i] * (new - old)
                    count += 1
            if count > 0:
                row_update(W, moving, count, g, i, data, indices, starts)
            gain *= step[i]
            total += gain
            if gain > least:
                order[front] = i
                front += 1
        return front, total

    @jit
    def pairwise(
        H: Array, A: Array, c: Array, a: Array, count: int, v: Array, ds: Array, d: Array, Hd: Array, rounds: int
    ) -> None:
        """Pairwise steps over the hull of the atoms (A_t, c_t) with weights a, H symmetric.

        Moves ``a``, and ``v`` with it; leaves the change of s in ``ds``. ``d`` and ``Hd`` are room to work in.
        """
        M = v.shape[0]
        ds[:] = 0.0
        for _ in range(rounds):
            up, down, most, least = 0, 0, -np.inf, np.inf
            for t in range(count):
                slope = dot(A[t], v) + c[t]
                if slope > most:
                    up, most = t, slope
                if a[t] > 0 and slope < least:
                    down, least = t, slope
            if most - least <= 1e-15 * (1.0 + abs(most)) or up == down:
                return
            d[:] = A[up]
            add(d, -1.0, A[down])
            for j in range(M):
                Hd[j] = dot(H[j], d)
            curvature = dot(d, Hd)
            gamma = a[down]
            if most - least < gamma * curvature:
                gamma = (most - least) / curvature
            a[up] += gamma
            a[down] = 0.0 if gamma == a[down] else a[down] - gamma
            add(v, -gamma, Hd)
            add(ds, gamma, d)

    @jit
    def gram_sweep(
        order: Array, rounds: int, G: Array, p: Array, A: Array, c: Array, a: Array, counts: Array, v: Array
    ) -> None:
        """Block steps on the Gram matrix: ``G`` is [n·M, n·M], ``v`` the flat scores, atoms are [n, T, M]."""
        M = A.shape[2]
        ds, d, Hd, v_i = np.empty(M), np.empty(M), np.empty(M), np.empty(M)
        H = np.empty((M, M))
        for t in range(order.shape[0]):
            i = order[t]
            if p[i] <= 0 or counts[i] < 2:
                continue
            at = i * M
            v_i[:] = v[at : at + M]
            for j in range(M):
                H[j] = 0.0
                add(H[j], p[i], G[at + j, at : at + M])
            pairwise(H, A[i], c[i], a[i], counts[i], v_i, ds, d, Hd, rounds)
            for j in range(M):
                if ds[j] != 0.0:
                    add(v, -p[i] * ds[j], G[at + j])

    @jit
    def row_sweep(
        order: Array,
        rounds: int,
        step: Array,
        h: Array,
        A: Array,
        c: Array,
        a: Array,
        counts: Array,
        W: Array,
        data: Array,
        indices: Array,
        starts: Array,
    ) -> None:
        """Block steps on the features, for a loss whose hull is known by its atoms alone: H = h_i times identity."""
        M = W.shape[0]
        everyone = np.arange(M)
        ds, d, Hd, v = np.empty(M), np.empty(M), np.empty(M), np.empty(M)
        H = np.zeros((M, M))
        for t in range(order.shape[0]):
            i = order[t]
            if counts[i] < 2:
                continue
            row_scores(W, everyone, M, v, i, data, indices, starts)
            for k in range(M):
                H[k, k] = h[i]
            pairwise(H, A[i], c[i], a[i], counts[i], v, ds, d, Hd, rounds)
            for k in range(M):
                ds[k] *= -step[i]
            row_update(W, everyone, M, ds, i, data, indices, starts)

    return SimpleNamespace(
        simplex_look=simplex_look,
        simplex_sweep=simplex_sweep,
        box_sweep=box_sweep,
        gram_sweep=gram_sweep,
        row_sweep=row_sweep,
    )
