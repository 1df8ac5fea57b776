"""What a loss knows never to fall below is the start of the dual: by hand, after backward(), and on several ranks."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from proxsvm import ProxProblem
from proxsvm.losses import BinaryCrossEntropy, CrossEntropy
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from tests.cases import LOSSES, SMALL_MODELS, K, LossCase, class_weights, mlp, setting, vector
from tests.cases import PaperOptimizer as ProxOptimizer

LR, DECAY = 20.0, 0.01


def bounded(case: LossCase) -> bool:
    loss = case.loss()
    return loss.lower_bound(*loss.prepare(case.scores(torch.zeros(2, K)), case.target(2))) is not None


BOUNDED = [case for case in LOSSES if bounded(case)]
each_bounded_loss = pytest.mark.parametrize("loss", BOUNDED, ids=repr)


def floor_of(case: Any) -> float:
    """Σ p f, by hand."""
    scores, target = case.loss.prepare(case.model(case.x).detach(), case.target)
    p = torch.as_tensor(case.loss.coefficients(scores, target, None))
    return float((p * case.loss.lower_bound(scores, target)).sum())


@each_bounded_loss
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_is_the_dual_of_the_start(loss, decay):
    case = setting(loss, SMALL_MODELS[1])
    problem, floor = case.problem(LR, decay), floor_of(case)
    assert floor > 0.1
    start = problem.start()
    r_squared = LR * decay**2 * float(vector(case.model).square().sum())
    assert float(start.lam) == pytest.approx(floor)
    assert float(start.dual) == pytest.approx(floor - r_squared / 2)
    assert float(problem.dual(start)) == pytest.approx(float(start.dual))
    assert float(problem.gap(start)) == pytest.approx(float(problem.primal(start) - problem.dual(start)))
    assert float(problem.relative_gap(start)) == pytest.approx(1.0)


@each_bounded_loss
def test_where_the_loss_is_at_its_bound_nothing_is_left_to_gain(loss):
    """The gap of the start is 0 there, and no solver moves."""
    case = setting(loss, SMALL_MODELS[0])
    x = torch.eye(K)
    _, target = case.loss.prepare(torch.zeros(K, K), loss.target(K))
    if isinstance(case.loss, CrossEntropy):
        best = case.loss.hull(x, target).q.log()
    elif isinstance(case.loss, BinaryCrossEntropy):
        best = (class_weights() * target / (1 - target)).log()
    else:
        best = target
    w = best.clone().requires_grad_()
    problem = ProxProblem.from_scores(case.loss, x @ w, target, [w], lr=LR)
    assert float(problem.gap(problem.start())) == pytest.approx(0, abs=1e-12)
    for solver in (SingleStepFW(), MultiStepFW(5), CorrectiveFW(5), BlockFW(max_passes=5), ExactQP()):
        assert float(problem.displacement(solver.solve(problem))[0].abs().max()) < 1e-5


def optimizer_for(case: Any, **options: Any) -> ProxOptimizer:
    options = {"lr": LR, "weight_decay": DECAY, **options}
    return ProxOptimizer(case.loss, SingleStepFW(), case.model.parameters(), **options)


def by_hand(case: Any, value: float, floor: float) -> float:
    """γ = clip₀₁[(value − floor − η·decay·⟨w, g⟩) / (η‖g‖²)]."""
    w = vector(case.model)
    g = parameters_to_vector([p.grad for p in case.model.parameters()])
    return float(((value - floor - LR * DECAY * (w @ g)) / (LR * (g @ g))).clamp(0, 1))


@each_bounded_loss
@pytest.mark.parametrize("way", ["backward", "closure", "closure that calls backward"])
@pytest.mark.parametrize("fused", [True, False])
def test_gamma_counts_from_the_bound(loss, way, fused):
    if fused:
        pytest.importorskip("numba")
    case = setting(loss, SMALL_MODELS[1])
    floor, value = floor_of(case), case.value()
    value.backward()
    value, gamma = float(value.detach()), by_hand(case, float(value.detach()), floor)
    assert 0 < gamma < 1
    optimizer = optimizer_for(case, fused=fused)
    optimizer.zero_grad()

    def closure() -> Tensor:
        found = case.value()
        if way != "closure":
            found.backward()
        return found

    if way == "backward":
        closure()
        assert float(optimizer.step()) == pytest.approx(value)
    else:
        assert float(optimizer.step(closure).detach()) == pytest.approx(value)
    last = optimizer.last
    assert float(last.gamma) == pytest.approx(gamma, rel=1e-9)
    assert float(last.loss) == pytest.approx(value)  # the whole loss
    assert floor - 1 < float(last.dual) < value


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (1.3, True), (0.25, False)])
def test_a_given_value_keeps_the_bound_of_what_it_contains(factor, holds):
    """A term ≥ 0 may have been added; less than the record has says that the gradients were changed, too."""
    model, x, y, criterion = mlp(), torch.randn(8, 5), torch.randint(K, (8,)), CrossEntropy(label_smoothing=0.2)
    optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), lr=LR)
    value = criterion(model(x), y)
    value.backward()
    g = parameters_to_vector([p.grad for p in model.parameters()])
    given = factor * float(value.detach())
    optimizer.step(loss=given)
    floor = float(criterion.lower_bound(torch.zeros(8, K), y).mean()) if holds else 0.0
    assert float(optimizer.last.gamma) == pytest.approx(min(1.0, (given - floor) / float(LR * (g @ g))))
