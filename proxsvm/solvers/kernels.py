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
from proxsvm.solvers import row_loops
from proxsvm.solvers.row_loops import Array

Jit: TypeAlias = "Callable[[Any], Any]"


@functools.cache
def kernels(compiled: bool, sparse: bool = False) -> SimpleNamespace:
    """The loops as functions: ``compiled`` or interpreted, on ``sparse`` rows or dense ones."""
    loops = row_loops
    if compiled:
        jit = load("numba", extra="fast").njit(fastmath={"reassoc", "contract", "nsz", "arcp"})
        dense, few = (
            (loops.dense_scores_loop, loops.dense_update_loop),
            (loops.three_scores_loop, loops.three_update_loop),
        )
        rows = (loops.sparse_scores_loop, loops.sparse_update_loop) if sparse else dense
        return _define(jit, *(jit(f) for f in (loops.dot_loop, loops.add_loop, *rows, *few)))
    rows = (loops.sparse_scores, loops.sparse_update) if sparse else (loops.dense_scores, loops.dense_update)
    return _define(_as_it_is, loops.dot, loops.add, *rows, loops.three_scores, loops.three_update)


def _as_it_is(f: Any) -> Any:
    return f


def available() -> bool:
    """Whether numba is installed."""
    try:
        load("numba", extra="fast")
    except ModuleNotFoundError:
        return False
    return True


def _define(
    jit: Jit, dot: Any, add: Any, row_scores: Any, row_update: Any, three_scores: Any, three_update: Any
) -> SimpleNamespace:
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
        z, g, moving, room = np.empty(K), np.empty(K), np.empty(K, np.int64), np.empty(K)
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
                row_update(W, moving, count, g, room, i, data, indices, starts)
            gain = (most - mean) * step[i]
            total += gain
            if gain > least:
                order[front] = i
                front += 1
        return front, total

    @jit
    def three_sweep(
        order: Array,
        least: float,
        step: Array,
        h: Array,
        cost: Array,
        alpha: Array,
        W: Array,
        data: Array,
        indices: Array,
        starts: Array,
    ) -> Any:
        """``simplex_sweep`` for three classes on sparse rows: all of it in registers, and no class is left out.

        θ is the largest of the three that a support of the one, two or three largest entries would give.
        """
        front, total = 0, 0.0
        for t in range(order.shape[0]):
            i = order[t]
            a, b, c = alpha[i, 0], alpha[i, 1], alpha[i, 2]
            u, v, w = three_scores(W, i, data, indices, starts)
            u, v, w = u + cost[i, 0], v + cost[i, 1], w + cost[i, 2]
            most = max(u, max(v, w))
            gain = (most - a * u - b * v - c * w) * step[i]
            total += gain
            if gain > least:
                order[front] = i
                front += 1
            if gain <= 1e-14 * step[i]:
                continue
            over_h = 1.0 / h[i]
            u, v, w = a + (u - most) * over_h, b + (v - most) * over_h, c + (w - most) * over_h
            largest, two, three = max(u, max(v, w)), u + v + w - min(u, min(v, w)), u + v + w
            theta = max(largest - 1.0, max((two - 1.0) / 2.0, (three - 1.0) / 3.0))
            u, v, w = max(u - theta, 0.0), max(v - theta, 0.0), max(w - theta, 0.0)
            alpha[i, 0], alpha[i, 1], alpha[i, 2] = u, v, w
            three_update(W, step[i] * (a - u), step[i] * (b - v), step[i] * (c - w), i, data, indices, starts)
        return front, total

    @jit
    def squared_norms(norms: Array, data: Array, starts: Array) -> None:
        """‖x_i‖² of sparse rows."""
        for i in range(norms.shape[0]):
            total = 0.0
            for at in range(starts[i], starts[i + 1]):
                total += data[at] * data[at]
            norms[i] = total

    @jit
    def products(W: Array, v: Array, data: Array, indices: Array, starts: Array) -> None:
        """v = X Wᵀ, ``[n, K]``, for sparse rows."""
        K = W.shape[0]
        everyone = np.arange(K)
        for i in range(v.shape[0]):
            if K == 3:
                v[i, 0], v[i, 1], v[i, 2] = three_scores(W, i, data, indices, starts)
            else:
                row_scores(W, everyone, K, v[i], i, data, indices, starts)

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
        z, g, moving, room = np.empty(M), np.empty(M), np.empty(M, np.int64), np.empty(M)
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
                row_update(W, moving, count, g, room, i, data, indices, starts)
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
            row_update(W, everyone, M, ds, d, i, data, indices, starts)

    return SimpleNamespace(
        simplex_look=simplex_look,
        simplex_sweep=simplex_sweep,
        three_sweep=three_sweep,
        products=products,
        squared_norms=squared_norms,
        box_sweep=box_sweep,
        gram_sweep=gram_sweep,
        row_sweep=row_sweep,
    )
