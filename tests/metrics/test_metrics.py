"""Every metric: the step is the plain reference's, γ the best one, D ≤ P* ≤ P."""

import math

import pytest
import torch
from torch import nn

from proxsvm import ProxProblem
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import CorrectiveFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.cases import differentiate, each_metric, mlp, twins, vector
from tests.optimizer.test_optimizer import batches, begun
from tests.optimizer.test_optimizer import train as train_on
from tests.reference import PlainStep

KINDS = [{"fused": None}, {"fused": False}]


def train(model, optimizer, steps=10):
    train_on(optimizer, model, batches(steps, n=12))
    return vector(model)


def two_groups(model):
    return [{"params": model[0].parameters()}, {"params": model[2].parameters()}]


def group(lr, momentum, weight_decay, metric):
    return {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "metric": metric}


ONE = [
    [group(lr, *past, metric)]
    for lr in (0.01, "auto")
    for past in ((0.0, 0.0), (0.9, 0.01))
    for metric in (Diagonal(), Euclidean())
]
TWO = [
    [group(first, 0.9, 0.01, Diagonal()), group(second, 0.5, 0.002, Euclidean())]
    for first, second in ((0.01, 0.3), ("auto", "auto"), ("auto", 0.3), (0.01, "auto"))
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("groups", ONE + TWO, ids=str)
def test_it_is_the_plain_reference_for_100_steps(kind, groups):
    """Every other step is told a smaller value, so that γ is below 1 where η is too small to make it so."""
    model, twin = twins()
    parts = [model] if len(groups) == 1 else [model[0], model[2]]
    given = [{"params": part.parameters(), **own} for part, own in zip(parts, groups, strict=True)]
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), given, average=0.95, **kind)
    each = [own for part, own in zip(parts, groups, strict=True) for _ in part.parameters()]
    lr, mu, decay, metric = ([own[name] for own in each] for name in groups[0])
    plain = PlainStep(twin.parameters(), lr, mu, decay, metric=metric, average=0.95)
    gammas = []
    for t, (x, y) in enumerate(batches(100, n=12)):
        differentiate(optimizer, model, x, y)
        twin.zero_grad()
        value = nn.functional.cross_entropy(twin(x), y)
        value.backward()
        told = value.detach() * (1e-4 if t % 2 else 1.0)
        optimizer.step(loss=told if t % 2 else None)
        gammas.append(plain.step(told))
        assert float(optimizer.last.gamma) == pytest.approx(gammas[-1], abs=1e-10)
    assert sum(0 < gamma < 1 for gamma in gammas) >= 10
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), atol=1e-10, rtol=0)
    averages = [optimizer.state[p]["average"] for p in model.parameters()]
    torch.testing.assert_close(averages, plain.mean, atol=1e-10, rtol=0)


@each_metric
@pytest.mark.parametrize("loss", [CrossEntropy(), MultiClassHinge()], ids=repr)
def test_a_solver_is_verified_to_be_optimal_in_every_metric(metric, loss):
    model, (x, y) = mlp(), batches(1, n=12)[0]
    options = {"lr": 0.3, "weight_decay": 0.05, "metric": metric}
    problem = ProxProblem.from_scores(loss, model(x), y, model.parameters(), **options)
    report = verify(problem, CorrectiveFW(max_steps=300, tol=1e-7), tol=1e-5)
    assert report.optimal, report


@pytest.mark.parametrize(("option", "value"), [("beta2", 1.0), ("beta2", -0.1), ("eps", 0.0), ("eps", math.nan)])
def test_bad_options_of_a_metric(option, value):
    expected = {"beta2": r"in \[0, 1\)", "eps": "above 0"}[option]
    with pytest.raises(ValueError, match=f"{option} is {value}; expected a number {expected}"):
        Diagonal(**{option: value})


@pytest.mark.parametrize("metric", [Diagonal, "diagonal", 3])
def test_a_metric_is_an_instance(metric):
    params = list(mlp().parameters())
    for given, option in ((params, {"metric": metric}), ([{"params": params, "metric": metric}], {})):
        with pytest.raises(TypeError, match=r"metric is .*expected an instance of a proxsvm\.metrics\.Metric"):
            ProxOptimizer(CrossEntropy(), SingleStepFW(), given, **option)


def test_auto_needs_an_optimizer():
    model, optimizer, (x, y) = begun(loss=CrossEntropy())
    with pytest.raises(ValueError, match="'auto' needs the history of an optimizer"):
        ProxProblem.from_scores(CrossEntropy(), model(x), y, model.parameters(), lr="auto")
    optimizer.param_groups[0]["lr"] = "auto"
    with pytest.raises(ValueError, match="whose group was created with it"):
        optimizer.step(lambda: optimizer.loss(model(x), y))
