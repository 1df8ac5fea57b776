"""The inner loops of BlockFW: run by the interpreter as they are, or compiled together with ``row_loops.py`` by
:func:`proxsvm._kernels.jit.compiled`.

Each block is one sample i, with its scores v_i at the current dual point. Moving s_i by ``ds`` moves v_i by −H ds,
with H = p_i J_i H⁻¹ J_iᵀ (the metric's H), and the block's dual is ⟨s, v_i⟩ + c minus the quadratic of H. On features
H is h_i times the identity, h_i = step_i ‖x_i‖².

A sweep on features visits the samples in ``order``. Those that gained more than ``least`` move to its front; it returns
their count and the sum of all gains. Gains are multiplied by ``step``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proxsvm._kernels.row_arrays import add, dot, row_scores, row_update, squared_norms, three_scores, three_update
from proxsvm._kernels.tensors import Array

__all__ = ["atom_sweep", "box_sweep", "gram_sweep", "simplex_gains", "simplex_sweep", "squared_norms", "three_sweep"]

# The simplex. s is stored, not α = s + e_y: where h is large, s is small, and an α near 1 would lose its digits.


def project(z: Array, size: int, own: int) -> None:
    """Replace the first ``size`` entries of z by the nearest s = α − e_own with α in the simplex.

    That is max(z − θ, floor), with a floor of −1 at ``own`` and 0 elsewhere, and θ such that Σs = 0. Where own = −1,
    some other class has s = −1, and Σs = 1. Starting at θ = max(z) − 1, entries below their floor are dropped until
    none is left. The sums are branch-free: branches would be mispredicted.

    Written for one row and a compiler; ``project_on_simplex`` in the hulls takes a batch of rows on any device.
    """
    if size == 2:  # the most common case
        if own >= 0:
            z[1 - own] = min(max((z[1 - own] - z[own]) / 2.0, 0.0), 1.0)
            z[own] = -z[1 - own]
        else:
            z[0] = min(max((z[0] - z[1] + 1.0) / 2.0, 0.0), 1.0)
            z[1] = 1.0 - z[0]
        return
    largest = z[0]
    for j in range(1, size):
        largest = max(largest, z[j])
    for j in range(size):
        z[j] -= largest
    mine = -np.inf
    if own >= 0:
        mine, z[own] = z[own], -np.inf  # summed separately
    theta, kept = -1.0, size + 1.0
    while True:
        total, count = 0.0, 0.0
        for j in range(size):
            total += z[j] if z[j] > theta else 0.0
            count += 1.0 if z[j] > theta else 0.0
        if mine + 1.0 > theta:
            total += mine
            count += 1.0
        else:
            total -= 1.0
        if count >= kept:
            break
        theta, kept = total / count, count
    for j in range(size):
        z[j] = max(z[j] - theta, 0.0)
    if own >= 0:
        z[own] = max(mine - theta, -1.0)


def simplex_gains(
    v: Array, target: Array, cost: Array, s: Array, live: Array, lives: Array, gain: Array, worth: Array
) -> None:
    """At the scores v, ``[n, K]``: what each sample can ``gain``, its ``worth`` c + ½⟨s, v⟩, and which of its classes
    are ``live``: those with α > 0, and those worth no less than the least of these."""
    n, K = v.shape
    for i in range(n):
        y = target[i]
        most, least, moved, c = -np.inf, np.inf, 0.0, cost[i, y]
        for k in range(K):
            value, weight = v[i, k] + cost[i, k], s[i, k]
            most = max(most, value)
            if weight > (-1.0 if k == y else 0.0):
                least = min(least, value)
            moved += weight * value
            c += weight * cost[i, k]
        # max() keeps the compiler from reordering the sum, which would lose the digits of a small s.
        gain[i] = max(most - (v[i, y] + cost[i, y]), 0.0) - moved
        worth[i] = (moved + cost[i, y] + c) / 2
        count = 0
        for k in range(K):
            if s[i, k] > (-1.0 if k == y else 0.0) or v[i, k] + cost[i, k] >= least:
                live[i, count] = k
                count += 1
        lives[i] = count


def simplex_sweep(
    order: Array,
    least: float,
    step: Array,
    h: Array,
    target: Array,
    cost: Array,
    s: Array,
    live: Array,
    lives: Array,
    W: Array,
    data: Array,
    indices: Array,
    starts: Array,
) -> Any:
    """The exact block step of the simplex, α ← Π(α + (v + cost)/h), on each sample's live classes. A class left at its
    floor is no longer live until the next evaluation."""
    K = W.shape[0]
    z, g, moving, buffer = np.empty(K), np.empty(K), np.empty(K, np.int64), np.empty(K)
    front, total = 0, 0.0
    for t in range(order.shape[0]):
        i = order[t]
        y, ks, size, over_h = target[i], live[i], lives[i], 1.0 / h[i]
        if size < 2:
            continue
        row_scores(W, ks, size, z, i, data, indices, starts)
        most, moved, mine, own = -np.inf, 0.0, 0.0, -1
        for j in range(size):
            k = ks[j]
            value, weight = z[j] + cost[i, k], s[i, k]
            most = max(most, value)
            moved += weight * value
            z[j] = weight + value * over_h
            if k == y:
                mine, own = value, j
        project(z, size, own)
        count, left = 0, 0
        for j in range(size):
            k = ks[j]
            change = z[j] - s[i, k]
            if change != 0.0:
                s[i, k] = z[j]
                moving[count], g[count] = k, -step[i] * change
                count += 1
            if z[j] > 0.0 or (j == own and z[j] > -1.0):
                ks[left] = k
                left += 1
        lives[i] = left
        if count > 0:
            row_update(W, moving, count, g, buffer, i, data, indices, starts)
        gain = ((max(most - mine, 0.0) if own >= 0 else most) - moved) * step[i]
        total += gain
        if gain > least:
            order[front] = i
            front += 1
    return front, total


def three_sweep(
    order: Array,
    least: float,
    step: Array,
    h: Array,
    target: Array,
    cost: Array,
    s: Array,
    W: Array,
    data: Array,
    indices: Array,
    starts: Array,
) -> Any:
    """``simplex_sweep`` for three classes on sparse rows: all in registers, with no class left out.

    θ is the largest of those given by the seven possible supports.
    """
    front, total = 0, 0.0
    for t in range(order.shape[0]):
        i = order[t]
        a, b, c, y = s[i, 0], s[i, 1], s[i, 2], target[i]
        e, f, g = 1.0 if y == 0 else 0.0, 1.0 if y == 1 else 0.0, 1.0 if y == 2 else 0.0
        u, v, w = three_scores(W, i, data, indices, starts)
        u, v, w = u + cost[i, 0], v + cost[i, 1], w + cost[i, 2]
        most = max(u, max(v, w))
        gain = (max(most - (e * u + f * v + g * w), 0.0) - (a * u + b * v + c * w)) * step[i]
        total += gain
        if gain > least:
            order[front] = i
            front += 1
        over_h = 1.0 / h[i]
        u, v, w = a + (u - most) * over_h, b + (v - most) * over_h, c + (w - most) * over_h
        one = max(u if y == 0 else u - 1.0, max(v if y == 1 else v - 1.0, w if y == 2 else w - 1.0))
        two = max(u + v - g, max(u + w - f, v + w - e)) / 2.0
        theta = max(one, max(two, (u + v + w) / 3.0))
        u, v, w = max(u - theta, -e), max(v - theta, -f), max(w - theta, -g)
        if u != a or v != b or w != c:
            s[i, 0], s[i, 1], s[i, 2] = u, v, w
            three_update(W, step[i] * (a - u), step[i] * (b - v), step[i] * (c - w), i, data, indices, starts)
    return front, total


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
    """The exact coordinate step of the box."""
    M = W.shape[0]
    everyone = np.arange(M)
    z, g, moving, buffer = np.empty(M), np.empty(M), np.empty(M, np.int64), np.empty(M)
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
            if new != old:
                s[i, k] = new
                moving[count], g[count] = k, -step[i] * (new - old)
                count += 1
        if count > 0:
            row_update(W, moving, count, g, buffer, i, data, indices, starts)
        gain *= step[i]
        total += gain
        if gain > least:
            order[front] = i
            front += 1
    return front, total


# Any hull, through the atoms that its oracle has found: A is [n, T, M], their offsets c and weights a are [n, T].


def pairwise(
    H: Array, A: Array, c: Array, a: Array, count: int, v: Array, ds: Array, d: Array, Hd: Array, rounds: int
) -> None:
    """Pairwise steps over the hull of the atoms (A_t, c_t) with weights a, H symmetric.

    Updates ``a`` and ``v``; leaves the change in s in ``ds``. ``d`` and ``Hd`` are buffers.
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
        if most - least <= 1e-15 * (abs(most) + abs(least)) or up == down:
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


def gram_sweep(
    order: Array, rounds: int, G: Array, p: Array, A: Array, c: Array, a: Array, counts: Array, v: Array
) -> None:
    """Block steps on the Gram matrix: ``G`` is [n·M, n·M], ``v`` the flat scores."""
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


def atom_sweep(
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
    """Block steps on the features: H = h_i times the identity."""
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
