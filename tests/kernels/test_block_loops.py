"""The loops of BlockFW against plain formulas, interpreted and compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxsvm.losses.hulls import project_on_simplex
from proxsvm.solvers._block.base import kernels

each_way = pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])


@each_way
@given(size=st.integers(2, 9), seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e6), listed=st.booleans())
def test_the_two_projections_on_the_simplex_agree(compiled, size, seed, scale, listed):
    """The kernel's, of one row less e_own, and the hulls', of a batch."""
    rng = np.random.default_rng(seed)
    z, own = rng.standard_normal(size) * scale, int(rng.integers(size)) if listed else -1
    if seed % 3 == 0:
        z[0] = z[-1]  # a tie
    e = np.eye(size)[own] if listed else np.zeros(size)
    expected = project_on_simplex(torch.tensor(z + e)[None])[0].numpy() - e
    kernels(compiled).project(z, size, own)
    np.testing.assert_allclose(z, expected, rtol=0, atol=1e-14 * max(1.0, scale))


@each_way
@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("scale", [1e-10, 1e-20, 1e-100])
def test_a_small_s_keeps_its_digits(compiled, size, scale):
    """Where no floor is near, s − mean(s): relative to the size of s, not to 1."""
    z = np.random.default_rng(size).uniform(1.0, 1.1, size)
    z[0] = 0.0  # the target's own, which pays for the others
    expected = (z - z.mean()) * scale
    z *= scale
    kernels(compiled).project(z, size, 0)
    np.testing.assert_allclose(z, expected, rtol=1e-12, atol=0)


@each_way
@pytest.mark.parametrize("h", [1e-3, 1.0, 1e20])
def test_three_classes_in_registers_equal_the_general_sweep(compiled, h):
    loops, rng = kernels(compiled), np.random.default_rng(0)
    n, F = 40, 5
    rows = rng.standard_normal(n * F), np.tile(np.arange(F, dtype=np.int32), n), np.arange(0, n * F + 1, F)
    data = rows[0].reshape(n, F)
    step = h / (data**2).sum(1)
    target, cost = rng.integers(3, size=n), np.ones((n, 3))
    cost[np.arange(n), target] = 0.0
    results = []
    for name in ("three_sweep", "simplex_sweep"):
        s, W = np.zeros((n, 3)), np.zeros((3, F), order="F")
        everyone = (np.tile(np.arange(3, dtype=np.int32), (n, 1)), np.full(n, 3, np.int32))
        live = () if name == "three_sweep" else everyone
        for _ in range(3):
            for array, full in zip(live, (np.tile(np.arange(3), (n, 1)), 3), strict=False):
                array[:] = full
            sweep, order = getattr(loops, name), np.arange(n)
            _, total = sweep(order, 0.0, step, np.full(n, h), target, cost, s, *live, W, *rows)
        assert np.abs(s.sum(1)).max() <= 1e-15 * np.abs(s).max()
        np.testing.assert_allclose(W, -(step[:, None] * s).T @ data, rtol=0, atol=1e-12 * np.abs(W).max())
        results.append((s, W, total))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())
