"""What holds for every loss, solver and model."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxsvm import DualPoint, ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from tests.cases import (
    LOSSES,
    METRICS,
    MODELS,
    SMALL_MODELS,
    LossCase,
    each_loss,
    each_small_model,
    each_solver,
    setting,
)

SETTINGS = [  # model, decay, two groups, metric
    *((model, *rest, Euclidean()) for model in SMALL_MODELS for rest in ((0.0, False), (0.1, True))),
    *((MODELS[1], 0.05, True, metric) for metric in METRICS if not metric.identity),
]
each_setting = pytest.mark.parametrize("at", range(len(SETTINGS)), ids=lambda at: "-".join(map(str, SETTINGS[at])))
each_eta = pytest.mark.parametrize("lr", [0.05, 1.0, 20.0])


def between(problem: ProxProblem, a: DualPoint, b: DualPoint, gamma: float) -> DualPoint:
    delta = [(1 - gamma) * x + gamma * y for x, y in zip(a.delta, b.delta, strict=True)]
    return DualPoint(delta, (1 - gamma) * a.lam + gamma * b.lam, torch.tensor(gamma), 1)


def brute_force(problem: ProxProblem, a: DualPoint, b: DualPoint) -> tuple[float | None, float]:
    """(γ, D) of the largest dual on a segment, from the definition of D, which is quadratic in γ.

    γ is None where the segment is a point.
    """

    def dual(gamma: float) -> float:
        return float(problem.dual(between(problem, a, b, gamma)))

    slope, curvature = (dual(1.0) - dual(-1.0)) / 2, dual(1.0) - 2 * dual(0.0) + dual(-1.0)
    if abs(curvature) < 1e-9:
        return None, max(dual(0.0), dual(1.0))
    gamma = min(max(-slope / curvature, 0.0), 1.0)
    return gamma, max(dual(gamma), dual(0.0), dual(1.0))


@each_loss
@each_setting
@each_eta
def test_gamma_is_the_best_on_its_segment(loss, at, lr):
    model, *options = SETTINGS[at]
    problem = setting(loss, model).problem(lr, *options)
    start, first = problem.start(), problem.first()
    one = problem.move(start, first)
    assert 0 <= one.gamma <= 1
    vertex, _ = problem.conditional_gradient(one)  # and from a point that is not the start
    for point, toward in ((start, first), (one, vertex)):
        gamma, best = brute_force(problem, point, toward)
        assert gamma is not None or point is one
        if gamma is not None:
            assert problem.line_search(point, toward) == pytest.approx(gamma, abs=1e-8)
        assert problem.dual(problem.move(point, toward)) == pytest.approx(best, abs=1e-8)


@functools.cache  # one exact solution for all solvers
def exact_value(loss: LossCase, at: int) -> float:
    """P* of a seeded setting, which certifies itself."""
    model, *options = SETTINGS[at]
    problem = setting(loss, model).problem(2.0, *options)
    exact = ExactQP().solve(problem)
    best = float(problem.dual(exact))
    assert problem.gap(exact) == pytest.approx(0, abs=1e-6 * max(1.0, abs(best)))
    return best


@each_loss
@each_solver
@each_setting
def test_bounds_enclose_the_exact_value(loss, solver, at):
    model, *options = SETTINGS[at]
    best, problem = exact_value(loss, at), setting(loss, model).problem(2.0, *options)
    point = solver.solve(problem)
    slack = 1e-6 * max(1.0, abs(best))
    assert problem.dual(problem.start()) - slack <= problem.dual(point) <= best + slack
    assert best <= problem.primal(point) + slack
    assert 0 <= point.gamma <= 1
    assert problem.gap(point) == pytest.approx(float(problem.primal(point) - problem.dual(point)), abs=1e-9)
    assert point.dual == pytest.approx(float(problem.dual(point)), abs=1e-9)  # tracked along the way
    assert -1e-9 <= problem.relative_gap(point) <= 1 + 1e-9


CLOSING = [
    (MultiStepFW(4000, tol=1e-3), 0.1),
    (CorrectiveFW(2000, tol=1e-6, memory=100), 2.0),
    (BlockFW(tol=1e-6), 2.0),
]


@each_loss
@each_small_model
@pytest.mark.parametrize(("solver", "lr"), CLOSING, ids=[type(solver).__name__ for solver, _ in CLOSING])
def test_the_gap_closes(loss, model, solver, lr):
    problem = setting(loss, model).problem(lr, 0.1, two=lr > 1)
    point = solver.solve(problem)
    assert problem.relative_gap(point) <= 1.01 * solver.tol
    assert point.gap == pytest.approx(float(problem.gap(point)), abs=1e-9)


@each_loss
@each_small_model
def test_one_step_of_many_is_the_single_step(loss, model):
    case = setting(loss, model)
    case.loss.smooth = False
    problem = case.problem(1.5)
    one, single = MultiStepFW(max_steps=1, tol=0.0).solve(problem), SingleStepFW().solve(problem)
    assert one.gamma == pytest.approx(float(single.gamma), rel=1e-14)
    assert one.lam == pytest.approx(float(single.lam), rel=1e-14)  # ⟨s, u⟩ + c, or the value that an oracle computes
    torch.testing.assert_close(one.delta, single.delta)


@given(seed=st.integers(0, 10_000), lr=st.floats(1e-3, 1e3), decay=st.sampled_from([0.0, 0.01, 1.0]))
def test_for_one_sample_and_two_classes_one_step_is_the_qp(seed, lr, decay):
    torch.manual_seed(seed)
    w = torch.randn(2, 3, requires_grad=True)
    problem = ProxProblem.from_scores(
        MultiClassHinge(), torch.randn(1, 3) @ w.T, torch.randint(2, (1,)), [w], lr=lr, weight_decay=decay
    )
    step = MultiStepFW(max_steps=1, tol=0.0).solve(problem)  # the oracle at u − ηJr: with ρ ≠ 0 the exact direction
    assert problem.gap(step) <= 1e-9 * max(1.0, float(problem.primal(step)))


@given(data=st.data(), n=st.integers(1, 6), seed=st.integers(0, 10_000), lr=st.floats(1e-2, 1e2))
def test_bounds_hold_for_drawn_shapes(data, n, seed, lr):
    loss, model = data.draw(st.sampled_from(LOSSES)), data.draw(st.sampled_from(SMALL_MODELS[:2]))
    problem = setting(loss, model, n, seed).problem(lr, data.draw(st.sampled_from([0.0, 0.1])))
    start = problem.start()
    for solver in (SingleStepFW(), MultiStepFW(7)):
        point = solver.solve(problem)
        scale = 1e-9 * (1 + abs(float(problem.primal(point))) + abs(float(problem.dual(start))))
        assert problem.dual(start) - scale <= problem.dual(point) <= problem.primal(point) + scale


def test_a_step_that_cannot_help_has_gamma_zero():
    problem = setting(LOSSES[0], MODELS[1]).problem(1.0)
    best = ExactQP().solve(problem)
    assert problem.line_search(best, problem.start()) == 0
