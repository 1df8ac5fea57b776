"""Foreign states, a value in the place of a closure, and what else is refused in words that help."""

import copy
import math
import re

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from proxsvm import ProxOptimizer as RealOptimizer
from proxsvm import follow, losses
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.optimizer.groups import TWINS
from proxsvm.solvers import BlockFW, MultiStepFW, SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.cases import differentiate, mlp, twins, vector
from tests.optimizer.test_faults import same
from tests.optimizer.test_optimizer import SCHEDULERS, optimizer_for


def fresh(model: nn.Module, **options) -> ProxOptimizer:
    return optimizer_for(model, **{"lr": 0.5, "momentum": 0.9, **options})


def begun(**options) -> tuple[nn.Module, ProxOptimizer]:
    model = mlp()
    return model, fresh(model, **options)


def stepped(**options) -> ProxOptimizer:
    model, optimizer = begun(**options)
    take_step(model, optimizer)
    return optimizer


def take_step(model: nn.Module, optimizer: ProxOptimizer) -> None:
    differentiate(optimizer, model, torch.ones(4, 5), torch.tensor([0, 1, 2, 0]))
    optimizer.step()


@pytest.mark.parametrize("other", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad])
def test_the_state_of_another_optimizer_is_refused(other):
    model, optimizer = begun()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="it is the state of another optimizer"):
        optimizer.load_state_dict(other(model.parameters(), lr=0.3).state_dict())
    assert optimizer.state_dict() == before


def test_a_closure_of_another_loss_names_the_ways_out():
    model, (x, y) = mlp(), (torch.randn(4, 5), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ValueError, match=r"three ways out.*CrossEntropy.*loss=value.*compute_loss_func"):
        fresh(model).step(lambda: nn.functional.cross_entropy(model(x), y))


def test_a_schedule_to_0_may_end_below_it_by_rounding():
    model, optimizer = begun(lr=0.7)
    schedule = lr_scheduler.LinearLR(optimizer, start_factor=0.3, end_factor=0.0, total_iters=28)
    for _ in range(28):
        take_step(model, optimizer)
        schedule.step()
    take_step(model, optimizer)
    assert abs(optimizer.param_groups[0]["lr"]) < 1e-15


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
    model, twin = twins()
    loaded, made = fresh(model, metric=Diagonal()), fresh(twin, metric=Diagonal(), momentum=0.0, lr=0.25)
    loaded.load_state_dict(theirs)
    for _ in range(3):
        take_step(model, loaded)
        take_step(twin, made)
    assert torch.equal(vector(model), vector(twin))


@pytest.mark.parametrize("loss", ["much", 1j, [1.0], torch.tensor(1j)], ids=str)
def test_a_value_that_is_no_number_is_refused(loss):
    model, optimizer = begun()
    optimizer.loss(model(torch.ones(1, 5)), torch.tensor([0])).backward()
    with pytest.raises(TypeError, match="expected a real number, or a tensor of one"):
        optimizer.step(loss=loss)


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


# Options: at construction, set between two steps, and in a state.

NONSENSE = [
    ("lr", math.nan, "lr is nan; expected η ≥ 0"),
    ("lr", -1.0, "lr is -1.0; expected η ≥ 0"),
    ("lr", 1e300, "expected η ≥ 0, finite in float32"),
    ("lr", torch.tensor(-1.0), "expected η ≥ 0"),
    ("lr", torch.ones(2), r"shape \(2,\); expected a number or a 0-dim tensor"),
    ("lr", None, "expected a number"),
    ("lr", "fast", "expected a number"),
    ("momentum", 2.0, "momentum is 2.0; expected μ in"),
    ("momentum", math.nan, "expected μ in"),
    ("weight_decay", -1.0, "weight_decay is -1.0; expected 0 or more"),
    ("weight_decay", None, "expected a number"),
    ("average", 1.0, "expected None, or the largest weight"),
    ("average", "much", "expected a number"),
]


@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(2)], ids=["backward", "closure"])
@pytest.mark.parametrize(("option", "value", "message"), NONSENSE, ids=[f"{k}={v}" for k, v, _ in NONSENSE])
def test_options_that_are_nonsense_are_refused(option, value, message, solver):
    model, x, y = mlp(), torch.ones(4, 5), torch.tensor([0, 1, 2, 0])
    options = {"lr": 0.5, "momentum": 0.9, "average": 0.9}
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer_for(model, solver, **{**options, option: value})
    optimizer = optimizer_for(model, solver, **options)
    optimizer.step(lambda: optimizer.loss(model(x), y))
    differentiate(optimizer, model, x, y)
    before, saved = vector(model), copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0][option] = value
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    optimizer.param_groups[0][option] = value
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.step() if solver.needs_graph is False else optimizer.step(lambda: optimizer.loss(model(x), y))
    assert torch.equal(vector(model), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonfinite": "ignore"}, "expected 'skip' or 'raise'"),
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0"),
        ({"max_grad_norm": "1"}, "max_grad_norm is '1'"),
        ({"process_group": "world"}, "process_group is 'world'"),
        ({"fused": "yes"}, "fused is 'yes'"),
        ({"memory": 1.0, "momentum": 0.0}, "memory is 1.0; expected μ in"),
        ({"memory": 0.9}, "expected one of them"),
        ({"solver": MultiStepFW(3), "max_grad_norm": 1.0}, "max_grad_norm bounds the one gradient"),
    ],
    ids=str,
)
def test_options_of_the_whole_optimizer_that_are_nonsense(options, message):
    options = {"solver": SingleStepFW(), "momentum": 0.9, **options}
    with pytest.raises((ValueError, TypeError), match=message):
        ProxOptimizer(MultiClassHinge(), params=mlp().parameters(), **options)


