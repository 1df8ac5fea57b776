"""The inner loops of :class:`~proxsvm.solvers.BlockFW`. All stand in one module, so that numba's cache is right.

Each block is one sample i, with its scores v_i at the current dual point. Moving s_i by ``ds`` moves v_i by −H ds,
with H = p_i J_i H⁻¹ J_iᵀ (the metric's H), and the block's dual is ⟨s, v_i⟩ + c minus the quadratic of H. On features
H is h_i times the identity, h_i = step_i ‖x_i‖².

A sweep on features visits the samples in ``order``, and returns what each could gain when it was visited, times
``step``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from proxsvm._kernels.jit import njit
from proxsvm._kernels.tensors import Array


class LinearModel(NamedTuple):
    """What a block step moves, W = w_t + d, and what it reads: a step of s_i by ds moves W by −step_i ds x_iᵀ.

    ``W``: [M, F]; ``step``: p_i times the scalar of H⁻¹, and ``h``: step_i ‖x_i‖², the curvature of each block, [n].
    Dense features are ``data``, ``[n, F]``; sparse ones are CSR, where data has one dimension, and their W is stored
    feature by feature, so that the classes of a feature are contiguous.
    """

    W: Array
    step: Array
    h: Array
    data: Array
    indices: Array
    starts: Array


# A row x_i of the features: z_j = ⟨W_k, x_i⟩ and W_k += g_j x_i for the classes k = ks[j], j < size. On sparse rows
# a loop over many classes of a feature is vectorised, and faster over all of them than over some.


@njit
def row_scores(W: Array, ks: Array, size: int, z: Array, i: int, data: Array, indices: Array, starts: Array) -> None:
    """z_j = ⟨W_k, x_i⟩."""
    if data.ndim == 2:  # numba resolves this at compile time
        row = data[i]
        for j in range(size):  # written out: a call of dot() takes a third longer
            w = W[ks[j]]
            total = w.dtype.type(0)
            for f in range(row.shape[0]):
                total += w[f] * row[f]
            z[j] = total
        return
    begin, end = starts[i], starts[i + 1]
    if size > 4 and 8 * size >= W.shape[0]:
        z[:] = 0.0
        for at in range(begin, end):
            f, x = indices[at], data[at]
            for k in range(W.shape[0]):
                z[k] += W[k, f] * x
        for j in range(size):  # ks ascends, so nothing is overwritten before it is read
            z[j] = z[ks[j]]
        return
    for j in range(size):
        k, total = ks[j], W.dtype.type(0)
        for at in range(begin, end):
            total += W[k, indices[at]] * data[at]
        z[j] = total


@njit
def row_update(
    W: Array, ks: Array, size: int, g: Array, buffer: Array, i: int, data: Array, indices: Array, starts: Array
) -> None:
    """W_k += g_j x_i; ``buffer`` has one entry per class."""
    if data.ndim == 2:
        row = data[i]
        for j in range(size):
            w = W[ks[j]]
            scale = w.dtype.type(g[j])
            for f in range(row.shape[0]):
                w[f] += scale * row[f]
        return
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
    for j in range(size):
        k, a = ks[j], W.dtype.type(g[j])
        for at in range(begin, end):
            W[k, indices[at]] += a * data[at]


@njit
def sparse_products(W: Array, v: Array, data: Array, indices: Array, starts: Array) -> None:
    """v = X Wᵀ, ``[n, K]``."""
    K = W.shape[0]
    everyone = np.arange(K)
    for i in range(v.shape[0]):
        row_scores(W, everyone, K, v[i], i, data, indices, starts)


# The simplex. s is stored, not α = s + e_y: where h is large, s is small, and an α near 1 would lose its digits.


@njit
def project(z: Array, size: int, own: int) -> None:
    """Replace the first ``size`` entries of z by the nearest s = α − e_own with α in the simplex.

    That is max(z − θ, floor), with a floor of −1 at ``own`` and 0 elsewhere, and θ such that Σs = 0. Where own = −1,
    some other class has s = −1, and Σs = 1. Starting at θ = max(z) − 1, entries below their floor are dropped until
    none is left. The sums are branch-free: branches would be mispredicted.

    Of one row; ``project_on_simplex`` in the hulls takes a batch of rows on any device.
    """
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


@njit
def simplex_gains(v: Array, hull: Any, s: Array, gain: Array, worth: Array) -> None:
    """At the scores v, ``[n, K]``: what each sample can ``gain``, its ``worth`` c + ½⟨s, v⟩, and which of its classes
    are ``live``: those with α > 0, and those worth no less than the least of these."""
    (n, K), (target, cost, live, lives) = v.shape, hull
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


@njit
def simplex_sweep(order: Array, model: LinearModel, hull: Any, s: Array) -> Array:
    """The exact block step of the simplex: α ← Π(α + (v + cost)/h) on each sample's live classes. A class left at its
    floor is no longer live until the next evaluation."""
    (W, step, h, data, indices, starts), (target, cost, live, lives) = model, hull
    K = W.shape[0]
    z, g, moving, buffer = np.empty(K), np.empty(K), np.empty(K, np.int64), np.empty(K)
    gains = np.zeros(len(order))
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
        gains[t] = ((max(most - mine, 0.0) if own >= 0 else most) - moved) * step[i]
    return gains


# The hinge of Weston and Watkins: s = α − σ e_y with 0 ≤ α ≤ 1 and σ = Σ_j α_j.


@njit
def rival_gains(v: Array, hull: Any, s: Array, gain: Array, worth: Array) -> None:
    """At the scores v, ``[n, K]``: what each sample can ``gain``, and its ``worth`` c + ½⟨s, v⟩."""
    target, cost = hull
    for i in range(v.shape[0]):
        y = target[i]
        gain[i] = worth[i] = 0.0
        for k in range(v.shape[1]):
            if k != y:
                above, c = v[i, k] - v[i, y], cost[i, k]
                gain[i] += max(above + c, 0.0) - s[i, k] * (above + c)
                worth[i] += s[i, k] * (above / 2.0 + c)


@njit
def box_total(z: Array) -> float:
    """The root t of Σ_k clip(z_k − t, 0, 1) = t; by Newton's method, which the bisection keeps from cycling.

    >>> box_total(np.array([0.5, 3.0, -1.0]))
    1.0
    """
    low, high, t = 0.0, float(z.shape[0]), 0.0
    for _ in range(100):
        total, free = 0.0, 1.0
        for k in range(z.shape[0]):
            total += min(max(z[k] - t, 0.0), 1.0)
            free += 1.0 if 0.0 < z[k] - t < 1.0 else 0.0
        if total >= t:
            low = t
        if total <= t:
            high = t
        after = t + (total - t) / free
        if abs(after - t) <= 1e-15 * t:
            break
        t = after if low < after < high else (low + high) / 2.0
    return t


@njit
def rival_sweep(order: Array, model: LinearModel, hull: Any, s: Array) -> Array:
    """The exact block step: α ← clip(z − σ, 0, 1) with z = α + σ + (the margins)/h, before the step, and its own σ."""
    (W, step, h, data, indices, starts), (target, cost) = model, hull
    K = W.shape[0]
    everyone = np.arange(K)
    z, g, buffer = np.empty(K), np.empty(K), np.empty(K)
    gains = np.zeros(len(order))
    for t in range(order.shape[0]):
        i = order[t]
        y, gain = target[i], 0.0
        row_scores(W, everyone, K, z, i, data, indices, starts)
        own, sigma = z[y], -s[i, y]
        for k in range(K):
            margin = z[k] - own + cost[i, k]
            if k != y:
                gain += max(margin, 0.0) - s[i, k] * margin
            z[k] = margin / h[i] + s[i, k] + sigma
        z[y] = -np.inf
        sigma = box_total(z)
        total = 0.0
        for k in range(K):
            if k != y:
                new = min(max(z[k] - sigma, 0.0), 1.0)
                g[k] = -step[i] * (new - s[i, k])
                s[i, k] = new
                total += new
        g[y] = step[i] * (total + s[i, y])
        s[i, y] = -total
        if g.any():
            row_update(W, everyone, K, g, buffer, i, data, indices, starts)
        gains[t] = gain * step[i]
    return gains


# The box.


@njit
def box_best(residual: float, low: float, high: float, band: float, ridge: float) -> float:
    """The s in [low, high] with the largest s · residual − band |s| − (ridge/2) s²."""
    size = abs(residual) - band
    if size <= 0.0:
        return 0.0
    size = size / ridge if ridge > 0.0 else np.inf
    return min(max(size if residual > 0.0 else -size, low), high)


@njit
def box_gains(v: Array, hull: Any, s: Array, gain: Array, worth: Array) -> None:
    """At the scores v, ``[n, M]``: what each sample can ``gain``, and its ``worth`` c + ½⟨s, v⟩."""
    low, high, center, band, ridge = hull
    for i in range(v.shape[0]):
        gain[i] = worth[i] = 0.0
        for k in range(v.shape[1]):
            residual, old = v[i, k] - center[i, k], s[i, k]
            best = box_best(residual, low[i, k], high[i, k], band, ridge)
            gain[i] += (best - old) * (residual - ridge / 2.0 * (best + old)) - band * (abs(best) - abs(old))
            worth[i] += old * ((residual - center[i, k]) / 2.0 - ridge / 2.0 * old) - band * abs(old)


@njit
def box_sweep(order: Array, model: LinearModel, hull: Any, s: Array) -> Array:
    """The exact coordinate step of the box ``hull``: low, high, center, band and ridge."""
    (W, step, h, data, indices, starts), (low, high, center, band, ridge) = model, hull
    M = W.shape[0]
    everyone = np.arange(M)
    z, g, moving, buffer = np.empty(M), np.empty(M), np.empty(M, np.int64), np.empty(M)
    gains = np.zeros(len(order))
    for t in range(order.shape[0]):
        i = order[t]
        count, gain = 0, 0.0
        row_scores(W, everyone, M, z, i, data, indices, starts)
        for k in range(M):
            residual, old, down, up = z[k] - center[i, k], s[i, k], low[i, k], high[i, k]
            best = box_best(residual, down, up, band, ridge)
            gain += (best - old) * (residual - ridge / 2.0 * (best + old)) - band * (abs(best) - abs(old))
            new = box_best(residual + h[i] * old, down, up, band, ridge + h[i])
            if new != old:
                s[i, k] = new
                moving[count], g[count] = k, -step[i] * (new - old)
                count += 1
        if count > 0:
            row_update(W, moving, count, g, buffer, i, data, indices, starts)
        gains[t] = gain * step[i]
    return gains


# The simplex under the entropy. With s = m α − q and g = h m, a block's dual divided by m is, up to a constant,
#
#     ⟨α, v⟩ + entropy(α) − (g/2) ‖α − α₀‖²       so that       g α + log α = v + g α₀ − θ,    Σ_k α_k = 1


@njit
def log_softmax(v: Array, logs: Array, alpha: Array) -> None:
    """Set ``alpha`` to softmax(v), and ``logs`` to its logarithm."""
    largest, mass = v.max(), 0.0
    for k in range(v.shape[0]):
        alpha[k] = math.exp(v[k] - largest)
        mass += alpha[k]
    logs[:] = v - (largest + math.log(mass))
    alpha /= mass


@njit
def entropy_point(b: Array, g: float, logs: Array, alpha: Array) -> None:
    """Set ``alpha`` to the α with g α + log α = b − θ, from α = softmax(b − g α₀) and its ``logs``.

    Newton's method in log α ≤ 0 and θ; the steps shrink quadratically: a last one of 1e-4 leaves a relative error of
    1e-8.
    """
    K = b.shape[0]
    for _ in range(50):  # 5 where g is 3, 24 where it is 3e6
        total, weight, force = 0.0, 0.0, 0.0
        for k in range(K):
            share = alpha[k] / (1.0 + g * alpha[k])
            total += alpha[k]
            weight += share
            force += share * (b[k] - g * alpha[k] - logs[k])
        theta = (force + total - 1.0) / weight
        longest = 0.0
        for k in range(K):
            before = logs[k]
            logs[k] = min(before + (b[k] - g * alpha[k] - before - theta) / (1.0 + g * alpha[k]), 0.0)
            alpha[k] = math.exp(logs[k])
            longest = max(longest, abs(logs[k] - before))
        if longest <= 1e-4:
            break
    alpha /= alpha.sum()


@njit
def entropy_sweep(order: Array, model: LinearModel, hull: Any, alpha: Array) -> Array:
    """The exact block step of the simplex under the entropy; ``hull``: m."""
    (W, step, h, data, indices, starts), (mass,) = model, hull
    K = W.shape[0]
    everyone = np.arange(K)
    v, new, logs, buffer = np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    gains = np.zeros(len(order))
    for t in range(order.shape[0]):
        i = order[t]
        m, g, gain = mass[i], h[i] * mass[i], 0.0
        if g <= 0.0:
            continue
        row_scores(W, everyone, K, v, i, data, indices, starts)
        log_softmax(v, logs, new)
        for k in range(K):
            if alpha[i, k] > 0.0:  # α's atom is worth Σ α (log α − log softmax) less than the best one, the softmax
                gain += alpha[i, k] * (math.log(alpha[i, k]) - logs[k])
            v[k] += g * alpha[i, k]
        entropy_point(v, g, logs, new)
        for k in range(K):
            v[k] = -step[i] * m * (new[k] - alpha[i, k])
            alpha[i, k] = new[k]
        row_update(W, everyone, K, v, buffer, i, data, indices, starts)
        gains[t] = gain * m * step[i]
    return gains


# Any hull, through the atoms that its oracle has found: A is [n, T, M], their offsets c and weights a are [n, T].


@njit
def dot(a: Array, b: Array) -> Any:
    """⟨a, b⟩."""
    total = a.dtype.type(0)
    for f in range(a.shape[0]):
        total += a[f] * b[f]
    return total


@njit
def add(w: Array, scale: Any, x: Array) -> None:
    """w += scale · x."""
    factor = w.dtype.type(scale)
    for f in range(w.shape[0]):
        w[f] += factor * x[f]


@njit
def pairwise(H: Array, A: Array, c: Array, a: Array, v: Array, ds: Array, d: Array, Hd: Array, rounds: int) -> None:
    """Pairwise steps over the hull of the atoms (A_t, c_t) with weights a, H symmetric.

    Updates ``a`` and ``v``; leaves the change in s in ``ds``. ``d`` and ``Hd`` are buffers.
    """
    M = v.shape[0]
    ds[:] = 0.0
    for _ in range(rounds):
        up, down, most, least = 0, 0, -np.inf, np.inf
        for t in range(len(c)):
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


@njit
def gram_sweep(order: Array, rounds: int, G: Array, p: Array, A: Array, c: Array, a: Array, v: Array) -> None:
    """Block steps on the Gram matrix: ``G`` is [n·M, n·M], ``v`` the flat scores."""
    M = A.shape[2]
    ds, d, Hd, v_i = np.empty(M), np.empty(M), np.empty(M), np.empty(M)
    H = np.empty((M, M))
    for t in range(order.shape[0]):
        i = order[t]
        if p[i] <= 0:
            continue
        at = i * M
        v_i[:] = v[at : at + M]
        for j in range(M):
            H[j] = p[i] * G[at + j, at : at + M]
        pairwise(H, A[i], c[i], a[i], v_i, ds, d, Hd, rounds)
        for j in range(M):
            if ds[j] != 0.0:
                add(v, -p[i] * ds[j], G[at + j])


@njit
def atom_sweep(order: Array, rounds: int, model: LinearModel, A: Array, c: Array, a: Array) -> None:
    """Block steps on the features: H = h_i times the identity."""
    W, step, h, data, indices, starts = model
    M = W.shape[0]
    everyone = np.arange(M)
    ds, d, Hd, v = np.empty(M), np.empty(M), np.empty(M), np.empty(M)
    H = np.zeros((M, M))
    for t in range(order.shape[0]):
        i = order[t]
        row_scores(W, everyone, M, v, i, data, indices, starts)
        for k in range(M):
            H[k, k] = h[i]
        pairwise(H, A[i], c[i], a[i], v, ds, d, Hd, rounds)
        for k in range(M):
            ds[k] *= -step[i]
        row_update(W, everyone, M, ds, d, i, data, indices, starts)
