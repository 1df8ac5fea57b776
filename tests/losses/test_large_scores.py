"""Scores far from zero: ⟨s, u⟩ and c cancel there, and the value of a float32 loss must not lose its digits to that."""

from typing import Any

import pytest
import torch
from torch import Tensor

from proxsvm import ProxProblem, losses
from proxsvm.losses.base import like, parts
from tests.cases import K, class_weights, cost_matrix

N, T, FAR = 24, 6, 1e4


def classes() -> tuple[Tensor, Tensor]:
    """Rows of small differences, each far from zero in its own way."""
    return (torch.randn(N, K) + FAR * torch.randn(N, 1)).float(), torch.randint(K, (N,))


def reals() -> tuple[Tensor, Tensor]:
    u = (FAR * torch.randn(N, K)).float()
    return u, u + torch.randn(N, K).float()


def rankings() -> tuple[Tensor, Tensor]:
    return classes()[0], torch.randint(2, (N, K))


def chains() -> tuple[Any, Tensor]:
    unary, pairwise = torch.randn(N, T, K) + FAR * torch.randn(N, T, 1), torch.randn(K, K)
    return (unary.float(), pairwise.float()), torch.randint(K, (N, T))


def trees() -> tuple[Any, Any]:
    scores, labels = chains()
    return scores, (labels, torch.tensor([-1, 0, 0, 1, 1, 2]).expand(N, T))


CASES = [
    (losses.CrossEntropy(), classes),
    (losses.CrossEntropy(weight=class_weights().float()), classes),
    (losses.CrossEntropy(label_smoothing=0.1), classes),
    (losses.MultiClassHinge(), classes),
    (losses.MultiClassHinge(smooth=True), classes),
    (losses.MultiClassHinge(cost_matrix().float()), classes),
    (losses.MultiClassHinge(cost_matrix().float(), smooth=True), classes),
    (losses.TopKHinge(2), classes),
    (losses.WestonWatkinsHinge(), classes),
    (losses.L1Regression(), reals),
    (losses.L1Regression(epsilon=0.3), reals),
    (losses.QuantileRegression(0.3), reals),
    (losses.SquaredError(), reals),
    (losses.Huber(), reals),
    (losses.AveragePrecisionHinge(), rankings),
    (losses.LovaszHinge(), rankings),
    (losses.ChainHinge(), chains),
    (losses.ChainHinge(smooth=True), chains),
    (losses.ChainCRF(), chains),
    (losses.TreeHinge(), trees),
]
each_case = pytest.mark.parametrize(("loss", "draw"), CASES, ids=[str(loss) for loss, _ in CASES])


def double(x: Any) -> Any:
    return like(x, tuple(u.double() if u.is_floating_point() else u for u in parts(x)))


@each_case
@pytest.mark.parametrize("seed", range(3))
def test_the_value_of_float32_scores_is_that_of_float64(loss, draw, seed):
    torch.manual_seed(seed)
    scores, target = draw()
    exact = float(loss(double(scores), double(target)))
    for value in (
        loss(scores, target),
        losses.ConvexLoss.forward(loss, scores, target),
    ):  # by the compiled loop, and without
        assert value.dtype == torch.float32
        assert float(value) == pytest.approx(exact, rel=1e-6)


@each_case
def test_a_problem_knows_its_first_dual_as_exactly(loss, draw):
    scores, target = draw()
    w = tuple(u.clone().requires_grad_() for u in parts(scores))
    exact = float(loss(double(scores), double(target)))
    problem = ProxProblem.from_scores(loss, like(scores, w), target, list(w), lr=0.1)
    assert float(problem.first().lam) == pytest.approx(exact, rel=1e-6)
    if not loss.smooth:
        assert float(problem.primal(problem.start())) == pytest.approx(exact, rel=1e-6)
