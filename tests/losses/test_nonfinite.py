"""Scores that are not finite: −inf forbids a label or a transition, the rest skips the step. Masks with holes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxsvm import ProxOptimizer, ProxProblem
from proxsvm.losses import ChainHinge, GridHinge, MultiLabelHinge, TreeHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import MODELS, each_loss, expanded, setting

B, T, K = 3, 4, 3
CHAIN = torch.arange(-1, T - 1).expand(B, T)
STAR = torch.tensor([-1, 0, 0, 0]).expand(B, T)


def draw(seed: int, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with −inf at about ``rate`` of the labels and transitions; one label per sample is always allowed."""
    torch.manual_seed(seed)
    labels = torch.randint(K, (B, 1)).repeat(1, T)
    unary, pairwise = torch.randn(B, T, K), torch.randn(K, K)
    unary = unary.masked_fill(torch.rand(B, T, K) < rate, -torch.inf)
    pairwise = pairwise.masked_fill(torch.rand(K, K) < rate, -torch.inf).fill_diagonal_(0)
    return unary.scatter(2, labels[..., None], torch.randn(B, T, 1)), pairwise, labels


def enumerated(unary: Tensor, pairwise: Tensor, parents: list[int]) -> tuple[Tensor, Tensor]:
    every = torch.tensor(list(itertools.product(range(K), repeat=len(parents))))
    total = torch.zeros(len(every))
    for v, parent in enumerate(parents):
        total = total + unary[v, every[:, v]]
        if parent >= 0:
            total = total + pairwise[v, every[:, parent], every[:, v]]
    return every, total


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), smooth=st.booleans(), star=st.booleans(), rate=st.sampled_from([0.1, 0.4, 0.8]))
def test_what_is_forbidden_is_never_chosen(seed, smooth, star, rate):
    unary, pairwise, labels = (x.requires_grad_(x.is_floating_point()) for x in draw(seed, rate))
    parents = STAR if star else CHAIN
    loss = (TreeHinge if star else ChainHinge)(smooth=smooth, reduction="none")
    target = (labels, parents) if star else labels
    value = loss((unary, pairwise), target)
    gradients = torch.autograd.grad(value.sum(), (unary, pairwise))
    predicted = loss.decode((unary, pairwise), **({"parents": parents} if star else {}))
    for g, u in zip(gradients, (unary, pairwise), strict=True):
        assert g.isfinite().all()
        assert not g[u == -torch.inf].any()
    assert value.isfinite().all()
    for i in range(B):
        every, score = enumerated(unary[i].detach(), pairwise.detach().expand(T, K, K), parents[i].tolist())
        truth = score[every.eq(labels[i]).all(1)]
        if not smooth:
            best = (score + (every != labels[i]).sum(1)).max() - truth
            assert value[i].item() == pytest.approx(float(best), abs=1e-9)
        assert score[every.eq(predicted[i]).all(1)] == pytest.approx(float(score.max()))


@pytest.mark.parametrize("where", ["unary", "pairwise", "start", "end"])
def test_a_forbidden_truth_has_an_infinite_loss(where):
    scores = {
        "unary": torch.randn(B, T, K),
        "pairwise": torch.randn(K, K),
        "start": torch.randn(K),
        "end": torch.randn(K),
    }
    labels = torch.zeros(B, T, dtype=torch.long)
    at = {"unary": (1, 2, 0), "pairwise": (0, 0), "start": (0,), "end": (0,)}[where]
    scores[where][at] = -torch.inf
    each = ChainHinge(reduction="none")(tuple(scores.values()), labels)
    assert each.eq(torch.inf).tolist() == ([False, True, False] if where == "unary" else [True] * B)
    assert each[each < torch.inf].isfinite().all()


def test_independent_labels_may_be_forbidden():
    u, y = torch.tensor([[-torch.inf, 0.5], [-torch.inf, 2.0]], requires_grad=True), torch.tensor([[0, 1], [1, 1]])
    for loss, scores in (
        (MultiLabelHinge(reduction="none"), u),
        (MultiLabelHinge([-1, 0], reduction="none"), (u, torch.zeros(2, 2, 2))),
    ):
        each = loss(scores, y)
        assert each.tolist() == [0.5, torch.inf]
        (gradient,) = torch.autograd.grad(each[0], u)
        assert gradient.tolist() == [[0.0, -1.0], [0.0, 0.0]]
        assert loss.decode(scores).tolist() == [[0, 1], [0, 1]]


