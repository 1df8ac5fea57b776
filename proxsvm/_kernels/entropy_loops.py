"""The exact block step of the simplex under the entropy, for BlockFW; run as ``block_loops.py`` is.

With s = m α − q and g = h m, a block's dual divided by m is, up to a constant,

    ⟨α, v⟩ + entropy(α) − (g/2) ‖α − α₀‖²       so that       g α + log α = v + g α₀ − θ,    Σ_k α_k = 1
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from proxsvm._kernels.row_arrays import row_scores, row_update
from proxsvm._kernels.tensors import Array

__all__ = ["entropy_sweep"]

NEAR = 10.0  # up to this g, Newton's method converges from the softmax in a few steps


def wright_omega(z: float) -> float:
    """The x > 0 with x + log x = z, by Newton's method; from the second step on it rises to x: log is concave.

    >>> wright_omega(1.0)
    1.0
    """
    if z < -40.0:
        return math.exp(z)  # x is below the rounding error of log x
    x = z if z > 1.0 else math.exp(min(z, 0.0))
    for _ in range(20):
        before = x
        x = x * (1.0 + z - math.log(x)) / (1.0 + x)
        if abs(x - before) <= 1e-15 * x:
            break
    return x


def entropy_point(b: Array, g: float, alpha: Array) -> None:
    """Set ``alpha`` to the α with g α + log α = b − θ and Σα = 1, for any g.

    α is ω(b − θ + log g)/g, convex and decreasing in θ. Newton's method rises to θ from max(b) − g, where the largest α
    alone is 1.
    """
    K, log_g = b.shape[0], math.log(g)
    theta = b[0]
    for k in range(1, K):
        theta = max(theta, b[k])
    theta -= g
    for _ in range(100):
        total, slope = 0.0, 0.0
        for k in range(K):
            x = wright_omega(b[k] - theta + log_g)
            alpha[k] = x / g
            total += x / g
            slope += x / g / (1.0 + x)
        rise = (total - 1.0) / slope
        if rise <= 1e-14 * (1.0 + abs(theta)):
            break
        theta += rise
    for k in range(K):
        alpha[k] /= total


def log_softmax(v: Array, logs: Array, alpha: Array) -> None:
    """Set ``alpha`` to softmax(v), and ``logs`` to its logarithm."""
    K, largest, mass = v.shape[0], v[0], 0.0
    for k in range(1, K):
        largest = max(largest, v[k])
    for k in range(K):
        alpha[k] = math.exp(v[k] - largest)
        mass += alpha[k]
    log_mass = largest + math.log(mass)
    for k in range(K):
        logs[k] = v[k] - log_mass
        alpha[k] /= mass


def divergence(alpha: Array, logs: Array) -> float:
    """How much less α's atom is worth than the best one, the softmax: Σ α (log α − log softmax) ≥ 0."""
    found = 0.0
    for k in range(alpha.shape[0]):
        if alpha[k] > 0.0:
            found += alpha[k] * (math.log(alpha[k]) - logs[k])
    return found


def entropy_point_near(b: Array, g: float, logs: Array, alpha: Array) -> None:
    """The same for g ≤ NEAR, from α = softmax(b − g α₀) and its ``logs``: Newton's method in log α and θ.

    The steps shrink quadratically: a last one of 1e-4 leaves a relative error of 1e-8.
    """
    K = b.shape[0]
    for _ in range(30):
        total, weight, force = 0.0, 0.0, 0.0
        for k in range(K):
            share = alpha[k] / (1.0 + g * alpha[k])
            total += alpha[k]
            weight += share
            force += share * (b[k] - g * alpha[k] - logs[k])
        theta = (force + total - 1.0) / weight
        longest = 0.0
        for k in range(K):
            change = (b[k] - g * alpha[k] - logs[k] - theta) / (1.0 + g * alpha[k])
            logs[k] += change
            alpha[k] = math.exp(logs[k])
            longest = max(longest, abs(change))
        if longest <= 1e-4:
            break
    total = 0.0
    for k in range(K):
        total += alpha[k]
    for k in range(K):
        alpha[k] /= total


def entropy_sweep(
    order: Array,
    least: float,
    step: Array,
    h: Array,
    mass: Array,
    alpha: Array,
    W: Array,
    data: Array,
    indices: Array,
    starts: Array,
) -> Any:
    """The exact block step; ``order`` and the returned values are as in ``block_loops.py``."""
    K = W.shape[0]
    everyone = np.arange(K)
    v, new, logs, buffer = np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    front, total = 0, 0.0
    for t in range(order.shape[0]):
        i = order[t]
        m = mass[i]
        g = h[i] * m
        if g <= 0.0:
            continue
        row_scores(W, everyone, K, v, i, data, indices, starts)
        log_softmax(v, logs, new)
        gain = divergence(alpha[i], logs) * m * step[i]
        for k in range(K):
            v[k] += g * alpha[i, k]
        if g <= NEAR:
            entropy_point_near(v, g, logs, new)
        else:
            entropy_point(v, g, new)
        for k in range(K):
            v[k] = -step[i] * m * (new[k] - alpha[i, k])
            alpha[i, k] = new[k]
        row_update(W, everyone, K, v, buffer, i, data, indices, starts)
        total += gain
        if gain > least:
            order[front] = i
            front += 1
    return front, total
