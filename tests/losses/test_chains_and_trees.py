"""Chains and trees by an independent definition, against pytorch-crf, certified; and the errors of bad input.

What holds for every structure is in ``tests/structures``.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from proxsvm import ProxProblem, losses
from proxsvm.losses import Atom, ChainCRF, ChainHinge, TreeCRF, TreeHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import expanded


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


def draw_values(seed: int, ties: bool, *shape: int) -> Tensor:
    """Gaussian scores, or small integers, which tie."""
    torch.manual_seed(seed)
    return torch.randint(-1, 2, shape).to(torch.get_default_dtype()) if ties else torch.randn(shape)


@settings(max_examples=150)
@given(
    B=st.integers(1, 6),
    V=st.integers(1, 5),
    K=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    ties=st.booleans(),
    own=st.booleans(),
    ends=st.booleans(),
    normalize=st.booleans(),
    weighted=st.booleans(),
)
def test_a_chain_is_its_enumeration(B, V, K, seed, ties, own, ends, normalize, weighted):
    unary = draw_values(seed, ties, B, V, K)
    pairwise = draw_values(seed + 1, ties, *((B, V - 1, K, K) if own else (K, K)))
    start, end = (draw_values(seed + 2, ties, K), draw_values(seed + 3, ties, B, K)) if ends else (None, None)
    labels, lengths = torch.randint(K, (B, V)), torch.randint(1, V + 1, (B,))
    cost = torch.rand(K, K).fill_diagonal_(0) if weighted else 1 - torch.eye(K)
    loss = ChainHinge(cost if weighted else None, normalize=normalize, reduction="none")
    scores = (unary, pairwise, start, end) if ends else (unary, pairwise)
    value = loss(scores, (labels, lengths))
    predicted = loss.decode(scores, lengths=lengths)
    augmented = loss.decode(scores, (labels, lengths))
    node, _ = ChainCRF().marginals(scores, lengths=lengths)
    for i, T in enumerate(lengths.tolist()):
        u = unary[i, :T].clone()
        if ends:
            u[0] += start
            u[-1] += end[i]
        p = torch.zeros(T, K, K)
        p[1:] = pairwise[i, : T - 1] if own else pairwise
        every, score = enumerated(u, p, list(range(-1, T - 1)))
        y = labels[i, :T]
        delta = cost[every, y].sum(1) / (T if normalize else 1)
        truth = score[every.eq(y).all(1)]
        assert value[i] == pytest.approx(float((score + delta).max() - truth), abs=1e-9)
        at = every.eq(predicted[i, :T]).all(1)
        assert score[at] == pytest.approx(float(score.max()), abs=1e-9)
        at = every.eq(augmented[i, :T]).all(1)
        assert (score + delta)[at] == pytest.approx(float((score + delta).max()), abs=1e-9)
        assert not predicted[i, T:].any()
        probability = score.softmax(0)
        for t in range(T):
            expected = torch.zeros(K).index_add_(0, every[:, t], probability)
            torch.testing.assert_close(node[i, t], expected)


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
    hinge = TreeHinge(reduction="none")(scores, (labels, parents, mask))
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
        best = (score + (every != labels[i, at]).sum(1)).max() - truth
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


@given(seed=st.integers(0, 10**6), more=st.integers(1, 4), smooth=st.booleans(), normalize=st.booleans())
def test_padding_never_changes_a_result(seed, more, smooth, normalize):
    torch.manual_seed(seed)
    B, T, K = 3, 4, 3
    lengths, labels = torch.randint(1, T + 1, (B,)), torch.randint(K, (B, T))
    results = []
    for extra in (0, more):
        unary = torch.full((B, T + extra, K), torch.nan)  # not even NaN on padding may matter
        own = torch.full((B, T + extra - 1, K, K), torch.nan)
        torch.manual_seed(seed + 1)
        for i, length in enumerate(lengths.tolist()):
            unary[i, :length], own[i, : length - 1] = torch.randn(length, K), torch.randn(length - 1, K, K)
        unary.requires_grad_()
        own.requires_grad_()
        padded = torch.cat([labels, torch.full((B, extra), -100)], 1)
        loss = ChainHinge(smooth=smooth, normalize=normalize)
        value = loss((unary, own), (padded, lengths))
        g_unary, g_own = torch.autograd.grad(value, (unary, own))
        assert not g_unary[~(torch.arange(T + extra) < lengths[:, None])].any()
        predicted = loss.decode((unary, own), lengths=lengths)
        results.append((value, g_unary[:, :T], g_own[:, : T - 1], predicted[:, :T]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


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


def test_the_hinges_smoothed_atom_is_the_gradient_of_the_likelihood():
    scores, labels = (torch.randn(3, 4, 3), torch.randn(3, 3)), torch.randint(3, (3, 4))
    hinge, crf = ChainHinge(smooth=True), ChainCRF()
    soft = hinge.smoothed(*expanded(hinge, scores, labels))
    for a, b in zip(soft.s, crf.oracle(*expanded(crf, scores, labels)).s, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("lengths", [None, [7, 3, 1, 5], [1, 1, 1, 1]])
@pytest.mark.parametrize("criterion", [ChainCRF(), ChainHinge(smooth=True), ChainHinge()], ids=repr)
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_what_all_transitions_have_in_common_does_not_cancel(criterion, lengths, far):
    torch.manual_seed(0)
    unary, pairwise, labels = torch.randn(4, 7, 5), torch.randn(5, 5) + far, torch.randint(5, (4, 7))
    target = labels if lengths is None else (labels, torch.tensor(lengths))
    exact = criterion((unary.double(), pairwise.double()), target)
    assert float(criterion((unary, pairwise), target)) == pytest.approx(float(exact), rel=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("large", ["pairwise", "unary", "both"])
@pytest.mark.parametrize("tree", [False, True])
def test_large_scores_keep_their_digits_in_float32(scale, large, tree):
    """The value, against float64, to 1e-6 of the scores; the gradients are marginals, and stay so."""
    torch.manual_seed(0)
    B, T, K = 6, 12, 4
    unary = (scale if large != "pairwise" else 1.0) * torch.randn(B, T, K)
    pairwise = (scale if large != "unary" else 1.0) * torch.randn(B, T if tree else T - 1, K, K)
    unary, pairwise = unary.float(), pairwise.float()
    loss, labels = (TreeCRF if tree else ChainCRF)(reduction="none"), torch.randint(K, (B, T))
    parents = torch.tensor([-1, *(t // 2 for t in range(T - 1))]).expand(B, T)
    best = loss.decode((unary, pairwise), **({"parents": parents} if tree else {}))
    for y in (labels, best):  # a large loss, and one that is small against the scores
        target = (y, parents) if tree else y
        found = []
        for dtype in (torch.float32, torch.float64):
            scores = tuple(u.to(dtype).requires_grad_() for u in (unary, pairwise))
            value = loss(scores, target)
            found.append([value.detach(), *torch.autograd.grad(value.sum(), scores)])
        (value, *gradients), (exact, *expected) = found
        assert (value.double() - exact).abs().max() <= 1e-6 * (exact.abs().max() + T * scale)
        for a, b in zip(gradients, expected, strict=True):
            assert a.isfinite().all()
            torch.testing.assert_close(a.double(), b, rtol=0, atol=1e-3 * scale**0.5)


class Listed(ChainHinge):
    """The same chain by its list of labellings instead of the flow polytope."""

    def hull(self, scores: Any, target: Any) -> losses.Listed:
        B, V, K = scores[0].shape
        truth, delta = self.structure.features(target, scores), self._part_costs(target, scores)[0]
        atoms = []
        for z in torch.tensor(list(itertools.product(range(K), repeat=V))):
            phi = self.structure.features(target._replace(labels=z.expand(B, V)), scores)
            s = tuple(a - b for a, b in zip(phi, truth, strict=True))
            atoms.append(Atom(s, (s[0] * delta).sum((1, 2))))
        return losses.Listed(atoms)


def chain_problem(loss: ChainHinge, lr: float, seed: int = 0) -> ProxProblem:
    torch.manual_seed(seed)
    B, T, K = 4, 4, 3
    model, A = nn.Linear(5, K), torch.randn(K, K, requires_grad=True)
    target = (torch.randint(K, (B, T)), torch.tensor([4, 1, 3, 2]))
    params = [*model.parameters(), A]
    return ProxProblem.from_scores(loss, (model(torch.randn(B, T, 5)), A), target, params, lr=lr, weight_decay=0.1)


@pytest.mark.parametrize("lr", [0.1, 1.0, 20.0])
def test_the_flow_polytope_is_the_hull_of_the_labellings(lr):
    compact, listed = chain_problem(ChainHinge(), lr), chain_problem(Listed(), lr)
    a, b = ExactQP().solve(compact), ExactQP().solve(listed)
    assert compact.dual(a) == pytest.approx(float(listed.dual(b)), rel=1e-7, abs=1e-8)
    for x, y in zip(compact.displacement(a), listed.displacement(b), strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("lr", [0.05, 0.3])  # at 0.3 it takes hundreds of steps
def test_solvers_stay_below_the_exact_value_and_reach_it(lr, smooth):
    problem = chain_problem(ChainHinge(smooth=smooth), lr)
    for solver in (SingleStepFW(), MultiStepFW(10)):
        assert verify(problem, solver).ok
    report = verify(problem, MultiStepFW(max_steps=20_000, tol=1e-6))
    assert report.optimal, report
    assert report.dual == pytest.approx(report.exact, rel=1e-6, abs=1e-6)


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
