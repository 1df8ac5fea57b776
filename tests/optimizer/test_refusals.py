"""Foreign states, a value in the place of a closure, and what else is refused in words that help."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import BlockFW, MultiStepFW, SingleStepFW
from tests.cases import mlp


def fresh(model: nn.Module, **options) -> ProxOptimizer:
    options = {"lr": 0.5, "momentum": 0.9, **options}
    return ProxOptimizer(MultiClassHinge(), SingleStepFW(), model.parameters(), **options)


def stepped(**options) -> ProxOptimizer:
    model = mlp()
    optimizer = fresh(model, **options)
    take_step(model, optimizer)
    return optimizer


def take_step(model: nn.Module, optimizer: ProxOptimizer) -> None:
    optimizer.zero_grad()
    optimizer.loss(model(torch.ones(4, 5)), torch.tensor([0, 1, 2, 0])).backward()
    optimizer.step()


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
    with pytest.raises(TypeError, match=r"the value by keyword: optimizer\.step\(loss=value\)"):
        fresh(mlp()).step(given)


def test_a_closure_of_another_loss_names_the_ways_out():
    model, (x, y) = mlp(), (torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ValueError, match=r"three ways out.*CrossEntropy.*loss=value.*compute_loss_func"):
        fresh(model).step(lambda: nn.functional.cross_entropy(model(x), y))


def test_an_infinite_cost_is_refused():
    with pytest.raises(ValueError, match="cost must be finite"):
        MultiClassHinge(torch.tensor([[0.0, float("inf")], [1.0, 0.0]]))


NONSENSE = [
    ("lr", math.nan, "expected η ≥ 0"),
    ("lr", -1.0, "expected η ≥ 0"),
    ("lr", 1e300, "expected η ≥ 0, finite in float32"),
    ("lr", torch.tensor(-1.0), "expected η ≥ 0"),
    ("lr", torch.ones(2), "expected a number or a 0-dim tensor"),
    ("lr", None, "expected a number"),
    ("momentum", 2.0, "expected μ in"),
    ("momentum", math.nan, "expected μ in"),
    ("momentum", "much", "expected a number"),
    ("weight_decay", -1.0, "expected 0 or more"),
    ("weight_decay", None, "expected a number"),
    ("average", 1.0, "expected None, or the largest weight"),
]


@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(2)], ids=["backward", "closure"])
@pytest.mark.parametrize(("option", "value", "message"), NONSENSE, ids=[f"{k}={v}" for k, v, _ in NONSENSE])
def test_options_that_were_set_to_nonsense_between_two_steps_are_refused(option, value, message, solver):
    model, x, y = mlp(), torch.ones(4, 5), torch.tensor([0, 1, 2, 0])
    optimizer = ProxOptimizer(MultiClassHinge(), solver, model.parameters(), lr=0.5, momentum=0.9, average=0.9)
    optimizer.step(lambda: optimizer.loss(model(x), y))
    optimizer.loss(model(x), y).backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.param_groups[0][option] = value
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.step() if solver.needs_graph is False else optimizer.step(lambda: optimizer.loss(model(x), y))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_schedule_to_0_may_end_below_it_by_rounding():
    model = mlp()
    optimizer = fresh(model, lr=0.7)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.3, end_factor=0.0, total_iters=28)
    rates = []
    for _ in range(28):
        take_step(model, optimizer)
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    take_step(model, optimizer)
    assert abs(rates[-1]) < 1e-15


def test_the_state_of_another_metric_is_refused():
    for theirs, mine in ((Diagonal(), None), (None, Diagonal())):
        optimizer = fresh(mlp(), metric=mine)
        with pytest.raises(ValueError, match="or was saved with another metric"):
            optimizer.load_state_dict(stepped(metric=theirs).state_dict())
        assert not optimizer.state


def test_a_state_without_tensors_loads_into_another_metric_which_begins_afresh():
    """Nothing of the Euclidean metric is in it, so nothing can be mistaken for something else."""
    theirs = stepped(momentum=0.0, lr=0.25).state_dict()
    assert not theirs["state"]
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(mlp())
    loaded, made = fresh(models[0], metric=Diagonal()), fresh(models[1], metric=Diagonal(), momentum=0.0, lr=0.25)
    loaded.load_state_dict(theirs)
    for _ in range(3):
        take_step(models[0], loaded)
        take_step(models[1], made)
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("z", math.nan, "the velocity of parameter 0 contains NaN or infinite values"),
        ("v", math.inf, "the second moment of parameter 0 contains NaN or infinite values"),
        ("average", math.nan, "the average of parameter 0 contains NaN"),
        ("t", -3.0, "expected 0 or more"),
        ("t", math.nan, "expected a tensor of one finite number"),
    ],
)
def test_a_state_without_numbers_is_refused(name, value, message):
    optimizer = stepped(metric=Diagonal(), average=0.9)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0][name].fill_(value)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize(
    "state",
    [
        *(None, 3, [], {}, {"state": {}}, {"state": 3, "param_groups": []}, {"state": {}, "param_groups": 3}),
        *({"state": {}, "param_groups": [3]}, {"state": {0: 3}, "param_groups": [{}]}),
    ],
    ids=str,
)
def test_what_is_no_state_at_all_is_refused(state):
    with pytest.raises(ValueError, match="state_dict"):
        fresh(mlp()).load_state_dict(state)


def test_a_state_that_says_auto_has_its_numbers():
    saved = copy.deepcopy(stepped(lr="auto").state_dict())
    fresh(mlp(), lr="auto").load_state_dict(saved)
    saved["param_groups"][0]["max_distance"] = None
    with pytest.raises(ValueError, match="'max_distance' of group 0 is None; expected a tensor"):
        fresh(mlp(), lr="auto").load_state_dict(saved)


@pytest.mark.parametrize("loss", ["much", 1j, [1.0], torch.tensor(1j)], ids=str)
def test_a_value_that_is_no_number_is_refused(loss):
    model = mlp()
    optimizer = fresh(model)
    optimizer.loss(model(torch.ones(1, 5)), torch.tensor([0])).backward()
    with pytest.raises(TypeError, match="expected a real number, or a tensor of one"):
        optimizer.step(loss=loss)


@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(), BlockFW()], ids=lambda solver: type(solver).__name__)
def test_a_sparse_gradient_is_named(solver):
    model, y = nn.Embedding(5, 3, sparse=True), torch.tensor([0, 1, 2])
    optimizer = ProxOptimizer(MultiClassHinge(), solver, model.parameters())
    with pytest.raises(RuntimeError, match="a gradient is sparse; proxsvm needs dense ones"):
        optimizer.step(lambda: optimizer.loss(model(y), y))


def test_parameters_of_8_bits_are_refused():
    with pytest.raises(TypeError, match="of at least 16 bits"):
        ProxOptimizer(MultiClassHinge(), SingleStepFW(), [torch.zeros(3).to(torch.float8_e4m3fn)])


def test_an_optimizer_that_was_made_before_its_model_is_told_so():
    """``to_empty()`` makes new parameters: without a word the old ones, which nobody uses, would be trained."""
    with torch.device("meta"):
        model = nn.Linear(5, 3)
    optimizer = fresh(model)
    model.to_empty(device="cpu")
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    with pytest.raises(RuntimeError, match=r"on the meta device.*Create the optimizer after that"):
        take_step(model, optimizer)


@pytest.mark.parametrize("fused", [None, False])
def test_a_step_that_is_refused_is_not_counted(fused):
    """The average of another shape is found before the count of steps changes."""
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), [w], lr=0.1, average=0.9, fused=fused)
    w.grad = torch.ones(3)
    optimizer.step(loss=1.0)
    optimizer.state[w]["average"] = torch.ones(2)
    before = w.detach().clone()
    with pytest.raises(RuntimeError, match="the average of parameter 0 has shape"):
        optimizer.step(loss=1.0)
    assert optimizer.state[w]["t"] == 1
    assert torch.equal(w, before)
