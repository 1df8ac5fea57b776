"""Half precision, mixed precision, loss scaling; and what is refused: complex, sparse, differentiable."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from proxsvm.losses import CrossEntropy, L1Regression, MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import K, differentiate, vector
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_optimizer import batches, train

HALF = [torch.bfloat16, torch.float16]
each_half = pytest.mark.parametrize("dtype", HALF, ids=["bf16", "fp16"])

# Gradients are poisoned and clipped by hand here, which the optimizer notices.
pytestmark = pytest.mark.filterwarnings("ignore:a gradient was changed:UserWarning")


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, K)).to(dtype)


def make(model, solver=None, **options):
    options = {"lr": 2.0, "momentum": 0.5, "weight_decay": 1e-3, **options}
    loss = options.pop("loss", lambda: MultiClassHinge(smooth=True))()
    return ProxOptimizer(loss, solver or SingleStepFW(), model.parameters(), **options)


def data(steps=20, dtype=torch.float32):
    return [(x.to(dtype), y) for x, y in batches(steps, n=12)]


@each_half
def test_norms_of_half_precision_gradients_are_accumulated_in_float32(dtype):
    """‖g‖² is 4·10⁶ here: in fp16 it would be infinite, and γ would be 0."""
    w = nn.Parameter(torch.ones(1000, dtype=dtype))
    optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), [w], lr=1.0)
    optimizer.loss((64 * w.reshape(1, -1)).sum(1, keepdim=True), torch.zeros(1, 1)).backward()
    optimizer.step()
    assert optimizer.last.gamma.dtype == torch.float32
    assert optimizer.last.gamma == pytest.approx(64_000 / (1000 * 64**2), rel=1e-2)
    assert optimizer.last.dual.isfinite()


@pytest.mark.parametrize("lr", [1000.0, "auto"])
def test_a_model_that_is_converted_after_the_optimizer_was_made_keeps_all_digits(lr):
    """The record and what belongs to all groups are of float64, too, from the first step on."""
    found = []
    for early in (True, False):
        model = network().double() if early else network()
        optimizer = make(model, lr=lr, momentum=0.0, memory=0.9, metric=Diagonal(), average=0.9)
        train(optimizer, model.double(), data(10, torch.float64))
        found.append(vector(model))
    torch.testing.assert_close(*found, atol=1e-14, rtol=0)


@each_half
@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(3)], ids=repr)
def test_half_precision_parameters_follow_float32(dtype, solver):
    """γ of each step agrees with that of a float32 copy at the same weights, to the resolution of the dtype."""
    model = network(dtype)
    optimizer = make(model, solver)
    for x, y in data(10, dtype):
        twin = copy.deepcopy(model).float()
        reference = make(twin, solver)
        reference.step(lambda net=twin, x=x, y=y: reference.loss(net(x.float()), y))
        optimizer.step(lambda x=x, y=y: optimizer.loss(model(x), y))
        assert optimizer.last.gamma == pytest.approx(float(reference.last.gamma), abs=0.03)
    assert all(p.dtype == dtype and p.isfinite().all() for p in model.parameters())
    assert all(s["z"].dtype == dtype for s in optimizer.state.values())


def test_bf16_autocast_gives_the_gamma_of_its_own_gradients():
    model = network()
    optimizer = make(model)
    for x, y in data():
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == torch.bfloat16
            value = differentiate(optimizer, model, x, y)
        g, w = parameters_to_vector([p.grad for p in model.parameters()]), vector(model)
        expected = ((value.detach() - 2.0 * 1e-3 * w @ g) / (2.0 * g @ g)).clamp(0, 1)
        optimizer.step()
        assert optimizer.last.gamma == pytest.approx(float(expected), rel=1e-5)


def train_scaled(way, accumulate=1, poison=(), **options):
    """``way``: no scaler, scaler.step alone, or scaler.unscale_ before it."""
    model = network()
    optimizer = make(model, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=4, enabled=way != "plain")
    gammas = []
    for t, (x, y) in enumerate(data()):
        optimizer.zero_grad()
        total = 0.0
        for a, b in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
            value = optimizer.loss(model(a), b)
            scaler.scale(value / accumulate).backward()
            total += value.detach() * (value.new_ones(()) / accumulate)  # as autograd computes it, bit for bit
        if t in poison:
            model[0].weight.grad[0, 0] = float("inf")
        if way == "unscale":
            scaler.unscale_(optimizer)
        scaler.step(optimizer, **({"loss": total} if way == "unscale" else {}))
        scaler.update()
        gammas.append(float(optimizer.last.gamma))
    return vector(model), gammas, int(optimizer.skipped), scaler.get_scale()


@pytest.mark.parametrize("way", ["step", "unscale"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_grad_norm": 0.2},
        {"nonfinite": "raise"},
        {"metric": Diagonal(eps=1e-3), "lr": 1.0, "average": 0.9},
        {"loss": lambda: CrossEntropy(label_smoothing=0.2), "lr": 20.0, "momentum": 0.0},  # which has a lower bound
    ],
)
def test_loss_scaling_changes_nothing(way, accumulate, options):
    if way == "unscale" and "loss" in options:
        pytest.skip("the scale of the recorded bound is unknown then, and it is dropped")
    weights, gammas, skipped, scale = train_scaled(way, accumulate, **options)
    plain, expected, _, _ = train_scaled("plain", accumulate, **options)
    assert gammas == pytest.approx(expected, rel=1e-4)
    assert min(gammas) < 1
    torch.testing.assert_close(weights, plain, atol=1e-5, rtol=0)
    assert skipped == 0
    assert scale > 2**12  # it grew on the way, and γ did not notice


@pytest.mark.parametrize("way", ["step", "unscale"])
@pytest.mark.parametrize("nonfinite", ["skip", "raise"])  # an overflow of the loss scale is no fault
def test_an_infinite_gradient_skips_the_step_and_lowers_the_scale(way, nonfinite):
    weights, _, skipped, _ = train_scaled(way, poison=(3, 7), nonfinite=nonfinite)
    plain, _, also_skipped, _ = train_scaled("plain", poison=(3, 7))
    assert skipped == also_skipped == 2
    torch.testing.assert_close(weights, plain, atol=1e-5, rtol=0)


def test_an_overflow_that_only_the_scaler_saw_is_honoured():
    model = network()
    optimizer = make(model)
    before = vector(model)
    (x, y), *_ = data(1)
    optimizer.loss(model(x), y).backward()
    optimizer.found_inf, optimizer.grad_scale = torch.ones(()), torch.ones(())
    optimizer.step()
    assert torch.equal(before, vector(model))
    assert optimizer.skipped == 1
    del optimizer.found_inf, optimizer.grad_scale
    optimizer.step()
    assert not torch.equal(before, vector(model))


def test_fp16_parameters_with_the_scaler():
    """The gradients of fp16 parameters stay scaled until the update: γ is that of float32 all the same."""
    model = network(torch.float16)
    twin = copy.deepcopy(model).float()
    optimizer, reference = make(model), make(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    (x, y), *_ = data(1)
    scaler.scale(optimizer.loss(model(x.half()), y)).backward()
    scaler.step(optimizer)
    reference.loss(twin(x), y).backward()
    reference.step()
    assert optimizer.last.gamma == pytest.approx(float(reference.last.gamma), rel=1e-2)
    torch.testing.assert_close(vector(model).float(), vector(twin), atol=5e-3, rtol=0)


def test_what_is_refused():
    for param, message in (
        (torch.zeros(2, dtype=torch.complex64), "real floating-point"),
        (torch.zeros(3).to(torch.float8_e4m3fn), "of at least 16 bits"),
        (torch.eye(3).to_sparse().requires_grad_(), "dense"),
    ):
        with pytest.raises(TypeError, match=message):
            ProxOptimizer(MultiClassHinge(), SingleStepFW(), [param])
    with pytest.raises(TypeError, match="differentiable"):
        make(network(), differentiable=True)
    for option in ("differentiable", "maximize"):
        groups = [{"params": list(network().parameters()), option: True}]
        with pytest.raises(ValueError, match=f"{option}=True"):
            ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups)


def test_clipping_in_the_dual_limits_gamma_to_c():
    """delta = min(γ, c) g: the point between the start and the gradient's vertex, and still the best one there."""
    limited = 0
    for x, y in data(10):
        model, plain = network(), network()
        clipped, free = make(model, max_grad_norm=0.2, momentum=0.0), make(plain, momentum=0.0)
        for net, optimizer in ((model, clipped), (plain, free)):
            train(optimizer, net, [(x, y)])
        c = min(1.0, 0.2 / float(parameters_to_vector([p.grad for p in model.parameters()]).norm()))
        assert clipped.last.gamma == pytest.approx(min(float(free.last.gamma), c), rel=1e-5)
        assert clipped.last.loss == free.last.loss
        assert clipped.last.dual <= free.last.dual + 1e-6
        limited += c < free.last.gamma
    assert limited


@pytest.mark.parametrize("start", [1.0, 1e-3])
def test_automatic_eta_leaves_the_start_in_bfloat16(start):
    """With a first distance of 1e-3 the first steps are below the last bit; η grows with the sum of the steps."""
    w = nn.Parameter(torch.full((4,), start, dtype=torch.bfloat16))
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), [w], lr="auto")
    begin = w.detach().clone()
    for _ in range(100):
        w.grad = torch.ones_like(w)
        optimizer.step(loss=1e6)
    assert (w < begin).all()


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("size", [1e9, 1e15, 1e17])
def test_a_huge_gradient_does_not_swallow_the_velocity(size, fused):
    """γ η is tiny, and the step beside the velocity is nothing: z ← 0.9 z."""
    w = nn.Parameter(torch.zeros(3))
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), [w], 0.1, 0.9, fused=fused)
    optimizer.state[w]["z"] = torch.full((3,), 10 / 3)
    w.grad = torch.full((3,), size)
    optimizer.step(loss=1.0)
    torch.testing.assert_close(optimizer.state[w]["z"], torch.full((3,), 3.0))
    torch.testing.assert_close(w.detach(), torch.full((3,), 2.7))
