"""Conditional random fields: against enumeration, against pytorch-crf, and certified like every other loss."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from proxsvm import ProxProblem
from proxsvm.losses import ChainCRF, ChainHinge, TreeCRF, TreeHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import check_loss, verify
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


def test_a_chain_is_a_tree():
    B, T, K = 4, 5, 3
    unary, own, labels = torch.randn(B, T, K), torch.randn(B, T, K, K), torch.randint(K, (B, T))
    parents, lengths = torch.arange(-1, T - 1).expand(B, T), torch.tensor([5, 2, 1, 3])
    chain, tree = ChainCRF(), TreeCRF()
    torch.testing.assert_close(
        chain((unary, own[:, 1:]), (labels, lengths)), tree((unary, own), (labels, parents, lengths))
    )
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


def test_they_are_the_largest_of_their_tangent_planes():
    B, T, K = 4, 5, 3
    scores, labels = (torch.randn(B, T, K), torch.randn(K, K)), torch.randint(K, (B, T))
    check_loss(ChainCRF(), scores, (labels, torch.tensor([5, 3, 1, 4])))
    check_loss(TreeCRF(), scores, (labels, torch.tensor([[1, 2, -1, 2, 0]]).expand(B, -1)))


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.1, 1.0, 10.0, 1000.0]))
def test_the_atom_is_its_own_value(seed, scale):
    """⟨s, u⟩ + c, with c the entropy of the marginals, is log Z − score(y)."""
    torch.manual_seed(seed)
    loss, labels = ChainCRF(), torch.randint(3, (4, 5))
    scores, target = expanded(loss, (scale * torch.randn(4, 5, 3), torch.randn(3, 3)), labels)
    atom = loss.oracle(scores, target)
    torch.testing.assert_close(atom.b(scores), atom.value, atol=1e-11 * scale, rtol=1e-10)
    assert (atom.value >= 0).all()


@pytest.mark.parametrize("lengths", [None, [7, 3, 1, 5], [1, 1, 1, 1]])
@pytest.mark.parametrize("criterion", [ChainCRF(), ChainHinge(smooth=True), ChainHinge()], ids=repr)
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_what_all_transitions_have_in_common_does_not_cancel(criterion, lengths, far):
    torch.manual_seed(0)
    unary, pairwise, labels = torch.randn(4, 7, 5), torch.randn(5, 5) + far, torch.randint(5, (4, 7))
    target = labels if lengths is None else (labels, torch.tensor(lengths))
    exact = criterion((unary.double(), pairwise.double()), target)
    assert float(criterion((unary, pairwise), target)) == pytest.approx(float(exact), rel=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_large_scores_do_not_cancel(reduction):
    loss, labels, pairwise = ChainCRF(reduction=reduction), torch.randint(5, (4, 20)), torch.randn(5, 5).float()
    unary = (torch.randn(4, 20, 5) + 1e4 * torch.randn(4, 20, 1)).float()  # every position far from zero
    exact, single = loss((unary.double(), pairwise.double()), labels), loss((unary, pairwise), labels)
    torch.testing.assert_close(single.double(), exact, rtol=1e-6, atol=0)


def crf_problem(lr: float, tree: bool, forbidden: bool = False) -> ProxProblem:
    torch.manual_seed(0)
    B, T, K = 3, 3, 2
    model, A = nn.Linear(4, K), torch.randn(K, K, requires_grad=True)
    labels = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1]])
    pairwise = A.masked_fill(torch.tensor([[False, False], [True, False]]), -torch.inf) if forbidden else A
    lengths = torch.tensor([3, 1, 2])
    target = (labels, torch.tensor([[-1, 0, 0], [-1, 0, 1], [-1, -1, 1]]), lengths) if tree else (labels, lengths)
    scores = (model(torch.randn(B, T, 4)), pairwise)
    loss = TreeCRF() if tree else ChainCRF()
    return ProxProblem.from_scores(loss, scores, target, [*model.parameters(), A], lr=lr, weight_decay=0.1)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("lr", [0.1, 3.0])
def test_every_step_is_certified(tree, lr):
    problem = crf_problem(lr, tree)
    best = ExactQP().solve(problem)
    assert problem.gap(best) == pytest.approx(0, abs=1e-6)
    for solver in (SingleStepFW(), MultiStepFW(20), CorrectiveFW(max_steps=60), BlockFW(tol=1e-6)):
        report = verify(problem, solver)
        assert report.ok, report
    assert verify(problem, CorrectiveFW(max_steps=300, tol=1e-7)).optimal


def test_the_entropy_leaves_out_what_is_forbidden():
    problem = crf_problem(1.0, False, forbidden=True)
    assert problem.gap(ExactQP().solve(problem)) == pytest.approx(0, abs=1e-6)
    assert verify(problem, MultiStepFW(100)).ok


@pytest.mark.parametrize("forbid", ["unary", "pairwise"])
def test_a_forbidden_truth_has_an_infinite_loss(forbid):
    unary, pairwise = torch.randn(2, 3, 3), torch.randn(3, 3)
    if forbid == "unary":
        unary[0, 1, 2] = -torch.inf
    else:
        pairwise[0, 2] = -torch.inf
    value = ChainCRF(reduction="none")((unary, pairwise), torch.tensor([[0, 2, 1], [1, 1, 1]]))
    assert value[0] == torch.inf
    assert value[1].isfinite()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_scores_that_are_not_finite_make_the_loss_so(bad):
    unary, pairwise = torch.zeros(2, 3, 3), torch.zeros(3, 3)
    labels = torch.zeros(2, 3, dtype=torch.long)
    assert not ChainCRF()((unary.index_fill(1, torch.tensor([1]), bad), pairwise), labels).isfinite()
    assert not ChainCRF()((unary, pairwise.index_fill(1, torch.tensor([1]), bad)), labels).isfinite()


def test_gradients_flow_to_shared_scores():
    B, T, K = 3, 4, 3
    leaves = [torch.randn(s, requires_grad=True) for s in ((B, T, K), (K, K), (K,), (K,))]
    labels, lengths = torch.randint(K, (B, T)), torch.tensor([4, 2, 3])
    assert torch.autograd.gradcheck(lambda *u: ChainCRF()(u, (labels, lengths)), leaves)


def test_they_take_what_the_hinges_take():
    scores, labels = (torch.zeros(2, 3, 4), torch.zeros(4, 4)), torch.zeros(2, 3, dtype=torch.long)
    for crf, hinge, target in (
        (ChainCRF(), ChainHinge(), labels + 4),
        (ChainCRF(), ChainHinge(), (labels, torch.tensor([0, 1]))),
        (ChainCRF(), ChainHinge(), None),
        (TreeCRF(), TreeHinge(), labels),
        (TreeCRF(), TreeHinge(), (labels, torch.tensor([[1, 2, 0]] * 2))),
    ):
        errors = []
        for loss in (crf, hinge):
            with pytest.raises((ValueError, TypeError)) as error:
                loss(scores, target)
            errors.append(str(error.value).replace("CRF", "Hinge"))
        assert errors[0] == errors[1]


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
