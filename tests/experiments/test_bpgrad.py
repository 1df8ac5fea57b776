"""BPGrad equals a plain reference in the paper's letters."""

from __future__ import annotations

import copy

import pytest
import torch

from experiments.bpgrad import BPGrad
from tests.optimizer.test_no_host_sync import NoHostSync


def problem():
    """A small network and its batch."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    x, y = torch.randn(16, 5), torch.randint(3, (16,))
    return model, lambda net: torch.nn.functional.cross_entropy(net(x), y)


def reference(f, w, steps, L, mu, rho, decay, eps):
    """BPGrad on one flat vector."""
    v, lowest, values = torch.zeros_like(w), float("inf"), []
    for _ in range(steps):
        w = w.detach().requires_grad_()
        objective = f(w) + decay / 2 * w.square().sum()
        (g,) = torch.autograd.grad(objective, w)
        value = objective.item()
        lowest = min(lowest, value)
        v = mu * v - (value - rho * lowest) / L * g / (g.norm() + eps)
        w = w.detach() + v
        values.append(value)
    return w, values


@pytest.mark.parametrize(("mu", "rho", "decay"), [(0, 0, 0), (0.9, 0, 0), (0.9, 0.1, 0), (0.9, 0, 1e-2), (0, 0.5, 0.1)])
def test_it_equals_the_reference_for_50_steps(mu, rho, decay):
    model, loss = problem()
    shapes = {name: p.shape for name, p in model.named_parameters()}

    def f(flat):
        parts = flat.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return loss(lambda x: torch.func.functional_call(model, named, x))

    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    expected, values = reference(f, start, 50, 1 / 0.05, mu, rho, decay, 1e-5)
    optimizer = BPGrad(model.parameters(), lr=0.05, momentum=mu, weight_decay=decay, rho=rho)
    for _ in range(50):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step(loss=value)
    torch.testing.assert_close(torch.nn.utils.parameters_to_vector(model.parameters()).detach(), expected)
    assert values[-1] < values[0]


def test_closure_and_value_are_the_same_step():
    one, loss = problem()
    two = copy.deepcopy(one)
    first, second = (BPGrad(net.parameters(), lr=0.1, momentum=0.9) for net in (one, two))

    def closure():
        second.zero_grad()
        value = loss(two)
        value.backward()
        return value

    for _ in range(3):
        first.zero_grad()
        value = loss(one)
        value.backward()
        assert first.step(loss=value) is value
        torch.testing.assert_close(second.step(closure), value)
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)


def test_it_never_waits_for_the_device():
    model, loss = problem()
    optimizer = BPGrad(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2, rho=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        value = loss(model)
        with NoHostSync():
            value.backward()
            optimizer.step(loss=value)
    assert optimizer.last_step > 0


def test_a_state_dict_goes_on_where_it_was():
    model, loss = problem()
    optimizer = BPGrad(model.parameters(), lr=0.05, momentum=0.9, rho=0.3)

    def train(net, its, steps):
        for _ in range(steps):
            its.zero_grad()
            value = loss(net)
            value.backward()
            its.step(loss=value)
        return torch.nn.utils.parameters_to_vector(net.parameters()).detach()

    train(model, optimizer, 5)
    other = copy.deepcopy(model)
    resumed = BPGrad(other.parameters(), lr=1.0, rho=0.3)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(train(model, optimizer, 5), train(other, resumed, 5))


def test_a_zero_gradient_moves_nothing_and_a_frozen_weight_is_left():
    w, frozen = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = BPGrad([w, frozen], lr=1.0)
    (w * 0).sum().add(1).backward()
    optimizer.step(loss=torch.tensor(1.0))
    assert torch.equal(w.detach(), torch.ones(3))
    assert torch.equal(frozen.detach(), torch.ones(3))


def test_bad_input_is_named():
    w = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(TypeError, match=r"needs the value of the loss"):
        BPGrad([w]).step()
    for name, value in {"lr": 0.0, "momentum": 1.0, "weight_decay": -1.0, "rho": 1.0, "eps": -1.0}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}; expected"):
            BPGrad([w], **{name: value})
