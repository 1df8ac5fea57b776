"""ProxOptimizer: the trajectory, the three ways of stepping, and its life as a torch optimizer."""

import pickle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import ExactQP, MultiStepFW, SingleStepFW
from tests.cases import (
    LOSSES,
    MODELS,
    K,
    chunks,
    differentiate,
    each_loss,
    each_small_model,
    mlp,
    setting,
    twins,
    vector,
)
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.reference import dfw_step


def batches(steps, n=6):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 5, generator=generator), torch.randint(K, (n,), generator=generator)) for _ in range(steps)]


def train(optimizer, model, data):
    for x, y in data:
        differentiate(optimizer, model, x, y)
        optimizer.step()


def optimizer_for(model, solver=None, loss=None, **options):
    return ProxOptimizer(loss or MultiClassHinge(), solver or SingleStepFW(), model.parameters(), **options)


def begun(solver=None, loss=None, **options):
    """An MLP, its optimizer, and a batch."""
    model = mlp()
    return model, optimizer_for(model, solver, loss, **options), batches(1)[0]


@pytest.mark.parametrize(("eta", "mu", "l2", "smooth"), [(2.0, 0.0, 0.0, False), (0.8, 0.9, 1e-2, True)])
def test_the_plain_reference_agrees_for_100_steps(smooth, mu, l2, eta):
    model, optimizer, _ = begun(loss=MultiClassHinge(smooth=smooth), lr=eta, momentum=mu, weight_decay=l2)
    shapes = [(name, p.shape) for name, p in model.named_parameters()]
    w, gammas = vector(model), []
    z = torch.zeros_like(w)
    for x, y in batches(5, n=12) * 20:
        w.requires_grad_()
        pieces = torch.split(w, [shape.numel() for _, shape in shapes])
        named = {name: piece.view(shape) for (name, shape), piece in zip(shapes, pieces, strict=True)}
        scores = torch.func.functional_call(model, named, (x,))
        w, z, gamma = dfw_step(w, z, scores, y, eta=eta, mu=mu, l2=l2, smooth=smooth)
        train(optimizer, model, [(x, y)])
        assert optimizer.last.gamma == pytest.approx(gamma, abs=1e-10)
        gammas.append(gamma)
    torch.testing.assert_close(vector(model), w, atol=1e-10, rtol=0)
    assert any(0 < gamma < 1 for gamma in gammas)


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_with_gamma_one_it_is_nesterov_sgd(weight_decay):
    model, twin = twins()
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": weight_decay}
    optimizer, sgd = optimizer_for(model, **options), torch.optim.SGD(twin.parameters(), nesterov=True, **options)
    for x, y in batches(100):
        differentiate(optimizer, model, x, y)
        sgd.zero_grad()
        optimizer.loss(twin(x), y).backward()
        optimizer.step(loss=1e6)  # a value so large that γ = 1
        sgd.step()
        assert optimizer.last.gamma == 1
    torch.testing.assert_close(vector(model), vector(twin), atol=1e-10, rtol=0)


@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(5, tol=0.0), ExactQP()], ids=repr)
@pytest.mark.parametrize("metric", [Euclidean(), Diagonal(eps=1e-3)], ids=repr)
@pytest.mark.parametrize("fused", [None, False])
def test_a_step_with_groups_is_the_problems_displacement(solver, metric, fused):
    """A problem by hand, with M formed, gives the step of the optimizer, whose kernels form nothing."""
    case = setting(LOSSES[0], MODELS[1])
    first, second = case.groups(lr=2.0, weight_decay=0.1, two=True)
    groups = [{**first, "metric": metric}, {**second, "metric": Euclidean()}]
    problem = ProxProblem.from_scores(case.loss, case.shape(case.model(case.x)), case.target, groups)
    point = solver.solve(problem)
    dual, before = float(problem.dual(point)), [p.detach().clone() for p in case.model.parameters()]
    expected = [w + d for w, d in zip(before, problem.displacement(point), strict=True)]
    optimizer = ProxOptimizer(case.loss, solver, groups, fused=fused)
    optimizer.step(case.value)
    torch.testing.assert_close([p.detach() for p in case.model.parameters()], expected, atol=1e-7, rtol=0)
    assert float(optimizer.last.dual) == pytest.approx(dual, rel=1e-6)


@each_loss
@each_small_model
def test_a_closure_and_backward_agree(loss, model):
    results = []
    for closure in (False, True):
        case = setting(loss, model)
        optimizer = ProxOptimizer(case.loss, SingleStepFW(), case.groups(0.7, 0.01), momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            if not closure:
                case.value().backward()
            returned = optimizer.step(case.value if closure else None)
        results.append((vector(case.model), returned.detach(), optimizer.last.gamma))
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)


def test_multi_step_after_backward_says_how_to_call_it():
    model, (x, y) = mlp(), batches(1)[0]
    optimizer, before = optimizer_for(model, MultiStepFW(3)), vector(model)
    differentiate(optimizer, model, x, y)
    with pytest.raises(RuntimeError, match=r"optimizer.step\(lambda: criterion\(model\(x\), y\)\)"):
        optimizer.step()
    assert torch.equal(before, vector(model))


