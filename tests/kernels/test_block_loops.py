"""The loops of BlockFW against plain formulas."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxsvm._kernels import block_loops as loops
from proxsvm.losses.hulls import project_on_simplex


@given(size=st.integers(2, 9), seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e6), listed=st.booleans())
def test_the_two_projections_on_the_simplex_agree(size, seed, scale, listed):
    """The kernel's, of one row less e_own, and the hulls', of a batch."""
    rng = np.random.default_rng(seed)
    z, own = rng.standard_normal(size) * scale, int(rng.integers(size)) if listed else -1
    if seed % 3 == 0:
        z[0] = z[-1]  # a tie
    e = np.eye(size)[own] if listed else np.zeros(size)
    expected = project_on_simplex(torch.tensor(z + e)[None])[0].numpy() - e
    loops.project(z, size, own)
    np.testing.assert_allclose(z, expected, rtol=0, atol=1e-14 * max(1.0, scale))


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("scale", [1e-10, 1e-20, 1e-100])
def test_a_small_s_keeps_its_digits(size, scale):
    """Where no floor is near, s − mean(s): relative to the size of s, not to 1."""
    z = np.random.default_rng(size).uniform(1.0, 1.1, size)
    z[0] = 0.0  # the target's own, which pays for the others
    expected = (z - z.mean()) * scale
    z *= scale
    loops.project(z, size, 0)
    np.testing.assert_allclose(z, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("K", [2, 3, 4, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_products_of_sparse_rows_equal_those_of_dense_ones(K, size):
    rng, size = np.random.default_rng(0), min(size, K)
    x = rng.standard_normal((3, 6)) * (rng.random((3, 6)) < 0.5)
    indices, starts = np.nonzero(x)[1].astype(np.int32), np.r_[0, np.cumsum((x != 0).sum(1))].astype(np.int32)
    ks = np.sort(rng.permutation(K)[:size]).astype(np.int32)
    z, g, buffer, dense = np.empty(K), rng.standard_normal(size), np.empty(K), rng.standard_normal((K, 6))
    W = np.asfortranarray(dense)
    for i in range(3):
        loops.row_scores(W, ks, size, z, i, x[x != 0], indices, starts)
        np.testing.assert_allclose(z[:size], dense[ks] @ x[i], atol=1e-14)
        loops.row_update(W, ks, size, g, buffer, i, x[x != 0], indices, starts)
        dense[ks] += np.outer(g, x[i])
        np.testing.assert_allclose(W, dense, atol=1e-14)


@given(K=st.integers(1, 12), seed=st.integers(0, 10_000), scale=st.sampled_from([1e-6, 1.0, 10.0, 1e6]))
def test_the_root_of_a_box_solves_its_equation(K, seed, scale):
    z = np.random.default_rng(seed).standard_normal(K) * scale
    z[seed % K] = -np.inf  # the target's own
    t = loops.box_total(z)
    assert np.clip(z - t, 0, 1).sum() == pytest.approx(t, rel=1e-12, abs=1e-18)


@given(
    K=st.integers(1, 30),
    seed=st.integers(0, 10_000),
    g=st.floats(-25, 15).map(np.exp),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1000.0]),
    flat=st.sampled_from([1e-3, 0.05, 1.0]),  # α₀ is near a corner, or inside
)
def test_the_point_under_the_entropy_solves_its_equations(K, seed, g, scale, flat):
    """g α + log α + θ = v + g α₀ for one θ, and Σα = 1."""
    rng = np.random.default_rng(seed)
    v, before = rng.standard_normal(K) * scale, rng.dirichlet(np.full(K, flat))
    logs, alpha = np.empty(K), np.empty(K)
    loops.log_softmax(v, logs, alpha)
    np.testing.assert_allclose(alpha, np.exp(logs), rtol=1e-11)
    b = v + g * before
    loops.entropy_point(b, g, logs, alpha)
    assert alpha.sum() == pytest.approx(1, abs=1e-14)
    kept = alpha > 1e-300
    theta = (b - g * alpha)[kept] - np.log(alpha[kept])
    assert np.ptp(theta) <= 1e-6 * (1 + g)
