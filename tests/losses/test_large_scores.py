"""Scores far from zero: ⟨s, u⟩ and c cancel there, and the value of a float32 loss must not lose its digits to that."""

from typing import Any

import pytest
import torch

from proxsvm import ProxProblem
from proxsvm.losses import ConvexLoss
from proxsvm.losses.base import like, parts
from tests.cases import K, each_loss, reals

N, FAR = 24, 1e4


def drawn(case) -> tuple[Any, Any]:
    """Small differences, in each row far from zero in its own way; targets of a regression lie near their scores."""
    first, *others = (u.float() for u in parts(case.scores(torch.randn(N, K))))
    first = (first + FAR * torch.randn(*first.shape[:-1], 1)).float()
    scores, target = like(case.scores(torch.zeros(N, K)), (first, *others)), case.target(N)
    return scores, (first + target).float() if case.target is reals else target


def double(x: Any) -> Any:
    return like(x, tuple(u.double() if u.is_floating_point() else u for u in parts(x)))


@each_loss
@pytest.mark.parametrize("seed", range(3))
def test_the_value_of_float32_scores_is_that_of_float64(loss, seed):
    torch.manual_seed(seed)
    scores, target = drawn(loss)
    criterion = loss.loss().float()
    exact = float(loss.loss()(double(scores), double(target)))
    for value in (criterion(scores, target), ConvexLoss.forward(criterion, scores, target)):
        assert value.dtype == torch.float32
        assert float(value) == pytest.approx(exact, rel=1e-6)


@each_loss
def test_a_problem_knows_its_first_dual_as_exactly(loss):
    scores, target = drawn(loss)
    w = tuple(u.clone().requires_grad_() for u in parts(scores))
    exact, criterion = float(loss.loss()(double(scores), double(target))), loss.loss().float()
    problem = ProxProblem.from_scores(criterion, like(scores, w), target, list(w), lr=0.1)
    assert float(problem.first().lam) == pytest.approx(exact, rel=1e-6)
    if not criterion.smooth:
        assert float(problem.primal(problem.start())) == pytest.approx(exact, rel=1e-6)