def test_a_closure_must_return_the_criterions_own_value():
    model, optimizer, (x, y) = begun()
    with pytest.raises(ValueError, match="does not come straight from a proxsvm loss"):
        optimizer.step(lambda: optimizer.loss(model(x), y) / 2)
    with pytest.raises(ValueError, match="give one of them"):
        optimizer.step(lambda: optimizer.loss(model(x), y), loss=1.0)


def test_step_without_a_loss_is_an_error_and_changes_nothing():
    model, (x, y) = mlp(), batches(1)[0]
    optimizer, before = optimizer_for(model), vector(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="step\\(\\) has no loss value"):
        optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        optimizer.loss(model(x), y)  # leaves no record
    nn.functional.cross_entropy(model(x), y).backward()  # nor does another loss
    with pytest.raises(RuntimeError, match="step\\(\\) has no loss value"):
        optimizer.step()
    assert torch.equal(before, vector(model))


@each_loss
@pytest.mark.parametrize("divide", [True, False])
def test_accumulated_micro_batches_give_the_gamma_of_the_full_batch(loss, divide):
    k = 4
    full, micro = setting(loss, MODELS[1], n=8), setting(loss, MODELS[1], n=8)
    reference = ProxOptimizer(full.loss, SingleStepFW(), full.model.parameters(), lr=2.0, weight_decay=0.1)
    share = k if full.loss.reduction == "sum" else 1  # a sum over the micro-batches is the whole sum already
    (full.value() / share if divide else full.value() * k / share).backward()
    reference.step()
    optimizer = ProxOptimizer(micro.loss, SingleStepFW(), micro.model.parameters(), lr=2.0, weight_decay=0.1)
    optimizer.zero_grad()
    for x, y in zip(micro.x.chunk(k), chunks(micro.target, k), strict=True):
        value = micro.loss(micro.shape(micro.model(x)), y)
        (value / k if divide else value).backward()
    optimizer.step()
    assert optimizer.last.gamma == pytest.approx(float(reference.last.gamma), abs=1e-12)
    torch.testing.assert_close(vector(full.model), vector(micro.model), atol=1e-12, rtol=0)


def test_a_criterion_does_not_keep_its_optimizer_alive_nor_count_twice():
    criterion, model, (x, y) = MultiClassHinge(), mlp(), batches(1)[0]
    for _ in range(5):
        optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters())
    value = criterion(model(x), y)
    value.backward()
    assert optimizer.step() == pytest.approx(float(value.detach()))
    assert len(criterion._forward_hooks) == 1  # those of the four that are gone went with them
    pickle.loads(pickle.dumps(criterion))


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 0.9**t),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=10),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)], optimizer=o
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=2),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float-lr", "tensor-lr"])
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step:UserWarning")  # SequentialLR of torch 2.6
def test_every_scheduler_drives_eta(name, as_tensor):
    model = mlp()
    lr = torch.tensor(0.4) if as_tensor else 0.4
    optimizer = optimizer_for(model, lr=lr, momentum=0.9, weight_decay=1e-3)
    scheduler = SCHEDULERS[name](optimizer)
    rates = []
    for x, y in batches(6):
        train(optimizer, model, [(x, y)])
        rates.append(float(optimizer.param_groups[0]["lr"]))
        scheduler.step(*[1.0] if name == "ReduceLROnPlateau" else [])
    assert len(set(rates)) > 1
    assert vector(model).isfinite().all()


def test_groups_frozen_and_unused_parameters_and_a_late_group():
    body, head, unused = nn.Linear(5, 6), nn.Linear(6, K), nn.Linear(2, 2)
    body.bias.requires_grad_(False)
    model = nn.Sequential(body, nn.ReLU(), head)
    first = {"params": [*body.parameters(), *unused.parameters()], "lr": 0.1}
    groups = [first, {"params": [head.weight], "momentum": 0.5}]
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups, lr=0.2, momentum=0.9, weight_decay=0.1)
    still = [body.bias, *unused.parameters(), head.bias]
    before = [p.clone() for p in still]
    for x, y in batches(2):  # once by backward, once by closure: the same parameters move
        train(optimizer, model, [(x, y)])
        optimizer.zero_grad()
        optimizer.step(lambda x=x, y=y: optimizer.loss(model(x), y))
    assert all(torch.equal(a, b) for a, b in zip(before, still, strict=True))
    assert set(optimizer.state) == {body.weight, head.weight}
    optimizer.add_param_group({"params": [head.bias]})
    train(optimizer, model, batches(1))
    assert not torch.equal(before[-1], head.bias)


def test_last_reports_the_step():
    model, optimizer, (x, y) = begun(MultiStepFW(100, tol=1e-2), lr=1.0)
    problem = optimizer.problem(optimizer.loss(model(x), y))
    point = optimizer.solver.solve(problem)
    dual, gap = float(problem.dual(point)), float(problem.gap(point))
    value = optimizer.step(lambda: optimizer.loss(model(x), y))
    last = optimizer.last
    assert last.loss == value
    assert last.gamma == point.gamma
    assert last.dual == pytest.approx(dual)
    assert last.gap == pytest.approx(gap)
    with pytest.raises(RuntimeError, match="build a new problem after every step"):
        problem.gap(point)
    assert all(isinstance(t, torch.Tensor) and t.dim() == 0 for t in last[:4])
