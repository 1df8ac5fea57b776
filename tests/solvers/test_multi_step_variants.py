"""CorrectiveFW and the gap-driven steps: certified, monotone, exact in the limit, and cheaper than plain ones."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxsvm import ProxProblem
from proxsvm.losses import ClosedHull, Huber, MultiClassHinge, SquaredError, SquaredHinge
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, Trace
from proxsvm.solvers._corrective import CurvatureModel, simplex_qp
from tests.cases import LOSSES, MODELS, each_loss, setting
from tests.cases import PaperOptimizer as ProxOptimizer

VARIANTS = [MultiStepFW, CorrectiveFW]
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def passes(solver, problem: ProxProblem) -> int:
    """How many vjps and jvps a solve makes."""
    count = 0
    line = problem.linearization

    def counted(f):
        def call(*args):
            nonlocal count
            count += 1
            return f(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("vjp", "jvp"):
            patch.setattr(line, name, counted(getattr(line, name)))
        solver.solve(problem)
    return count


@each_loss
@each_variant
def test_every_step_is_known_and_encloses_the_exact_value_and_the_dual_never_decreases(loss, variant):
    """What is said of a step is what the point of that many steps has."""
    seen: list[Trace] = []
    problem = setting(loss, MODELS[1]).problem(5.0, 0.1)
    exact = float(problem.dual(ExactQP().solve(problem)))
    variant(max_steps=40, tol=0.0, callback=seen.append).solve(problem)
    points = [problem.start(), *(variant(max_steps=k, tol=0.0).solve(problem) for k in range(1, 5))]
    for t, point in zip(seen, points, strict=False):
        assert t.dual == pytest.approx(float(problem.dual(point)), abs=1e-9)
        assert t.gap == pytest.approx(float(problem.gap(point)), abs=1e-9)
    for before, after in itertools.pairwise(seen):
        assert after.dual >= before.dual - 1e-12
    for t in seen:
        assert t.dual - 1e-6 <= exact <= t.primal + 1e-6


def test_corrective_needs_fewer_network_passes_than_plain():
    torch.manual_seed(0)
    net, x, y = torch.nn.Linear(20, 5), torch.randn(40, 20), torch.randint(5, (40,))
    problem = ProxProblem.from_scores(MultiClassHinge(), net(x), y, net.parameters(), lr=10.0)
    plain, corrective = (passes(v(max_steps=2000, tol=1e-2), problem) for v in VARIANTS)
    assert corrective < plain / 2


@each_variant
def test_an_easy_batch_costs_one_gap_driven_step(variant):
    problem = setting(LOSSES[0], MODELS[1]).problem(1e-3)  # at a tiny η the first step is the whole of the loss
    assert variant(max_steps=50, tol=0.0, fraction=0.3).solve(problem).steps == 1


@each_loss
@each_variant
def test_a_step_costs_one_vjp_and_one_jvp(loss, variant):
    """At most: d = 0 needs no jvp, but the final delta of an oracle alone costs a vjp."""
    assert passes(variant(max_steps=5, tol=0.0), setting(loss, MODELS[1], n=20).problem(20.0)) <= 5 + 5


def test_what_is_learnt_of_the_curvature_is_exact_on_the_moves_and_nowhere_above():
    """B = LᵀL: B d = G d for every move, G − B is positive semi-definite, with memory for all moves and for three."""
    problem = setting(LOSSES[0], MODELS[1], n=20).problem(20.0, two=True)
    loss, scores, target = problem.origin.loss, problem.origin.scores, problem.origin.target
    J = problem.linearization.jacobian()
    root = problem.geometry.root(J)
    G = root @ root.t()
    for memory in (30, 3):
        state = CurvatureModel(problem, loss.hull(scores.detach(), target), memory)
        before, moves = state.s, []
        for _ in range(6):
            v = state.scores()
            state.step(v, loss.oracle(v, target))
            moves.append((state.p * (state.s - before)).reshape(-1))
            before = state.s
        state.scores()
        B = state.L[: state.size].t() @ state.L[: state.size]
        assert state.size == min(memory, 6)
        assert torch.linalg.eigvalsh(G - B).min() >= -1e-9 * G.diagonal().max()
        for d in moves if memory == 30 else moves[-1:]:
            torch.testing.assert_close(B @ d, G @ d, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("kind", [SquaredError, Huber, SquaredHinge])
def test_squared_losses_use_what_is_learnt_of_the_curvature(kind):
    """With the oracle's atoms alone it takes 70 steps and more."""
    case = next(case for case in LOSSES if isinstance(case.loss(), kind))
    problem = setting(case, MODELS[1], n=40).problem(20.0)
    assert problem.relative_gap(CorrectiveFW(max_steps=30, tol=0.0).solve(problem)) <= 1e-6


@pytest.mark.parametrize("memory", [1, 3])
def test_little_memory_takes_longer_but_arrives(memory):
    problem = setting(LOSSES[0], MODELS[1], n=20).problem(20.0)
    point = CorrectiveFW(max_steps=2000, tol=1e-4, memory=memory).solve(problem)
    assert problem.relative_gap(point) <= 1e-4


@pytest.mark.parametrize("solver", [CorrectiveFW(4), MultiStepFW(4, fraction=0.5), BlockFW(tol=1e-3)], ids=repr)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_with_each_solver_lowers_the_loss(solver, momentum):
    case = setting(LOSSES[1], MODELS[1], n=30)
    optimizer = ProxOptimizer(case.loss, solver, case.model.parameters(), lr=1.0, momentum=momentum, weight_decay=1e-3)
    first = float(case.value().detach())
    for _ in range(20):
        optimizer.step(case.value)
    assert float(case.value().detach()) < 0.8 * first
    assert 0 <= optimizer.last.gamma <= 1


@settings(max_examples=100)
@given(size=st.integers(1, 8), rank=st.integers(0, 8), seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e3))
def test_the_tiny_qp_is_optimal(size, rank, seed, scale):
    """a is feasible, and no vertex has a larger slope than a itself: the condition of optimality."""
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((size, rank)) * scale, rng.standard_normal(size)
    if size > 2:
        A[1], b[1] = A[0], b[0]  # a point that was seen twice
    Q = A @ A.T
    start = rng.dirichlet(np.full(size, 0.3)) if seed % 2 else None
    a = simplex_qp(Q, b, start)
    assert (a >= 0).all()
    assert a.sum() == pytest.approx(1)
    slope = b - Q @ a
    assert slope.max() - slope @ a <= 1e-7 * max(1.0, np.abs(Q).max())


def test_the_hulls_nearest_atom_is_the_best():
    """⟨s, v⟩ + c − h/2 ‖s‖² is larger than at any vertex mixed in."""
    for case in LOSSES:
        loss, v, target = case.loss(), torch.randn(6, 4), case.target(6)
        v, target = loss.prepare(case.scores(v), target)
        hull = loss.hull(v, target)
        if not isinstance(hull, ClosedHull):
            continue
        for h in (1e-3, 1.0, 30.0):
            near = hull.nearest(v, torch.tensor(h))

            def value(atom, v=v, h=h):
                return atom.b(v) - h / 2 * atom.s.square().sum(1)

            for gamma in (1e-3, 0.3, 1.0) * 20:
                other = loss.oracle(3 * torch.randn(6, 4), target)
                mixed = type(near)(*(a + gamma * (b - a) for a, b in zip(near, other, strict=True)))
                assert (value(mixed) <= value(near) + 1e-9).all()
            assert (near.b(v) <= loss.oracle(v, target).b(v) + 1e-9).all()
