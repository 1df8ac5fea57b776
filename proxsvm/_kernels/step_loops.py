"""The two loops of a step over flat arrays, compiled by numba: imported when a step first needs them.

Which vectors a step has is known before it is compiled: ``products`` and ``update`` build a loop for each setting,
and numba drops the branches that its constants rule out. With x = a g + b q, s the scale of the raw gradient g and

    v' = β₂ v + (1 − β₂) (s g)²        M = √(correction · v') + eps   (1 without a diagonal)
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from proxsvm._kernels.jit import njit
from proxsvm._kernels.tensors import Array as A

# Division by 0 is infinity, as in NumPy; other threads run meanwhile.
OPTIONS = {"error_model": "numpy", "nogil": True}
BLOCK = 1 << 12  # elements summed in their own precision, before they are added in float64


@functools.cache
def products(diagonal: bool, memory: bool, decay: bool, auto: bool) -> Any:
    """⟨x, M⁻¹x⟩, ⟨w, x⟩, ⟨w, M w⟩, ⟨q, M⁻¹x⟩, ⟨q, w⟩, ⟨s g, M⁻¹ s g⟩, ⟨u, M u⟩, into out[k]."""
    with_w = decay or auto

    def loop(w: A, g: A, v: A, q: A, moved: A, _: A, c: A, begin: int, end: int, out: A, k: int) -> None:
        a, b, s, beta2, rest, correction, eps = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        zero = c[0] - c[0]
        for i in range(7):
            out[k, i] = 0.0
        while begin < end:
            stop = min(begin + BLOCK, end)  # slices start at 0: otherwise numba checks every index for its sign
            w_, g_, v_, q_, moved_ = w[begin:stop], g[begin:stop], v[begin:stop], q[begin:stop], moved[begin:stop]
            xx, wx, ww, qx, qw, gg, uu = zero, zero, zero, zero, zero, zero, zero
            for j in range(stop - begin):
                h = s * g_[j]
                x = a * h + b * q_[j] if memory else a * h
                y, m = x, zero + 1
                if diagonal:
                    m = np.sqrt(correction * (beta2 * v_[j] + rest * h * h)) + eps
                    y = x / m
                xx += x * y
                if with_w:
                    wx += w_[j] * x
                    ww += w_[j] * w_[j] * m
                if memory:
                    qx += q_[j] * y
                    if decay:
                        qw += q_[j] * w_[j]
                if auto:
                    uu += moved_[j] * moved_[j] * m
                    gg += h * h / m
            out[k, 0] += xx
            out[k, 1] += wx
            out[k, 2] += ww
            out[k, 3] += qx
            out[k, 4] += qw
            out[k, 5] += gg
            out[k, 6] += uu
            begin = stop

    return njit(loop, **OPTIONS)


@functools.cache
def update(diagonal: bool, memory: bool, momentum: bool, auto: bool, average: bool) -> Any:
    """The update in place, with t = push · M⁻¹x:

        z ← μ z − t − lift · w        w ← w − drop · w − t + μ z        q ← μ q + (1 − μ) s g        v ← v'
        u ← u + w' − w        w̄ ← w̄ − rate · (w̄ − w)

    ``z`` is q where there is memory: a step has one of them. A chunk that is ``done`` is not updated twice.
    """

    def loop(w: A, g: A, v: A, z: A, moved: A, mean: A, c: A, begin: int, end: int, done: A, k: int) -> None:
        if done[k]:
            return
        a, b, s, beta2, rest, correction, eps = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        push, lift, keep, mu, fresh, rate = c[7], c[8], c[9], c[10], c[11], c[12]
        while begin < end:
            stop = min(begin + BLOCK, end) if average else end  # the average reads w while the block is in the cache
            w_, g_, v_, z_ = w[begin:stop], g[begin:stop], v[begin:stop], z[begin:stop]
            moved_, mean_ = moved[begin:stop], mean[begin:stop]
            for j in range(stop - begin):
                h = s * g_[j]
                t = push * (a * h + b * z_[j]) if memory else push * (a * h)
                if diagonal:
                    moment = beta2 * v_[j] + rest * h * h
                    v_[j] = moment
                    t = t / (np.sqrt(correction * moment) + eps)
                new = keep * w_[j] - t
                if momentum:
                    velocity = mu * z_[j] - t - lift * w_[j]
                    z_[j] = velocity
                    new += mu * velocity
                if memory:
                    z_[j] = mu * z_[j] + fresh * h
                if auto:
                    moved_[j] += new - w_[j]
                w_[j] = new
            if average:
                for j in range(stop - begin):
                    mean_[j] -= rate * (mean_[j] - w_[j])
            begin = stop
        done[k] = True

    return njit(loop, **OPTIONS)
