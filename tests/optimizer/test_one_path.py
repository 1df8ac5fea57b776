"""Every kind of step makes a problem, the solver solves it, and one function moves the weights."""

import copy

import pytest
import torch
from torch import nn

from proxsvm import DualPoint, ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal, Kronecker
from proxsvm.optimizer import no_decay
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import K, mlp, vector
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_faults import same
from tests.optimizer.test_optimizer import batches, begun, train


class Halving(SingleStepFW):
    """A user's subclass: half of the best step, by the fields of a point."""

    def solve(self, problem: ProxProblem) -> DualPoint:
        point = super().solve(problem)
        return DualPoint([x / 2 for x in point.delta], point.lam / 2, point.gamma / 2, point.steps)


def ordinary(optimizer, model, x, y):
    optimizer.loss(model(x), y).backward()
    optimizer.step()


def by_closure(optimizer, model, x, y):
    optimizer.step(lambda: optimizer.loss(model(x), y))


def by_value(optimizer, model, x, y):
    optimizer.loss(model(x), y).backward()
    optimizer.step(loss=optimizer.loss(model(x), y).detach())


def accumulated(optimizer, model, x, y):
    for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
        (optimizer.loss(model(a), b) / 2).backward()
    optimizer.step()


def scaled(optimizer, model, x, y):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(optimizer.loss(model(x), y)).backward()
    scaler.step(optimizer)


def unscaled(optimizer, model, x, y):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    loss = optimizer.loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer, loss=loss)


KINDS = {
    "ordinary": (ordinary, {}),
    "torch's kernels": (ordinary, {"fused": False}),
    "compiled loops": (ordinary, {"fused": True}),
    "a tensor lr": (ordinary, {"lr": torch.tensor(0.7, dtype=torch.float64)}),
    "clipped": (ordinary, {"max_grad_norm": 1e9}),
    "clipped, torch's kernels": (ordinary, {"max_grad_norm": 1e9, "fused": False}),
    "a closure": (by_closure, {}),
    "a closure, clipped": (by_closure, {"max_grad_norm": 1e9}),
    "a given value": (by_value, {}),
    "accumulated": (accumulated, {}),
    "scaled": (scaled, {}),
    "scaled, torch's kernels": (scaled, {"fused": False}),
    "unscaled": (unscaled, {}),
}


def stepped(kind, solver=None, steps=1):
    take, options = KINDS[kind]
    torch.manual_seed(0)
    model = mlp()
    options = {"lr": 0.7, "momentum": 0.9, "weight_decay": 0.013, **options}
    optimizer = ProxOptimizer(MultiClassHinge(smooth=True), solver or SingleStepFW(), model.parameters(), **options)
    for x, y in batches(steps, n=12):
        optimizer.zero_grad()
        take(optimizer, model, x, y)
    return vector(model), optimizer


@pytest.mark.parametrize(("solver", "share"), [(SingleStepFW, 1), (Halving, 0.5)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_step_is_one_to_1e_14_and_a_subclass_is_obeyed(kind, solver, share):
    """μ and the weight decay of every kind of step are float64: 0.9 and 0.013 have no exact float32."""
    found, optimizer = stepped(kind, solver())
    expected, _ = stepped("torch's kernels", solver())
    _, plain = stepped("torch's kernels")
    assert float(optimizer.last.gamma) == pytest.approx(share * float(plain.last.gamma), rel=1e-13)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)


def test_lr_zero_stops_the_momentum_too():
    model, optimizer, batch = begun(lr=0.5, momentum=0.9, weight_decay=0.01)
    for lr in (0.5, 0.0, torch.tensor(0.0)):
        optimizer.param_groups[0]["lr"] = lr
        before = vector(model)
        train(optimizer, model, [batch])
        assert torch.equal(before, vector(model)) == (float(lr) == 0)


@pytest.mark.parametrize("lr", [0.5, "auto"])
@pytest.mark.parametrize("metric", [Diagonal(), Kronecker(every=2)])
def test_lr_zero_changes_no_bit_of_what_is_kept(lr, metric):
    """A warm-up begins with it, and a past with the value h but without its slope q would give a wrong γ."""
    model, optimizer, batch = begun(lr=lr, memory=0.9, metric=metric, average=0.9)
    train(optimizer, model, [batch])
    optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(optimizer, model, [batch])
    assert same(before, (model.state_dict(), optimizer.state_dict()))


@pytest.mark.parametrize(
    ("solver", "options", "kept"),
    [
        (SingleStepFW(), {"momentum": 0.9}, "velocity|past"),
        (SingleStepFW(), {"momentum": 0.9, "fused": False}, "velocity|past"),
        (MultiStepFW(3), {"average": 0.9}, "average"),
    ],
)
def test_parameters_that_change_their_shape_between_two_steps_are_refused(solver, options, kept):
    model, (x, y) = nn.Linear(5, 4), batches(1)[0]
    optimizer = ProxOptimizer(MultiClassHinge(), solver, model.parameters(), 0.5, **options)
    optimizer.step(lambda: optimizer.loss(model(x), y))
    model.weight.data = torch.cat([model.weight.data, torch.zeros(3, 5)])  # three new classes
    model.bias.data = torch.cat([model.bias.data, torch.zeros(3)])
    before = model.weight.detach().clone()
    with pytest.raises(RuntimeError, match=rf"the ({kept}) of parameter 0 has shape \(4, 5\).*the parameter \(7, 5\)"):
        optimizer.step(lambda: optimizer.loss(model(x), y))
    assert torch.equal(before, model.weight)
    optimizer.state.clear()
    optimizer.step(lambda: optimizer.loss(model(x), y))
    assert not torch.equal(before, model.weight)


def test_groups_without_decay_for_biases_and_norms():
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 4))
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), no_decay(model), 0.5, weight_decay=0.1)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    (x, y), *_ = batches(1)
    train(optimizer, model, [(x, y)])
    vectors = no_decay(norm := nn.LayerNorm(5))
    assert vectors[0]["params"] == []  # an empty group is allowed
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), vectors, lr=torch.tensor([0.5]))
    optimizer.step(lambda: optimizer.loss(norm(x), y))
    assert 0 < optimizer.last.gamma <= 1


@pytest.mark.parametrize("layout", ["transposed", "strided", "channels_last", "scalar", "empty"])
def test_parameters_of_any_layout(layout):
    """The same numbers, also beside a parameter without dimensions or entries."""
    base = torch.randn(K, 5)
    extra = {"scalar": torch.zeros(()), "empty": torch.zeros(0, 3)}.get(layout)
    held = {
        "transposed": base.T.contiguous().T,
        "strided": torch.randn(K, 10)[:, ::2].copy_(base),
        "channels_last": base[:, :, None, None].contiguous(memory_format=torch.channels_last),
    }.get(layout, base.clone())
    for w in (plain := nn.Parameter(base.clone()), other := nn.Parameter(held)):
        params = [w] if extra is None else [w, nn.Parameter(extra.clone())]
        optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, 3.0, 0.5, 0.01)
        train(optimizer, lambda x, w=w, more=params[1:]: x @ w.reshape(K, 5).T + sum(p.sum() for p in more), batches(5))
    torch.testing.assert_close(plain.detach(), other.detach().reshape(K, 5), atol=1e-12, rtol=0)
