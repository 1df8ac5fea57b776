"""A tiny quadratic program over the simplex, solved by an active-set method."""

from __future__ import annotations

import numpy as np

from proxsvm._kernels.tensors import Array


def simplex_qp(Q: Array, b: Array, start: Array | None = None) -> Array:
    """argmax over a ≥ 0, Σa = 1 of ⟨b, a⟩ − ½ ⟨a, Q a⟩, for Q positive semi-definite.

    From ``start``, or the first vertex, it adds the entry with the largest slope to the support, solves on the support
    exactly, and drops entries that reach zero on the way. The objective never decreases. For a few dozen entries.

    >>> simplex_qp(np.eye(2), np.array([1.0, 0.5])).round(6)
    array([0.75, 0.25])
    """
    size = len(b)
    a = np.eye(1, size)[0] if start is None else start.copy()
    support = np.flatnonzero(a).tolist()
    solved = len(support) == 1  # whether a is the best on its support
    # The equations of the optimum on a support, [[Q, 1], [1, 0]], with a small ridge where Q is singular.
    system = np.ones((size + 1, size + 1))
    system[:size, :size] = Q
    system.flat[:: size + 2] += 1e-13 * float(Q.trace()) / size + 1e-200
    system[size, size] = 0.0
    right = np.append(b, 1.0)
    little = 1e-13 * max(float(np.abs(Q).max()), float(np.abs(b).max()), 1e-300)
    value = -np.inf
    for _ in range(10 * size):
        slope = b - Q @ a
        free, before, value = int(slope.argmax()), value, float((b + slope) @ a) / 2
        if slope[free] - slope @ a <= little or (free in support and solved) or value <= before:
            return a  # the value no longer rises, because Q has few correct digits
        if free not in support:
            support.append(free)
        while True:
            at = np.array([*support, size])
            best = np.linalg.solve(system[at[:, None], at], right[at])[:-1]
            if best.min() >= 0.0:
                a[support] = best
                break
            here = a[support]
            falling = np.flatnonzero(best < 0)
            reach = here[falling] / (here[falling] - best[falling])  # how far each can go before it reaches zero
            out = int(falling[reach.argmin()])
            a[support] = here + float(reach.min()) * (best - here)
            a[support[out]] = 0.0
            del support[out]
        a, solved = np.maximum(a, 0.0), True
        a /= a.sum()
    return a