def test_the_exact_qp_with_forbidden_transitions():
    w, A = torch.randn(K, 5, requires_grad=True), torch.randn(K, K, requires_grad=True)
    illegal = torch.tensor([[False, True, False], [False, False, True], [False, False, False]])
    unary, pairwise = torch.randn(B, T, 5) @ w.T, A.masked_fill(illegal, -torch.inf)
    target = (torch.tensor([[0, 0, 2, 1]] * B), torch.tensor([4, 2, 3]))
    problem = ProxProblem.from_scores(ChainHinge(), (unary, pairwise), target, [w, A], lr=0.5)
    best = ExactQP().solve(problem)
    assert problem.gap(best) == pytest.approx(0, abs=1e-6)
    assert not best.delta[1][illegal].any()
    for solver in (SingleStepFW(), MultiStepFW(20), CorrectiveFW(20)):
        assert verify(problem, solver).ok


CASES = {
    "chain": (ChainHinge(), (torch.zeros(2, 3, 4), torch.zeros(4, 4)), torch.zeros(2, 3, dtype=torch.long)),
    "chain-smooth": (
        ChainHinge(smooth=True),
        (torch.zeros(2, 3, 4), torch.zeros(4, 4)),
        torch.zeros(2, 3, dtype=torch.long),
    ),
    "tree": (
        TreeHinge(),
        (torch.zeros(2, 3, 4), torch.zeros(4, 4)),
        (torch.zeros(2, 3, dtype=torch.long), torch.tensor([[-1, 0, 0]] * 2)),
    ),
    "grid": (
        GridHinge(),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 3), torch.zeros(2, 2, 4)),
        torch.zeros(2, 3, 4, dtype=torch.long),
    ),
    "grid-project": (
        GridHinge(negative="project"),
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 3), torch.zeros(2, 2, 4)),
        torch.zeros(2, 3, 4, dtype=torch.long),
    ),
    "labels": (MultiLabelHinge(), (torch.zeros(2, 3),), torch.zeros(2, 3, dtype=torch.long)),
    "label tree": (
        MultiLabelHinge([-1, 0, 0]),
        (torch.zeros(2, 3), torch.zeros(3, 2, 2)),
        torch.zeros(2, 3, dtype=torch.long),
    ),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("case", CASES)
def test_scores_that_are_not_finite_skip_the_step(case, bad):
    loss, scores, target = CASES[case]
    for which in range(len(scores)):
        weight = torch.ones(3, requires_grad=True)
        given = [u * weight.sum() for u in scores]
        given[which] = given[which].index_fill(0, torch.tensor([1]), bad)
        optimizer = ProxOptimizer(loss, SingleStepFW(), [weight], lr=0.1)
        value = loss(tuple(given) if len(given) > 1 else given[0], target)
        assert not value.isfinite()
        value.backward()
        optimizer.step()
        assert optimizer.skipped == 1
        assert torch.equal(weight.detach(), torch.ones(3))


