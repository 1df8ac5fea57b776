"""Scores that are not finite: −inf forbids a label or a transition, the rest skips the step. Masks with holes."""

import math

import pytest
import torch

from proxsvm import ProxProblem
from proxsvm.losses import ChainHinge, GridHinge, MultiLabelHinge, TreeHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import MODELS, each_loss, expanded, setting, vector
from tests.cases import PaperOptimizer as ProxOptimizer

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
