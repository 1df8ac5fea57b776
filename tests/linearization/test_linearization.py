"""J from one retained graph: adjoint, equal to finite differences, and with no trace of a second forward pass."""

import copy

import pytest
import torch

from proxsvm.linearization.features import as_features
from proxsvm.linearization.graph import Linearization
from tests.cases import MODELS, each_model


def linearised(model):
    torch.manual_seed(0)
    network, x = model.build().train(), model.inputs(5)
    state = torch.get_rng_state()
    scores = network(x)
    return network, x, state, Linearization(scores, list(network.parameters()))


@each_model
def test_vjp_and_jvp_are_adjoint(model):
    """Also where the first backward pass is recorded, and serves the jvp, too."""
    network, _, _, line = linearised(model)
    *_, recorded = linearised(model)
    s = torch.randn_like(line.scores)
    d = [torch.randn_like(p) for p in network.parameters()]
    for pulled, pushed in ((line.vjp(s), line.jvp(d)), (recorded.vjp(s, reuse=True), recorded.jvp(d))):
        left = sum((a * b).sum() for a, b in zip(pulled, d, strict=True))
        assert left == pytest.approx(float((s * pushed).sum()), rel=1e-10)
        assert not any(x.requires_grad for x in pulled)


@each_model
def test_jvp_matches_finite_differences(model):
    network, x, state, line = linearised(model)
    d = [torch.randn_like(p) for p in network.parameters()]
    moved, step = [], 1e-6
    for sign in (1, -1):
        other = copy.deepcopy(network)
        with torch.no_grad():
            for p, change in zip(other.parameters(), d, strict=True):
                p += sign * step * change
        torch.set_rng_state(state)  # the same dropout mask
        moved.append(other(x).detach())
    torch.testing.assert_close(line.jvp(d), (moved[0] - moved[1]) / (2 * step), atol=1e-5, rtol=1e-5)


@each_model
def test_nothing_but_the_one_forward_pass_is_left(model):
    torch.manual_seed(0)
    network, x = model.build().train(), model.inputs(5)
    twin = copy.deepcopy(network)
    state = torch.get_rng_state()
    twin(x)
    after_one_forward = torch.get_rng_state()
    torch.set_rng_state(state)
    line = Linearization(network(x), list(network.parameters()))
    for _ in range(3):
        line.vjp(torch.randn(5, 4, generator=torch.Generator()))
        line.jvp([torch.ones_like(p) for p in network.parameters()])
    assert torch.equal(torch.get_rng_state(), after_one_forward)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), twin.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(network.buffers(), twin.buffers(), strict=True))
    assert all(p.grad is None for p in network.parameters())


@each_model
def test_the_jacobian_is_the_matrix_of_both(model):
    network, _, _, line = linearised(model)
    J = line.jacobian(chunk=7)
    d = [torch.randn_like(p) for p in network.parameters()]
    s = torch.randn_like(line.scores)
    torch.testing.assert_close(J @ torch.cat([x.reshape(-1) for x in d]), line.jvp(d).reshape(-1))
    torch.testing.assert_close(J.T @ s.reshape(-1), torch.cat([g.reshape(-1) for g in line.vjp(s)]))


def test_an_unused_parameter_has_a_zero_derivative():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    line = Linearization(used * 2, [used, unused])
    assert torch.equal(line.vjp(torch.ones(2))[1], torch.zeros(3))
    assert torch.equal(line.jvp([torch.ones(2), torch.ones(3)]), torch.full((2,), 2.0))


def test_scores_that_are_a_tuple():
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    constant = torch.zeros(1)
    line = Linearization((w[:1] ** 2, w.prod()[None], constant), [w])
    s = (torch.ones(1), torch.ones(1), torch.ones(1))
    assert torch.equal(line.vjp(s)[0], torch.tensor([4.0 + 3.0, 2.0]))
    assert [float(x) for x in line.jvp([torch.tensor([1.0, 1.0])])] == [4.0, 5.0, 0.0]


def test_fused_attention_is_named_in_the_error():
    attention = torch.nn.functional.scaled_dot_product_attention
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        scores = attention(q, q, q)
    line = Linearization(scores, [q])
    line.vjp(torch.ones_like(scores))  # one derivative works
    with pytest.raises(RuntimeError, match=r"SDPBackend.MATH"):
        line.jvp([torch.ones_like(q)])


def test_a_freed_graph_is_named_in_the_error():
    model = MODELS[1].build()
    scores = model(MODELS[1].inputs(2))
    line = Linearization(scores, list(model.parameters()))
    scores.sum().backward()
    with pytest.raises(RuntimeError, match="do not call backward"):
        line.vjp(torch.ones_like(scores))


@pytest.mark.parametrize("name", ["indices", "indptr"])
def test_features_keep_their_own_indices(name):
    """Compiled loops read them without bounds checks: a matrix that is changed later must not reach them."""
    sparse = pytest.importorskip("scipy.sparse").random(6, 5, 0.5, "csr", random_state=0)
    X, dense = as_features(sparse), torch.as_tensor(sparse.toarray())
    getattr(sparse, name)[:] = 10**6
    torch.testing.assert_close(X.to_dense(), dense)
