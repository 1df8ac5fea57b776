"""Chains, trees and grids by independent definitions, and against pytorch-crf; scores that are not finite.

What holds for every structure is in ``tests/structures``.
"""

import importlib.util
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxsvm import ProxProblem
from proxsvm._scores import inner, one_hot
from proxsvm.losses import ChainCRF, ChainHinge, GridHinge, MultiLabelHinge, TreeCRF, TreeHinge
from proxsvm.losses.hulls import paid
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.structures import maxflow_cut, scipy_cut
from proxsvm.structures.base import add
from proxsvm.verification import verify
from tests.cases import MODELS, each_loss, expanded, setting, vector
from tests.cases import PaperOptimizer as ProxOptimizer


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


# Scores that are not finite: −inf forbids a label or a transition, the rest skips the step.

B, T, K = 3, 4, 3


@pytest.mark.parametrize("where", ["unary", "pairwise", "start", "end"])
def test_a_forbidden_truth_has_an_infinite_loss(where):
    shapes = {"unary": (B, T, K), "pairwise": (K, K), "start": (K,), "end": (K,)}
    scores, labels = {name: torch.randn(shape) for name, shape in shapes.items()}, torch.zeros(B, T, dtype=torch.long)
    at = {"unary": (1, 2, 0), "pairwise": (0, 0), "start": (0,), "end": (0,)}[where]
    scores[where][at] = -torch.inf
    each = ChainHinge(reduction="none")(tuple(scores.values()), labels)
    assert each.eq(torch.inf).tolist() == ([False, True, False] if where == "unary" else [True] * B)
    assert each[each < torch.inf].isfinite().all()


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


def test_a_normalised_cost_keeps_its_digits():
    """In a process whose default is float32, a Δ of 1/3 or 1/6 on float64 scores is that of float64."""
    torch.set_default_dtype(torch.float32)
    u, zero = torch.full((1, 3, 2), 9.0, dtype=torch.double), torch.zeros(2, 2, dtype=torch.double)
    y = torch.zeros(1, 3, dtype=torch.long)
    u[0, 1:, 1], u[0, 0, 0] = 0, 0  # only the first label is wrong
    grid, pixels = (u[:, :, 1:] - torch.tensor([4, 12]), zero[0, 0], zero[0, 0]), y[..., None] * y[:, :2]
    for loss, scores, target, size in (
        (ChainHinge(normalize=True), (u, zero), y, 3),
        (TreeHinge(1 - torch.eye(2), normalize=True), (u, zero), (y, torch.tensor([[-1, 0, 1]])), 3),
        (MultiLabelHinge(normalize=True), u[:, :, 1] - 4, y, 3),
        (GridHinge(normalize=True), grid, pixels, 6),
    ):
        atom = loss.oracle(*expanded(loss, scores, target))
        assert float(atom.offset) == 1 / size


@each_loss
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("solver", [MultiStepFW(3), CorrectiveFW(3), BlockFW(max_passes=3)])
def test_every_solver_skips_a_step_without_a_value(solver, bad, loss):
    case = setting(loss, MODELS[0])
    case.x[1] = bad
    before = vector(case.model)
    optimizer = ProxOptimizer(case.loss, solver, case.model.parameters(), lr=0.1)
    optimizer.step(case.value)
    assert optimizer.skipped == 1
    assert torch.equal(before, vector(case.model))


# Grids against enumeration, both cuts; submodularity is never silently assumed.

CUTS = [scipy_cut]
if importlib.util.find_spec("maxflow"):
    CUTS.append(maxflow_cut)
each_cut = pytest.mark.parametrize("cut", CUTS)


def every_image(H: int, W: int) -> Tensor:
    return torch.tensor(list(itertools.product([0, 1], repeat=H * W))).view(-1, H, W)


def score(z: Tensor, unary: Tensor, right: Tensor, down: Tensor, mask: Tensor) -> Tensor:
    """The definition, for one image and many labellings."""
    across = (z[:, :, :-1] == z[:, :, 1:]) * right * mask[:, :-1] * mask[:, 1:]
    along = (z[:, :-1] == z[:, 1:]) * down * mask[:-1] * mask[1:]
    return (z * unary * mask).sum((1, 2)) + across.sum((1, 2)) + along.sum((1, 2))


