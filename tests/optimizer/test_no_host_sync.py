"""Nothing is lost: no host synchronisation, bad input refused, NaN never reaches the weights."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.calls import Calls
from proxsvm import ProxOptimizer as RealOptimizer
from proxsvm import ProxProblem
from proxsvm.losses import GridHinge, L1Regression, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean, Kronecker
from proxsvm.solvers import SingleStepFW
from tests.cases import LOSSES, MODELS, K, setting, vector
from tests.cases import PaperOptimizer as ProxOptimizer

# Gradients are poisoned by hand here, which the optimizer notices.
pytestmark = pytest.mark.filterwarnings("ignore:a gradient was changed:UserWarning")


# A fake tensor has no values: reading one raises, as reading from an accelerator would make the host wait.


def fake_step(loss, **options):
    """Two steps and an evaluation, on fake tensors: whatever would wait for the device raises."""
    criterion = loss.loss()  # its constructor reads its options
    with FakeTensorMode(allow_non_fake_inputs=True):
        case = setting(dataclasses.replace(loss, loss=lambda: criterion), MODELS[1])
        optimizer = ProxOptimizer(case.loss, SingleStepFW(), case.model.parameters(), **options)
        for _ in range(2):
            optimizer.zero_grad()
            case.value().backward()
            value = optimizer.step()
            optimizer.eval()
            optimizer.train()
        optimizer.step(case.value)
    return value, optimizer.last.gamma


ON_DEVICE = [
    {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01},
    {"lr": 0.5, "metric": Diagonal(), "average": 0.9, "momentum": 0.9, "max_grad_norm": 1.0},
    {"lr": "auto", "metric": Diagonal(), "average": 0.9},
    {"lr": "auto", "metric": Diagonal(), "average": 0.9, "memory": 0.9, "weight_decay": 0.01},
]


@pytest.mark.parametrize("loss", [case for case in LOSSES if case.loss is not GridHinge], ids=repr)  # SciPy's cuts
def test_a_loss_never_waits_for_the_device(loss):
    for scalar in fake_step(loss, **ON_DEVICE[0]):
        assert scalar.shape == ()


@pytest.mark.parametrize("options", ON_DEVICE[1:], ids=["diagonal", "auto", "memory"])
def test_the_single_step_never_waits_for_the_device(options):
    for scalar in fake_step(LOSSES[1], **options):
        assert scalar.shape == ()


def test_a_warm_up_that_begins_with_zero_does_not_count_for_the_bases():
    """The eigenvectors are found at the first step that is taken; a device cannot be asked whether one was."""
    with FakeTensorMode():
        w = nn.Parameter(torch.ones(3, 4))
        optimizer = RealOptimizer(L1Regression(), SingleStepFW(), [w])
        for factor in (0.0, 0.5):
            w.grad = torch.ones(3, 4)
            optimizer.param_groups[0]["lr"] = factor
            optimizer.step(loss=1.0)
            assert optimizer.state[w]["age"] == (factor > 0)


def test_the_guard_of_these_tests_can_fail():
    with pytest.raises(Exception, match="_local_scalar_dense"), FakeTensorMode():
        float(torch.ones(()))


@pytest.mark.parametrize(
    ("options", "ceiling"),
    [
        ({"momentum": 0.9, "weight_decay": 1e-4}, 45),
        ({"momentum": 0.9, "weight_decay": 1e-4, "metric": Diagonal(), "average": 0.99}, 70),
    ],
    ids=["euclidean", "diagonal"],
)
@pytest.mark.parametrize("layers", [2, 20])
@pytest.mark.parametrize("grouped", [False, True], ids=["one group", "a group each"])
def test_the_calls_of_a_step_do_not_depend_on_the_number_of_tensors_and_groups(options, ceiling, layers, grouped):
    with FakeTensorMode():
        model, criterion = nn.Sequential(*[nn.Linear(3, 3) for _ in range(layers)]), L1Regression()
        groups = [{"params": [p]} for p in model.parameters()] if grouped else model.parameters()
        optimizer = ProxOptimizer(criterion, SingleStepFW(), groups, 0.01, **options)
        for _ in range(2):
            optimizer.zero_grad()
            criterion(model(torch.ones(2, 3)), torch.zeros(2, 3)).backward()
            with Calls() as calls:
                optimizer.step()
    assert len(calls.names) <= ceiling, calls.names


def poison(what, case, optimizer, bad):
    """Take one step with a bad loss, gradient or activation."""
    optimizer.zero_grad()
    if what == "loss":
        case.value().backward()
        optimizer.step(loss=torch.tensor(bad))
    elif what == "gradient":
        case.value().backward()
        next(case.model.parameters()).grad.view(-1)[0] = bad
        optimizer.step()
    else:
        case.x = case.x.clone()
        case.x.view(-1)[0] = bad
        if what == "input":
            case.value().backward()
        optimizer.step(*[case.value] if what == "closure" else [])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("what", ["loss", "gradient", "input", "closure"])
@pytest.mark.parametrize("fused", [None, False, True])
@pytest.mark.parametrize("loss", [LOSSES[0], LOSSES[1], LOSSES[7]], ids=repr)
def test_a_bad_step_is_skipped_bit_for_bit_and_counted(what, bad, loss, fused):
    case = setting(loss, MODELS[1])
    optimizer = ProxOptimizer(case.loss, SingleStepFW(), case.model.parameters(), 0.1, 0.9, 0.01, fused=fused)
    optimizer.step(case.value)
    weights = [p.detach().clone() for p in case.model.parameters()]
    velocity = copy.deepcopy(optimizer.state_dict()["state"])
    poison(what, copy.copy(case), optimizer, bad)
    assert optimizer.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(weights, case.model.parameters(), strict=True))
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(velocity[i]["z"], after[i]["z"]) for i in velocity)
    optimizer.step(case.value)  # and training goes on
    assert optimizer.skipped == 1
    assert not any(torch.equal(a, b) for a, b in zip(weights, case.model.parameters(), strict=True))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", [Euclidean(), Diagonal(), Kronecker()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_infinite_gradient_is_skipped_without_a_warning(metric, dtype):
    """Of both signs: NumPy warns of inf − inf, and of what float32 cannot hold."""
    params = [nn.Parameter(torch.ones(3, 3, dtype=dtype)) for _ in range(2)]
    options = {"lr": "auto", "memory": 0.9, "metric": metric, "average": 0.9, "weight_decay": 0.01}
    optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), params, **options)
    for size in (1.0, torch.inf, torch.finfo(dtype).max, 1.0):
        for p, sign in zip(params, (1, -1), strict=True):
            p.grad = torch.full_like(p, sign * size)
        optimizer.step(loss=1.0)
    assert optimizer.skipped in (1, 2)  # the square of the largest number is infinite, too
    assert all(p.isfinite().all() for p in params)


def test_nonfinite_raise():
    case = setting(LOSSES[0], MODELS[1])
    optimizer = ProxOptimizer(case.loss, SingleStepFW(), case.model.parameters(), 0.1, nonfinite="raise")
    weights = vector(case.model)
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        poison("loss", case, optimizer, float("nan"))
    assert torch.equal(weights, vector(case.model))


def test_bad_problems():
    w, x, classes, loss = torch.zeros(2, K, requires_grad=True), torch.randn(3, 2), torch.arange(3), MultiClassHinge()
    make, scores, each = ProxProblem.from_scores, x @ w, MultiClassHinge(reduction="none")
    rates = (-1.0, math.nan, math.inf, torch.tensor(-1.0))
    for act, message in (
        (lambda: make(loss, scores, classes, [w]), "no lr"),
        (lambda: make(loss, scores, classes, iter([]), lr=1.0), "params is empty"),
        (lambda: make(loss, scores.detach(), classes, [w], lr=1.0), "carry no graph"),
        (lambda: make(loss, scores, classes, [w, x], lr=1.0), r"parameters \[1\] do not require a gradient"),
        (lambda: make(loss, scores, classes, [w, {"params": [w]}], lr=1.0), "mixes"),
        (lambda: make(loss, scores, classes, [w], lr=1.0, sample_weight=[1.0]), "is a list; expected a tensor"),
        (lambda: loss(scores, classes, np.ones(3)), "sample_weight is a ndarray; expected a tensor"),
        (lambda: make(each, scores, classes, [w], lr=1.0), "not 'none'"),
        (lambda: ProxProblem.from_features(loss, x, classes, lr=1.0, weight_decay=-0.1), "is -0.1; expected 0 or more"),
        *((lambda lr=lr: make(loss, scores, classes, [w], lr=lr), r"lr is .*; expected η ≥ 0, finite") for lr in rates),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            act()
