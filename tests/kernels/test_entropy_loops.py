"""The block step under the entropy against its equations, interpreted and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxsvm._kernels.entropy_loops import NEAR
from proxsvm.solvers._block.entropy import _kernels

each_way = pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])


@each_way
@given(z=st.floats(-600, 1e8))
def test_omega_solves_its_equation(compiled, z):
    x = _kernels(compiled).wright_omega(z)
    assert x > 0
    assert x + np.log(x) == pytest.approx(z, rel=1e-13, abs=1e-13)


@each_way
@given(
    K=st.integers(1, 8), seed=st.integers(0, 10_000), log_g=st.floats(-25, 15), scale=st.sampled_from([0.1, 1.0, 30.0])
)
def test_the_point_solves_its_equations(compiled, K, seed, log_g, scale):
    """g α + log α + θ = v + g α₀ for one θ, and Σα = 1."""
    rng, g = np.random.default_rng(seed), float(np.exp(log_g))
    b, alpha = rng.standard_normal(K) * scale + g * rng.dirichlet(np.ones(K)), np.empty(K)
    _kernels(compiled).entropy_point(b, g, alpha)
    assert alpha.sum() == pytest.approx(1, abs=1e-14)
    theta = (b - g * alpha - np.log(alpha))[alpha > 1e-300]
    assert np.ptp(theta) <= 1e-9 * (1 + scale + g)


@each_way
@given(
    K=st.integers(1, 30),
    seed=st.integers(0, 10_000),
    g=st.floats(-25, np.log(NEAR)).map(np.exp),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1000.0]),
    flat=st.sampled_from([1e-3, 0.05, 1.0]),  # α₀ is near a corner, or inside
)
def test_near_the_softmax_it_is_the_same_point(compiled, K, seed, g, scale, flat):
    rng, found = np.random.default_rng(seed), _kernels(compiled)
    v, before = rng.standard_normal(K) * scale, rng.dirichlet(np.full(K, flat))
    logs, alpha, expected = np.empty(K), np.empty(K), np.empty(K)
    found.log_softmax(v, logs, alpha)
    np.testing.assert_allclose(alpha, np.exp(logs), rtol=1e-11)
    found.entropy_point_near(v + g * before, g, logs, alpha)
    found.entropy_point(v + g * before, g, expected)
    np.testing.assert_allclose(alpha, expected, rtol=0, atol=1e-8)
    assert alpha.sum() == pytest.approx(1, abs=1e-14)


@each_way
def test_the_divergence_is_what_the_best_atom_is_worth_more(compiled):
    rng, found = np.random.default_rng(0), _kernels(compiled)
    v, alpha = rng.standard_normal(5), np.array([0.5, 0.0, 0.2, 0.3, 0.0])
    logs, best = np.empty(5), np.empty(5)
    found.log_softmax(v, logs, best)
    entropy = -sum(a * np.log(a) for a in alpha if a > 0)
    assert found.divergence(alpha, logs) == pytest.approx(np.log(np.exp(v).sum()) - alpha @ v - entropy)
    assert found.divergence(best, logs) == pytest.approx(0, abs=1e-15)
