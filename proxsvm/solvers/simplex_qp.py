"""A tiny quadratic programme over the simplex, by an active-set method."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


def simplex_qp(Q: Array, b: Array, start: int = 0) -> Array:
    """argmax over a ≥ 0, Σa = 1 of ⟨b, a⟩ − ½ ⟨a, Q a⟩, for Q positive semi-definite.

    From the vertex ``start`` it adds the entry of the largest slope to the support, solves on the support exactly, and
    drops what reaches zero on the way. The objective never decreases. Made for a few dozen entries.

    >>> simplex_qp(np.eye(2), np.array([1.0, 0.5])).round(6)
    array([0.75, 0.25])
    """
    size = len(b)
    a = np.zeros(size)
    a[start] = 1.0
    support = [start]
    # The equations of the optimum on a support, [[Q, 1], [1, 0]], with a little ridge where Q is singular.
    system = np.ones((size + 1, size + 1))
    system[:size, :size] = Q
    system.flat[:: size + 2] += 1e-13 * float(Q.trace()) / size + 1e-200
    system[size, size] = 0.0
    right = np.append(b, 1.0)
    scale = max(float(np.abs(Q).max()), float(np.abs(b).max()), 1e-300)
    for _ in range(10 * size):
        slope = b - Q @ a
        free = int(slope.argmax())
        if free in support or slope[free] - slope @ a <= 1e-13 * scale:
            return a
        support.append(free)
        while True:
            at = np.array([*support, size])
            best = np.linalg.solve(system[at[:, None], at], right[at])[:-1]
            here, step, out = a[support], 1.0, -1
            for j, (old, new) in enumerate(zip(here.tolist(), best.tolist(), strict=True)):
                if new < 0 and old <= step * (old - new):  # it reaches zero on the way, and before the others
                    step, out = old / (old - new), j
            a[support] = here + step * (best - here)
            if out < 0:
                break
            a[support[out]] = 0.0
            del support[out]
        a = np.maximum(a, 0.0)
        a /= a.sum()
    return a
