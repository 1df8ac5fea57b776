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
    """Set ``alpha`` to the α with g α + log α = b − θ and Σα = 1.

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


def divergence(alpha: Array, v: Array) -> float:
    """How much less α's atom is worth than the best one at v: the divergence Σ α (log α − log softmax(v)) ≥ 0."""
    largest = v[0]
    for k in range(1, v.shape[0]):
        largest = max(largest, v[k])
    mass, found = 0.0, 0.0
    for k in range(v.shape[0]):
        mass += math.exp(v[k] - largest)
        if alpha[k] > 0.0:
            found += alpha[k] * (math.log(alpha[k]) - (v[k] - largest))
    return found + math.log(mass)


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
    v, new, buffer = np.empty(K), np.empty(K), np.empty(K)
    front, total = 0, 0.0
    for t in range(order.shape[0]):
        i = order[t]
        m = mass[i]
        g = h[i] * m
        if g <= 0.0:
            continue
        row_scores(W, everyone, K, v, i, data, indices, starts)
        gain = divergence(alpha[i], v) * m * step[i]
        for k in range(K):
            v[k] += g * alpha[i, k]
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