def test_everything_at_minus_infinity_skips_the_step():
    for loss, scores, target in (CASES[name] for name in ("chain", "chain-smooth", "tree", "grid")):
        assert not loss(tuple(u - torch.inf for u in scores), target).isfinite()


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), own=st.booleans(), ends=st.booleans(), smooth=st.booleans())
def test_a_mask_leaves_the_chain_of_the_others(seed, own, ends, smooth):
    torch.manual_seed(seed)
    unary, pairwise = torch.randn(B, T, K), torch.randn(B, T - 1, K, K) if own else torch.randn(K, K)
    start, end = (torch.randn(B, K), torch.randn(B, K)) if ends else (None, None)
    labels, mask = torch.randint(K, (B, T)), torch.rand(B, T) < 0.6
    mask[torch.arange(B), torch.randint(T, (B,))] = True
    unary = torch.where(mask[..., None], unary, torch.nan).requires_grad_()
    loss = ChainHinge(smooth=smooth, normalize=True, reduction="none")
    scores = (unary, pairwise, start, end)
    value, predicted = loss(scores, (labels.where(mask, -100), mask)), loss.decode(scores, lengths=mask)
    assert not predicted[~mask].any()
    (gradient,) = torch.autograd.grad(value.sum(), unary)
    assert not gradient[~mask].any()
    for i in range(B):
        at = mask[i].nonzero()[:, 0]
        one = [unary[i, at][None], pairwise[i, at[1:] - 1][None] if own else pairwise]
        one += [start[i], end[i]] if ends else []
        assert value[i].item() == pytest.approx(loss(tuple(one), labels[i, at][None]).item())
        assert torch.equal(predicted[i, at], loss.decode(tuple(one))[0])


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6))
def test_a_mask_leaves_the_tree_of_the_others(seed):
    torch.manual_seed(seed)
    V = 6
    parents = torch.stack([torch.tensor([-1, *(int(torch.randint(v, ())) for v in range(1, V))]) for _ in range(B)])
    unary, pairwise, labels = torch.randn(B, V, K), torch.randn(B, V, K, K), torch.randint(K, (B, V))
    mask = torch.rand(B, V) < 0.6
    mask[torch.arange(B), torch.randint(V, (B,))] = True
    loss = TreeHinge(reduction="none")
    value = loss((unary, pairwise), (labels, parents, mask))
    for i in range(B):
        at = mask[i].nonzero()[:, 0].tolist()
        shorter = []
        for v in at:
            above = int(parents[i, v])
            while above >= 0 and not mask[i, above]:
                above = int(parents[i, above])
            shorter.append(at.index(above) if above >= 0 else -1)
        one = loss((unary[i, at][None], pairwise[i, at][None]), (labels[i, at][None], torch.tensor([shorter])))
        assert value[i].item() == pytest.approx(one.item())


def test_a_masked_chain_is_a_masked_tree():
    unary, own, labels = torch.randn(B, T, K), torch.randn(B, T, K, K), torch.randint(K, (B, T))
    mask = torch.tensor([[False, True, False, True], [True, False, False, True], [False, False, True, False]])
    chain = ChainHinge(reduction="none")((unary, own[:, 1:]), (labels, mask))
    torch.testing.assert_close(chain, TreeHinge(reduction="none")((unary, own), (labels, CHAIN, mask)))


def test_a_cycle_behind_the_mask_is_refused():
    mask, parents = torch.tensor([[True, False, False, True]]), torch.tensor([[-1, 2, 1, 1]])
    with pytest.raises(ValueError, match="cycle"):
        TreeHinge()((torch.zeros(1, 4, 2), torch.zeros(2, 2)), (torch.zeros(1, 4, dtype=torch.long), parents, mask))


def test_a_normalised_cost_keeps_its_digits():
    """In a process whose default is float32, a Δ of 1/3 or 1/6 on float64 scores is that of float64."""
    torch.set_default_dtype(torch.float32)
    u, zero = torch.full((1, 3, 2), 9.0, dtype=torch.double), torch.zeros(2, 2, dtype=torch.double)
    y = torch.zeros(1, 3, dtype=torch.long)
    u[0, 1:, 1], u[0, 0, 0] = 0, 0  # only the first label is wrong
    losses = [
        (ChainHinge(normalize=True), (u, zero), y, 3),
        (TreeHinge(1 - torch.eye(2), normalize=True), (u, zero), (y, torch.tensor([[-1, 0, 1]])), 3),
        (MultiLabelHinge(normalize=True), u[:, :, 1] - 4, y, 3),
        (
            GridHinge(normalize=True),
            (u[:, :, 1:] - torch.tensor([4, 12]), zero[0, 0], zero[0, 0]),
            y[..., None] * y[:, :2],
            6,
        ),
    ]
    for loss, scores, target, size in losses:
        atom = loss.oracle(*expanded(loss, scores, target))
        assert float(atom.offset) == 1 / size


@each_loss
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "solver", [MultiStepFW(3), CorrectiveFW(3), BlockFW(max_passes=3)], ids=lambda s: type(s).__name__
)
def test_every_solver_skips_a_step_without_a_value(solver, bad, loss):
    case = setting(loss, MODELS[0])
    case.x[1] = bad
    before = [w.detach().clone() for w in case.model.parameters()]
    optimizer = ProxOptimizer(case.loss, solver, case.model.parameters(), lr=0.1)
    optimizer.step(case.value)
    assert optimizer.skipped == 1
    for a, b in zip(before, case.model.parameters(), strict=True):
        assert torch.equal(a, b.detach())
