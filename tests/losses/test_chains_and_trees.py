"""Chains and trees by an independent definition, against pytorch-crf, certified; and the errors of bad input.

What holds for every structure is in ``tests/structures``.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from proxsvm import ProxProblem
from proxsvm.losses import ChainCRF, ChainHinge, TreeCRF, TreeHinge
from proxsvm.solvers import BlockFW, CorrectiveFW
from proxsvm.verification import verify


def enumerated(unary: Tensor, pairwise: Tensor, parents: list[int]) -> tuple[Tensor, Tensor]:
    """Every labelling of one tree and its score: unary [V, K], pairwise [V, K, K]."""
    V, K = unary.shape
    every = torch.tensor(list(itertools.product(range(K), repeat=V)))
    total = torch.zeros(len(every))
    for v, parent in enumerate(parents):
        total = total + unary[v, every[:, v]]
        if parent >= 0:
            total = total + pairwise[v, every[:, parent], every[:, v]]
    return every, total


@settings(max_examples=150)
@given(
    V=st.integers(1, 4),
    K=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    shared=st.booleans(),
    forbidden=st.booleans(),
    holes=st.booleans(),
)
def test_a_tree_is_its_enumeration(V, K, seed, shared, forbidden, holes):
    torch.manual_seed(seed)
    B = 3
    labels, unary = torch.randint(K, (B, V)), torch.randn(B, V, K)
    pairwise = torch.randn(K, K) if shared else torch.randn(B, V, K, K)
    if forbidden:
        unary = unary.masked_fill(torch.rand(B, V, K) < 0.3, -torch.inf)
        pairwise = pairwise.masked_fill(torch.rand(pairwise.shape) < 0.2, -torch.inf)
    parents = torch.stack([torch.tensor([-1, *(int(torch.randint(-1, v, ())) for v in range(1, V))]) for _ in range(B)])
    mask = torch.rand(B, V) < (0.7 if holes else 2)
    mask[:, 0] = True
    loss = TreeCRF(reduction="none")
    scores = (unary.requires_grad_(), pairwise.requires_grad_())
    value = loss(scores, (labels, parents, mask))
    node, edge = loss.marginals(scores, parents=parents, sizes=mask)
    cost = torch.rand(K, K).fill_diagonal_(0)
    hinge = TreeHinge(cost, normalize=True, reduction="none")(scores, (labels, parents, mask))
    predicted = loss.decode(scores, parents=parents, sizes=mask)
    for i in range(B):
        at = mask[i].nonzero()[:, 0].tolist()
        above = []
        for v in at:
            p = int(parents[i, v])
            while p >= 0 and not mask[i, p]:
                p = int(parents[i, p])
            above.append(at.index(p) if p >= 0 else -1)
        own = (pairwise.expand(V, K, K) if shared else pairwise[i]).detach()
        every, score = enumerated(unary[i, at].detach(), own[at], above)
        if score.max() == -torch.inf:
            continue  # nothing is allowed: the loss is not finite, and the rest has no meaning
        truth = score[every.eq(labels[i, at]).all(1)]
        assert value[i].item() == pytest.approx(float(score.logsumexp(0) - truth), abs=1e-10)
        best = (score + cost[every, labels[i, at]].mean(1)).max() - truth
        assert hinge[i].item() == pytest.approx(float(best), abs=1e-10)
        assert score[every.eq(predicted[i, at]).all(1)] == pytest.approx(float(score.max()))
        p = score.softmax(0)
        for t, v in enumerate(at):
            torch.testing.assert_close(node[i, v], torch.zeros(K).index_add_(0, every[:, t], p))
            pairs = torch.zeros(K * K)
            if above[t] >= 0:
                pairs.index_add_(0, every[:, above[t]] * K + every[:, t], p)
            torch.testing.assert_close(edge[i, v].flatten(), pairs)
    assert not node[~mask].any()
    assert not edge[~mask].any()
    if value.isfinite().all():
        assert all(g.isfinite().all() for g in torch.autograd.grad(value.sum(), scores))


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
    unary, pairwise, labels = torch.randn(4, 7, 5), torch.randn(5, 5) + far, torch.randint(5, (4, 7))
    target = labels if lengths is None else (labels, torch.tensor(lengths))
    exact = criterion((unary.double(), pairwise.double()), target)
    assert float(criterion((unary, pairwise), target)) == pytest.approx(float(exact), rel=1e-6)


def chain_problem(loss: ChainHinge, lr: float, seed: int = 0) -> ProxProblem:
    torch.manual_seed(seed)
    B, T, K = 4, 4, 3
    model, A = nn.Linear(5, K), torch.randn(K, K, requires_grad=True)
    target = (torch.randint(K, (B, T)), torch.tensor([4, 1, 3, 2]))
    params = [*model.parameters(), A]
    return ProxProblem.from_scores(loss, (model(torch.randn(B, T, 5)), A), target, params, lr=lr, weight_decay=0.1)


@pytest.mark.parametrize("lr", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(
    "solver", [CorrectiveFW(max_steps=300, tol=1e-6), BlockFW(tol=1e-6)], ids=lambda s: type(s).__name__
)
def test_corrective_and_block_solvers_reach_the_exact_value(solver, lr):
    report = verify(chain_problem(ChainHinge(), lr), solver)
    assert report.optimal, report


U, P, Y = torch.zeros(2, 3, 4), torch.zeros(4, 4), torch.zeros(2, 3, dtype=torch.long)
BAD_CHAINS = {
    "label outside K": ((U, P), Y + 4, "label outside"),
    "negative label": ((U, P), Y - 1, "label outside"),
    "length of zero": ((U, P), (Y, torch.tensor([0, 3])), "length outside"),
    "length too long": ((U, P), (Y, torch.tensor([4, 3])), "length outside"),
    "lengths of another batch": ((U, P), (Y, torch.tensor([3])), "expected \\(2,\\) integers"),
    "mask of another shape": ((U, P), (Y, torch.ones(2, 4, dtype=torch.bool)), "got a mask of shape"),
    "empty mask": ((U, P), (Y, torch.zeros(2, 3, dtype=torch.bool)), "empty sample"),
    "labels of another shape": ((U, P), Y[:, :2], "got labels of shape"),
    "float labels": ((U, P), Y.double(), "neither integer nor bool"),
    "pairwise of another K": ((U, P[:3, :3]), Y, "pairwise scores of shape"),
    "no pairwise": (U, Y, "expected a tuple"),
    "unary without time": ((U[0], P), Y, "unary scores of"),
    "start of another K": ((U, P, torch.zeros(3), None), Y, "start scores"),
    "too many": ((U, P, None, None, None), Y, "got 5 scores"),
}


@pytest.mark.parametrize("loss", [ChainHinge(), ChainCRF()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("case", BAD_CHAINS)
def test_bad_chains_are_refused(case, loss):
    scores, target, message = BAD_CHAINS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        loss(scores, target)


BAD_TREES = {
    "a cycle": (Y, torch.tensor([[-1, 2, 1]] * 2), "cycle"),
    "its own parent": (Y, torch.tensor([[-1, 1, 0]] * 2), "cycle"),
    "a cycle behind the mask": (
        Y,
        torch.tensor([[1, 2, 1]] * 2),
        torch.tensor([[True, False, False]] * 2),
        "cycle",
    ),
    "no node": (Y, torch.tensor([[-1, 3, 0]] * 2), "not a node"),
    "a parent in the padding": (Y, torch.tensor([[-1, 2, 0]] * 2), torch.tensor([2, 2]), "not a node"),
    "parents of another shape": (Y, torch.tensor([-1, 0, 0]), "parents of shape"),
    "no parents": (Y, "not \\(labels, parents\\)"),
}


@pytest.mark.parametrize("loss", [TreeHinge(), TreeCRF()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("case", BAD_TREES)
def test_bad_trees_are_refused(case, loss):
    *target, message = BAD_TREES[case]
    with pytest.raises((ValueError, TypeError), match=message):
        loss((U, P), tuple(target) if len(target) > 1 else target[0])


@pytest.mark.parametrize("cost", [torch.zeros(2, 3), torch.eye(3), -torch.ones(3, 3)])
def test_bad_costs_are_refused(cost):
    with pytest.raises(ValueError, match="cost"):
        ChainHinge(cost)