@each_cut
@settings(max_examples=200)
@given(
    H=st.integers(2, 3),
    W=st.integers(2, 3),
    seed=st.integers(0, 10**6),
    ties=st.booleans(),
    masked=st.booleans(),
    normalize=st.booleans(),
    coupling=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_a_cut_is_the_enumeration(cut, H, W, seed, ties, masked, normalize, coupling):
    torch.manual_seed(seed)
    B = 3
    unary = torch.randint(-2, 3, (B, H, W)).double() if ties else 2 * torch.randn(B, H, W)
    right, down = (coupling * (torch.ones(s) if ties else torch.rand(s)) for s in ((B, H, W - 1), (B, H - 1, W)))
    labels, mask = torch.randint(2, (B, H, W)), torch.rand(B, H, W) < (0.7 if masked else 2)
    mask[:, 0, 0] = True
    loss = GridHinge(cut=cut, normalize=normalize, reduction="none")
    value = loss((unary, right, down), (labels, mask))
    predicted, every = loss.decode((unary, right, down)), every_image(H, W)
    for i in range(B):
        wrong = ((every != labels[i]) & mask[i]).sum((1, 2)) / (mask[i].sum() if normalize else 1)
        truth = score(labels[i : i + 1], unary[i], right[i], down[i], mask[i])
        best = (score(every, unary[i], right[i], down[i], mask[i]) + wrong).max() - truth
        assert value[i] == pytest.approx(float(best), abs=1e-6)
        everywhere = score(every, unary[i], right[i], down[i], torch.ones(H, W))
        at = every.eq(predicted[i]).all(2).all(1)
        assert everywhere[at] == pytest.approx(float(everywhere.max()), abs=1e-6)


def worth(z: np.ndarray, gain: np.ndarray, right: np.ndarray, down: np.ndarray) -> float:
    return (gain * z).sum() + (right * (z[:, 1:] == z[:, :-1])).sum() + (down * (z[1:] == z[:-1])).sum()


@pytest.mark.skipif(len(CUTS) < 2, reason="PyMaxflow is not installed: pip install '.[maxflow]'")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_two_cuts_agree_on_large_images(scale):
    draw = np.random.default_rng(0)
    gain = scale * (draw.normal(size=(40, 50)) + draw.normal(size=(40, 1)))
    right, down = scale * draw.random((40, 49)), scale * draw.random((39, 50))
    a, b = (worth(cut(gain, right, down), gain, right, down) for cut in CUTS)
    most = min(gain[gain > 0].sum(), -gain[gain < 0].sum())
    assert abs(a - b) <= (gain.size + right.size + down.size) * 4 * most / 2**31  # the bound that scipy_cut states


@each_cut
def test_weights_beyond_all_gains_tie_the_image_together(cut):
    gain = np.array([[1.0, -0.25], [-0.25, -0.25]])
    assert cut(gain, np.full((2, 1), 1e30), np.full((1, 2), 1e30)).all()
    assert not cut(-gain, np.full((2, 1), 1e30), np.full((1, 2), 1e30)).any()


@each_cut
@pytest.mark.parametrize("seed", range(5))
def test_pixels_that_are_known_do_not_blur_the_others(cut, seed):
    """Gains of ±1e15 leave no digits for the others in a flow, unless they are clipped first."""
    draw = np.random.default_rng(seed)
    gain, right, down = draw.normal(size=(3, 3)), draw.random((3, 2)), draw.random((2, 3))
    gain[0, 0], gain[2, 2] = 1e15, -1e15
    known = np.where(np.abs(gain) > 1e6, 0, gain), right, down
    every = [z.numpy().astype(bool) for z in every_image(3, 3)]
    best = max(worth(z, *known) for z in every if z[0, 0] and not z[2, 2])
    assert worth(cut(gain, right, down), *known) == pytest.approx(best, abs=1e-6)


def scores(B: int = 2, H: int = 3, W: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, W), torch.rand(B, H, W - 1), torch.rand(B, H - 1, W)


def test_negative_weights_are_refused_or_projected():
    unary, right, down = (u.requires_grad_() for u in scores())
    labels = torch.randint(2, (2, 3, 3))
    with pytest.raises(ValueError, match="not submodular"):
        GridHinge().decode((unary, right, down - 2))
    loss = GridHinge(negative="project")
    assert not loss.exact
    assert "exact=False" in repr(loss)
    value = loss((unary, right - 0.5, down), labels)
    expected = GridHinge()((unary, (right - 0.5).clamp(min=0), down), labels)
    assert value == expected
    (gradient,) = torch.autograd.grad(value, right)
    assert not gradient[right < 0.5].any()


def test_an_approximate_oracle_still_ascends():
    """So large a step makes the linearised weights negative."""
    w, strength = torch.randn(4, requires_grad=True), torch.ones(2, requires_grad=True)
    scores, labels = (torch.randn(2, 3, 3, 4) @ w, *strength), torch.randint(2, (2, 3, 3))
    problem = ProxProblem.from_scores(GridHinge(negative="project"), scores, labels, [w, strength], lr=5.0)
    point, duals = problem.start(), []
    for _ in range(10):
        vertex, _ = problem.conditional_gradient(point)
        point = problem.move(point, vertex)
        duals.append(float(problem.dual(point)))
    assert duals == sorted(duals)
    assert duals[0] >= 0


def test_minus_infinity_forbids_a_one():
    unary, right, down = scores()
    unary[:, 1, 1] = -torch.inf
    leaf, zeros = unary.requires_grad_(), torch.zeros(2, 3, 3, dtype=torch.long)
    assert not GridHinge().decode((unary, right, 9 + down))[:, 1, 1].any()
    value = GridHinge()((leaf, right, down), zeros)
    (gradient,) = torch.autograd.grad(value, leaf)
    assert value.isfinite()
    assert not gradient[:, 1, 1].any()
    assert GridHinge()((unary, right, down), zeros + 1) == torch.inf
