"""Chains and trees by an independent definition, and against pytorch-crf; and the errors of bad input.

What holds for every structure is in ``tests/structures``.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxsvm._scores import inner, one_hot
from proxsvm.losses import ChainCRF, ChainHinge, TreeCRF, TreeHinge
from proxsvm.losses.hulls import paid
from proxsvm.structures.base import add
from tests.cases import expanded


@given(V=st.integers(1, 5), K=st.integers(1, 3), seed=st.integers(0, 10**6), shared=st.booleans(), holes=st.booleans())
def test_the_score_and_the_cost_of_a_tree_are_their_definitions(V, K, seed, shared, holes):
    """⟨φ(y), u⟩ and ⟨cost, φ(ȳ) − φ(y)⟩; a node whose parent is masked belongs to the next one above."""
    torch.manual_seed(seed)
    B = 3
    labels, other, unary = *torch.randint(K, (2, B, V)), torch.randn(B, V, K)
    pairwise = torch.randn(K, K) if shared else torch.randn(B, V, K, K)
    parents = torch.stack([torch.tensor([-1, *(int(torch.randint(-1, v, ())) for v in range(1, V))]) for _ in range(B)])
    mask = torch.rand(B, V) < (0.7 if holes else 2)
    mask[:, 0] = True
    cost = torch.rand(K, K).fill_diagonal_(0)
    loss = TreeHinge(cost, normalize=True)
    (u, y), (_, z) = (expanded(loss, (unary, pairwise), (x, parents, mask)) for x in (labels, other))
    truth, phi = (loss.structure.features(x, u) for x in (y, z))
    score, delta = inner(truth, u), paid(loss._part_costs(y, u), add(phi, truth, -1))
    sure = 50.0 * one_hot(unary, other, K), pairwise  # nothing but ``other`` is likely
    node, edge = TreeCRF().marginals(sure, parents=parents, sizes=mask)
    assert torch.equal(loss.decode(sure, parents=parents, sizes=mask)[mask], other[mask])
    torch.testing.assert_close(node[mask], one_hot(unary, other, K)[mask])
    assert not any(mu[~mask].any() for mu in (node, edge))
    for i in range(B):
        total = 0.0
        for v in mask[i].nonzero()[:, 0].tolist():
            above = int(parents[i, v])
            while above >= 0 and not mask[i, above]:
                above = int(parents[i, above])
            own = pairwise if shared else pairwise[i, v]
            total += float(unary[i, v, labels[i, v]] + (own[labels[i, above], labels[i, v]] if above >= 0 else 0.0))
        assert score[i] == pytest.approx(total, abs=1e-12)
        assert delta[i] == pytest.approx(float(cost[other[i], labels[i]][mask[i]].mean()), abs=1e-12)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_it_is_pytorch_crf(batch_first, masked, reduction):
    torchcrf = pytest.importorskip("torchcrf")
    B, T, K = 5, 7, 4
    theirs = torchcrf.CRF(K, batch_first=batch_first)
    emissions, labels = torch.randn(B, T, K, requires_grad=True), torch.randint(K, (B, T))
    lengths = torch.tensor([7, 1, 4, 6, 2]) if masked else torch.full((B,), T)
    mask = torch.arange(T) < lengths[:, None]
    scores = (emissions, theirs.transitions, theirs.start_transitions, theirs.end_transitions)
    across = (lambda x: x) if batch_first else (lambda x: x.transpose(0, 1))
    expected = -theirs(across(emissions), across(labels), mask=across(mask), reduction=reduction)
    ours = ChainCRF(reduction=reduction)
    for target in ((labels, lengths), (labels, mask)):
        value = ours(scores, target)
        torch.testing.assert_close(value, expected, atol=1e-10, rtol=1e-10)
        for a, b in zip(
            torch.autograd.grad(value.sum(), scores),
            torch.autograd.grad(expected.sum(), scores, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)
    predicted = ours.decode(scores, lengths=mask)
    best = theirs.decode(across(emissions), mask=across(mask))
    assert [row[:length].tolist() for row, length in zip(predicted, lengths, strict=True)] == best
    per_token = -theirs(across(emissions), across(labels), mask=across(mask), reduction="token_mean")
    total = ChainCRF(reduction="sum")(scores, (labels, mask))
    torch.testing.assert_close(total / mask.sum(), per_token, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("kinds", [(ChainCRF, TreeCRF), (ChainHinge, TreeHinge)], ids=["crf", "hinge"])
def test_a_chain_is_a_tree(kinds):
    """With lengths, and with a mask that has holes."""
    B, T, K = 3, 4, 3
    unary, own, labels = torch.randn(B, T, K), torch.randn(B, T, K, K), torch.randint(K, (B, T))
    parents, lengths = torch.arange(-1, T - 1).expand(B, T), torch.tensor([4, 2, 1])
    holes = torch.tensor([[False, True, False, True], [True, False, False, True], [False, False, True, False]])
    chain, tree = (kind(reduction="none") for kind in kinds)
    for mask in (lengths, torch.arange(T) < lengths[:, None], holes):
        expected = tree((unary, own), (labels, parents, mask))
        torch.testing.assert_close(chain((unary, own[:, 1:]), (labels, mask)), expected)
    if kinds[0] is ChainCRF:
        a = chain.marginals((unary, own[:, 1:]), lengths=lengths)
        b = tree.marginals((unary, own), parents=parents, sizes=lengths)
        torch.testing.assert_close(a[0], b[0])
        torch.testing.assert_close(a[1], b[1][:, 1:])


@pytest.mark.parametrize("lengths", [None, [7, 3, 1, 5], [1, 1, 1, 1]])
@pytest.mark.parametrize("criterion", [ChainCRF(), ChainHinge(smooth=True), ChainHinge()], ids=repr)
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_what_all_transitions_have_in_common_does_not_cancel(criterion, lengths, far):
    torch.manual_seed(0)
    unary, pairwise = torch.randn(4, 7, 5).float(), (torch.randn(5, 5) + far).float()
    labels = torch.randint(5, (4, 7))
    target = labels if lengths is None else (labels, torch.tensor(lengths))
    exact = criterion((unary.double(), pairwise.double()), target)
    assert float(criterion((unary, pairwise), target)) == pytest.approx(float(exact), rel=1e-6)