LINE = r"write ProxOptimizer\({}, SingleStepFW\(\), model\.parameters\(\)\)"


@pytest.mark.parametrize("make", [lambda theirs: theirs(), lambda theirs: theirs], ids=["instance", "class"])
@pytest.mark.parametrize("theirs", TWINS)
def test_a_loss_of_torch_names_its_twin(theirs, make):
    twin = TWINS[theirs]
    assert isinstance(getattr(losses, twin[:-2])(), losses.ConvexLoss)
    with pytest.raises(TypeError, match=rf"proxsvm\.losses\.{re.escape(twin)}: {LINE.format(re.escape(twin))}"):
        ProxOptimizer(make(getattr(nn, theirs)), SingleStepFW(), mlp().parameters())


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (lambda params: (params,), "loss is a generator"),
        (lambda params: (list(params),), "loss is a list"),
        (lambda params: (MultiClassHinge, SingleStepFW(), params), r"MultiClassHinge.*a class: add \(\)"),
        (lambda params: (MultiClassHinge(), params), "solver is a generator"),
        (lambda params: (MultiClassHinge(),), "solver is a NoneType"),
        (lambda params: (MultiClassHinge(), SingleStepFW, params), r"a class: add \(\)"),
    ],
)
def test_the_first_line_that_everyone_writes_shows_the_right_one(arguments, given):
    """As for torch's own optimizers; without a solver; with its class."""
    with pytest.raises(TypeError, match=f"{given}.*{LINE.format('.*')}"):
        RealOptimizer(*arguments(mlp().parameters()), lr=1e-3)


def test_duplicated_and_empty_parameters_are_refused():
    p = nn.Parameter(torch.zeros(2))
    for params, error, match in (
        ([{"params": [p]}, {"params": [p]}], ValueError, "more than one parameter group"),
        ([], ValueError, "empty parameter list"),
        ([2 * p], ValueError, "non-leaf"),
        ([{"params": {p}}], TypeError, "ordered"),
        (p, TypeError, "iterable"),
    ):
        with pytest.raises(error, match=match):
            ProxOptimizer(MultiClassHinge(), SingleStepFW(), params)


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR", "SWALR"])
def test_a_scheduler_with_a_rate_of_its_own_is_refused_for_an_automatic_one(name):
    model, optimizer = begun(lr="auto", momentum=0.0)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 10)  # which multiplies
    take_step(model, optimizer)
    schedule.step()
    take_step(model, optimizer)
    optimizer = fresh(model, lr="auto", momentum=0.0, memory=0.9)  # which the momentum that they set does not fit
    SCHEDULERS[name](optimizer)
    before = vector(model)
    with pytest.raises(ValueError, match="use one that multiplies"):
        take_step(model, optimizer)
    assert torch.equal(vector(model), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["state"][0]["z"].fill_(math.nan), "'z' of parameter 0 contains NaN or infinite values"),
        (lambda s: s["state"][0]["v"].fill_(math.inf), "'v' of parameter 0 contains NaN or infinite values"),
        (lambda s: s["state"][0].update(t=torch.ones(2)), r"'t' of parameter 0 is \(2,\), torch.float64; expected"),
        (lambda s: s["state"][0].update(z=torch.zeros(3)), r"'z' of parameter 0 is \(3,\), torch.float64; expected"),
        (lambda s: s["state"][0].update(z=s["state"][0]["z"].float()), "torch.float32; expected"),
        (lambda s: s["state"][0].update(average=3.0), r"'average' of parameter 0 is 3\.0; expected a tensor"),
        (lambda s: s["state"][0].update(ema=torch.zeros(2)), "'ema'.*expected"),
        (lambda s: s["state"].update({99: {"z": torch.zeros(3)}}), "parameter 99, which is in none of its groups"),
        (lambda s: s["state"].update({0: 3}), "the state of parameter 0"),
        (lambda s: s["param_groups"].append(s["param_groups"][0]), "parameter groups"),
        (lambda s: s["param_groups"].pop(), "parameter groups"),
        (lambda s: s["param_groups"][0]["params"].pop(), "build the optimizer as it was"),
        (lambda s: s["param_groups"][0].pop("momentum"), "lacks"),
        (lambda s: s["param_groups"][0].update(max_distance=None), "'max_distance' of group 0 is None"),
        (lambda s: s.pop("param_groups"), "expected a state_dict"),
        (lambda s: s.update(param_groups=3), "expected a state_dict"),
        (lambda s: s.clear(), "expected a state_dict"),
    ],
)
def test_a_wrong_state_dict_is_refused_and_changes_nothing(change, message):
    model, optimizer = begun(metric=Diagonal(), average=0.9)
    take_step(model, optimizer)
    before, saved = (copy.deepcopy(optimizer.state_dict()) for _ in range(2))
    change(saved)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert same(before, optimizer.state_dict())


def test_keys_of_the_state_that_are_no_parameters_are_the_users_own():
    model, optimizer = begun(metric=Diagonal(), average=0.9)
    optimizer.state["note"], optimizer.state["count"] = {"of": "a hook"}, 3
    follow(model, optimizer)
    take_step(model, optimizer)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    model.eval()
    take_step(model.train(), optimizer)
    assert (optimizer.state["note"], optimizer.state["count"]) == ({"of": "a hook"}, 3)


@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(), BlockFW()], ids=lambda solver: type(solver).__name__)
def test_a_sparse_gradient_is_named(solver):
    model, y = nn.Embedding(5, 3, sparse=True), torch.tensor([0, 1, 2])
    optimizer = ProxOptimizer(MultiClassHinge(), solver, model.parameters())
    with pytest.raises(RuntimeError, match="a gradient is sparse; proxsvm needs dense ones"):
        optimizer.step(lambda: optimizer.loss(model(y), y))
