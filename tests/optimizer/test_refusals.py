"""Foreign states, a value in the place of a closure, and what else is refused in words that help."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW
from tests.cases import mlp


def fresh(model: nn.Module) -> ProxOptimizer:
    return ProxOptimizer(MultiClassHinge(), SingleStepFW(), model.parameters(), lr=0.5, momentum=0.9)


@pytest.mark.parametrize(
    "other",
    [
        lambda params: torch.optim.SGD(params, lr=0.3, momentum=0.9),
        lambda params: torch.optim.Adam(params, maximize=True),
        lambda params: torch.optim.Adagrad(params),
    ],
    ids=["SGD", "Adam", "Adagrad"],
)
def test_the_state_of_another_optimizer_is_refused(other):
    model = mlp()
    optimizer, before = fresh(model), copy.deepcopy(fresh(model).state_dict())
    with pytest.raises(ValueError, match="it is the state of another optimizer"):
        optimizer.load_state_dict(other(model.parameters()).state_dict())
    assert optimizer.state_dict() == before


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr", -1.0, "expected η ≥ 0"),
        ("lr", "fast", "expected a number"),
        ("momentum", 1.5, "expected μ in"),
        ("weight_decay", float("nan"), "expected 0 or more"),
        ("average", 2.0, "expected None, or the largest weight"),
    ],
)
def test_options_that_no_optimizer_can_have_are_refused_in_a_state(option, value, message):
    optimizer = fresh(mlp())
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0][option] = value
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("given", [torch.tensor(1.0), 1.0])
def test_a_value_in_the_place_of_a_closure(given):
    with pytest.raises(TypeError, match=r"the value by its name: optimizer\.step\(loss=value\)"):
        fresh(mlp()).step(given)


def test_a_closure_of_another_loss_names_the_ways_out():
    model, (x, y) = mlp(), (torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ValueError, match=r"three ways out.*CrossEntropy.*loss=value.*compute_loss_func"):
        fresh(model).step(lambda: nn.functional.cross_entropy(model(x), y))


def test_an_infinite_cost_is_refused():
    with pytest.raises(ValueError, match="cost must be finite"):
        MultiClassHinge(torch.tensor([[0.0, float("inf")], [1.0, 0.0]]))
