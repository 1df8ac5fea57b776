"""Every metric: the step is the plain reference's, γ the best one, D ≤ P* ≤ P; what the optimizer keeps is whole."""

from __future__ import annotations

import copy
import io
import math
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from proxsvm import ProxOptimizer, ProxProblem, checkpoint
from proxsvm.losses import CrossEntropy, L1Regression, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import METRICS, MODELS, SOLVERS, Coupled, K, each_loss, each_metric, mlp, setting
from tests.optimizer.test_optimizer import batches
from tests.reference import PlainStep

KINDS = [{"fused": None}, {"fused": False}]


def train(model, optimizer, steps=10, **step):
    for x, y in batches(steps, n=12):
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step(**step)
    return parameters_to_vector(model.parameters()).detach().clone()


def two_groups(model, metric=None, other=None, **options):
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), **options}]
    if other is not None:
        groups[1]["metric"] = other
    return groups if metric is None else [{**groups[0], "metric": metric}, groups[1]]


# Against the plain reference, in the paper's letters.


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lr", [0.01, "auto"])
@pytest.mark.parametrize("metric", [True, False])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_it_is_the_plain_reference_for_100_steps(kind, lr, metric, momentum, decay):
    model, twin = mlp(), mlp()
    twin.load_state_dict(model.state_dict())
    criterion = CrossEntropy()
    optimizer = ProxOptimizer(
        criterion,
        SingleStepFW(),
        model.parameters(),
        lr,
        momentum,
        decay,
        metric=Diagonal() if metric else Euclidean(),
        average=0.95,
        **kind,
    )
    plain = PlainStep(twin.parameters(), lr, momentum, decay, metric=metric, average=0.95)
    assert_alike_for_100_steps(model, optimizer, twin, plain)


def assert_alike_for_100_steps(model, optimizer, twin, plain):
    """Every other step is told a smaller value, so that γ is below 1 where η is too small to make it so."""
    gammas = []
    for t, (x, y) in enumerate(batches(100, n=12)):
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        twin.zero_grad()
        value = nn.functional.cross_entropy(twin(x), y)
        value.backward()
        told = value.detach() * (1e-4 if t % 2 else 1.0)
        optimizer.step(loss=told if t % 2 else None)
        plain.step(told)
        gammas.append(plain.gamma)
        assert float(optimizer.last.gamma) == pytest.approx(plain.gamma, abs=1e-10)
    assert sum(0 < gamma < 1 for gamma in gammas) >= 10
    expected = parameters_to_vector(twin.parameters())
    torch.testing.assert_close(parameters_to_vector(model.parameters()), expected, atol=1e-10, rtol=0)
    averages = [optimizer.state[p]["average"] for p in model.parameters()]
    torch.testing.assert_close(averages, plain.mean, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lr", [(0.01, 0.3), ("auto", "auto"), ("auto", 0.3), (0.01, "auto")], ids=str)
def test_two_groups_with_two_metrics_are_the_plain_reference_for_100_steps(kind, lr):
    model, twin = mlp(), mlp()
    twin.load_state_dict(model.state_dict())
    options = {"lr": lr, "momentum": (0.9, 0.5), "weight_decay": (0.01, 0.002), "metric": (Diagonal(), Euclidean())}
    layers = enumerate((model[0], model[2]))
    groups = [{"params": part.parameters(), **{k: v[i] for k, v in options.items()}} for i, part in layers]
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), groups, average=0.95, **kind)
    lrs, mu, decay, metric = ([a, a, b, b] for a, b in (lr, (0.9, 0.5), (0.01, 0.002), (True, False)))
    plain = PlainStep(twin.parameters(), lrs, mu, decay, metric=metric, average=0.95)
    assert_alike_for_100_steps(model, optimizer, twin, plain)


def test_without_momentum_and_decay_it_is_momo_adam():
    """MoMo-Adam with β₁ = 0: τ = min(η, loss/⟨g, M⁻¹g⟩). Its decay divides by 1 + ηλ where ours multiplies by 1 − ηλ,
    and its momentum averages gradients and values, where γ here is exact for the batch at hand."""
    momo = pytest.importorskip("momo")
    model, twin = mlp(), mlp()
    twin.load_state_dict(model.state_dict())
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), 0.3, metric=Diagonal())
    peer = momo.MomoAdam(twin.parameters(), lr=0.3, betas=(0.0, 0.999), eps=1e-8)
    gammas = []
    for x, y in batches(100, n=12):
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step()
        gammas.append(float(optimizer.last.gamma))
        twin.zero_grad()
        value = nn.functional.cross_entropy(twin(x), y)
        value.backward()
        peer.step(loss=value)
    assert min(gammas) < 1
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_two_groups_with_two_metrics_share_one_gamma(kind):
    """A problem by hand, with M formed, gives the step of the optimizer, whose kernels form nothing."""
    model = mlp()
    groups = two_groups(model, Diagonal(eps=1e-3), Euclidean(), lr=0.3, weight_decay=0.1)
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups, lr=0.05, weight_decay=0.01, **kind)
    (x, y), *_ = batches(1, n=12)
    by_hand = [{**g, "lr": lr, "weight_decay": d} for g, lr, d in zip(groups, (0.05, 0.3), (0.01, 0.1), strict=True)]
    by_hand = [{**g, "params": list(p.parameters())} for g, p in zip(by_hand, (model[0], model[2]), strict=True)]
    problem = ProxProblem.from_scores(MultiClassHinge(), model(x), y, by_hand)
    point = SingleStepFW().solve(problem)
    expected = [w.detach() + d for w, d in zip(problem.params, problem.displacement(point), strict=True)]
    dual = float(problem.dual(point))
    optimizer.loss(model(x), y).backward()
    optimizer.step()
    torch.testing.assert_close([p.detach() for p in model.parameters()], expected, atol=1e-12, rtol=0)
    assert float(optimizer.last.gamma) == pytest.approx(float(point.gamma), rel=1e-12)
    assert float(optimizer.last.dual) == pytest.approx(dual, rel=1e-10)


def test_a_diagonal_of_ones_is_euclidean_bit_for_bit():
    found = []
    for metric in (Diagonal(beta2=0.0, eps=1e-300), Euclidean()):
        w = nn.Parameter(torch.linspace(-1, 1, 7))
        optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), [w], 0.3, 0.9, 0.01, metric=metric)
        for k in range(5):
            w.grad = torch.ones(7) * (-1) ** k  # v' = 1, so M = 1
            optimizer.step(loss=0.7)
        found.append(w.detach().clone())
    assert torch.equal(*found)


# Certificates.


@each_loss
@each_metric
def test_the_dual_bounds_hold_in_every_metric(loss, metric):
    case = setting(loss, MODELS[1])
    problem = case.problem(lr=0.3, weight_decay=0.05, two=True, metric=metric)
    best = ExactQP().solve(problem)
    exact = float(problem.dual(best))
    slack = 1e-6 * max(1.0, abs(exact))
    assert float(problem.gap(best)) <= 1e-5 * max(1.0, abs(exact))
    for solver in SOLVERS:
        point = solver.solve(problem)
        assert float(problem.dual(point)) <= exact + slack
        assert exact <= float(problem.primal(point)) + slack
        assert float(problem.gap(point)) >= -slack


PRIMAL = {
    "hinge": (MultiClassHinge(), lambda cp, u, y: cp.max(u + (1 - y), axis=1) - cp.sum(cp.multiply(u, y), axis=1)),
    "cross-entropy": (CrossEntropy(), lambda cp, u, y: cp.log_sum_exp(u, axis=1) - cp.sum(cp.multiply(u, y), axis=1)),
}


def dense(metric, params, gradient):
    """M of a first step as a matrix, by its definition: v̂ = g²."""
    if isinstance(metric, Diagonal):
        return torch.diag(gradient.abs() + metric.eps)
    block = {Euclidean: 0.0, Coupled: 3.0}[type(metric)]
    sizes = [p.numel() for p in params]
    return torch.block_diag(*(torch.eye(n) + block / n for n in sizes))


@pytest.mark.parametrize("name", PRIMAL)
@each_metric
def test_the_exact_value_is_that_of_the_primal_written_out(metric, name):
    """P* = min over d of ½⟨d, M d⟩/η + decay ⟨M w, d⟩ + the mean of ℓ(u + J d), in cvxpy, of nothing but M, u and J."""
    cp = pytest.importorskip("cvxpy")
    loss, formula = PRIMAL[name]
    model, (x, y) = mlp(), batches(1, n=5)[0]
    params, lr, decay = list(model.parameters()), 0.3, 0.05
    problem = ProxProblem.from_scores(loss, model(x), y, params, lr=lr, weight_decay=decay, metric=metric)

    def flat(tensors):
        return torch.cat([t.detach().reshape(-1) for t in tensors])

    scores = model(x)
    J = torch.stack([flat(torch.autograd.grad(u, params, retain_graph=True)) for u in scores.reshape(-1)])
    M = dense(metric, params, flat(torch.autograd.grad(loss(scores, y), params)))
    d = cp.Variable(J.shape[1])
    u = scores.detach().numpy() + cp.reshape(J.numpy() @ d, scores.shape, order="C")
    value = cp.sum(formula(cp, u, nn.functional.one_hot(y, K).numpy())) / len(y)
    term = cp.sum_squares(torch.linalg.cholesky(M).T.numpy() @ d) / (2 * lr)
    linear = decay * (M @ flat(params)).numpy() @ d
    best = cp.Problem(cp.Minimize(term + linear + value)).solve(solver="CLARABEL")
    exact = ExactQP().solve(problem)
    assert float(problem.dual(exact)) == pytest.approx(best, abs=1e-6)
    assert float(problem.primal(exact)) == pytest.approx(best, abs=1e-5)


@each_metric
def test_gamma_is_the_best_of_a_line_search(metric):
    model, (x, y) = mlp(), batches(1, n=12)[0]
    problem = ProxProblem.from_scores(
        MultiClassHinge(), model(x), y, model.parameters(), lr=3.0, weight_decay=0.1, metric=metric
    )
    first = problem.first()
    gamma = float(problem.move(problem.start(), first).gamma)
    grid = torch.linspace(0, 1, 20001)
    duals = [float(problem.dual(first.shrunk(float(t)))) for t in grid[:: len(grid) // 200]]
    assert gamma == pytest.approx(float(grid[:: len(grid) // 200][torch.tensor(duals).argmax()]), abs=0.01)


def test_verify_in_a_diagonal_metric():
    model, (x, y) = mlp(), batches(1, n=12)[0]
    problem = ProxProblem.from_scores(CrossEntropy(), model(x), y, model.parameters(), lr=0.1, metric=Diagonal())
    report = verify(problem, CorrectiveFW(max_steps=100, tol=1e-7))
    assert report.ok, report


# What is kept.


@pytest.mark.parametrize("lr", [0.01, "auto"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("way", ["state_dict", "deepcopy", "file"])
def test_training_continues_bit_for_bit(lr, kind, way):
    def fresh():
        torch.manual_seed(0)
        model = mlp()
        options = {"momentum": 0.9, "weight_decay": 0.01, "metric": Diagonal(), "average": 0.9, **kind}
        return model, ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), lr, **options)

    model, optimizer = fresh()
    train(model, optimizer)
    straight = train(model, optimizer)
    model, optimizer = fresh()
    train(model, optimizer)
    if way == "deepcopy":
        model, optimizer = copy.deepcopy((model, optimizer))
    else:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if way == "file":
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        saved = copy.deepcopy(saved)
        model, optimizer = fresh()
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    assert torch.equal(train(model, optimizer), straight)


KILLED = """
import sys, torch
from proxsvm import ProxOptimizer, checkpoint
from tests.metrics.test_metrics import continued
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
for t, model, optimizer in continued(10**6, sys.argv[2]):
    checkpoint.save(sys.argv[1], model=model, optimizer=optimizer, t=t)
    print("saved", flush=True)
"""


def continued(end, lr, model=None, optimizer=None, start=0):
    """Train from one step to another, in the diagonal metric with everything that it keeps."""
    if model is None:
        torch.manual_seed(0)
        model = mlp()
    if optimizer is None:
        options = {"momentum": 0.9, "weight_decay": 0.01, "metric": Diagonal(), "average": 0.9}
        optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), lr, **options)
    data = batches(7, n=12)
    for t in range(start + 1, end + 1):
        x, y = data[t % 7]
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step()
        yield t, model, optimizer


@pytest.mark.parametrize("lr", [0.01, "auto"])
def test_killed_training_resumes_bit_for_bit(lr, tmp_path):
    path = tmp_path / "last.pt"
    script = KILLED.replace("sys.argv[2]", repr(lr))
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "saved\n"
        time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    torch.manual_seed(1)
    _, model, optimizer = next(continued(1, lr, mlp()))
    t = checkpoint.load(path, model=model, optimizer=optimizer)["t"]
    *_, (_, model, optimizer) = continued(t + 5, lr, model, optimizer, t)
    *_, (_, expected, undisturbed) = continued(t + 5, lr)
    state, right = optimizer.state_dict(), undisturbed.state_dict()
    torch.testing.assert_close((model.state_dict(), state), (expected.state_dict(), right), rtol=0, atol=0)


@pytest.mark.parametrize("lr", [0.01, "auto"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.filterwarnings("ignore:a gradient was changed:UserWarning")
def test_a_skipped_step_changes_no_bit(lr, kind):
    model = mlp()
    options = {"momentum": 0.9, "weight_decay": 0.01, "metric": Diagonal(), "average": 0.9, **kind}
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), lr, **options)
    train(model, optimizer)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    (x, y), *_ = batches(1)
    optimizer.zero_grad()
    optimizer.loss(model(x), y).backward()
    model[0].weight.grad[0, 0] = math.nan
    optimizer.step()
    after = model.state_dict(), optimizer.state_dict()
    flat = [torch.utils._pytree.tree_leaves(tree) for tree in (before, after)]
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*flat, strict=True))
    assert int(optimizer.skipped) == 1


def test_half_precision_parameters_keep_their_moments_in_float32():
    model = mlp().bfloat16()
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), 0.01, metric=Diagonal(), average=0.9)
    for x, y in batches(3):
        optimizer.zero_grad()
        optimizer.loss(model(x.bfloat16()), y).backward()
        optimizer.step()
    state = optimizer.state[model[0].weight]
    assert state["v"].dtype == state["average"].dtype == torch.float32
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    state = optimizer.state[model[0].weight]
    assert state["v"].dtype == state["average"].dtype == torch.float32
    assert torch.equal(state["v"], saved["state"][0]["v"])


def test_a_parameter_that_joins_late_has_a_count_of_its_own():
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), 0.01, metric=Diagonal())
    train(model, optimizer, 5)
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    train(model, optimizer, 1)
    assert float(optimizer.state[model[0].weight]["t"]) == 1
    assert float(optimizer.state[model[2].weight]["t"]) == 6
    moved = (model[0].weight.detach() - before).abs()
    assert float(moved.max()) <= 0.01 * 1.001  # at its first step M = |g|: no coordinate moves by more than η


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_parameter_that_has_no_gradient_for_some_steps_keeps_its_count(kind):
    p, q, a, b = (nn.Parameter(torch.ones(3, dtype=torch.double)) for _ in range(4))
    plain = nn.Parameter(torch.ones(3, dtype=torch.double))
    groups = [{"params": [plain], "metric": Euclidean()}, {"params": [p, q]}]
    optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), groups, 1e-3, metric=Diagonal(0.9), **kind)
    adam = torch.optim.Adam([a, b], 1e-3, betas=(0.0, 0.9))
    x = torch.arange(1.0, 4.0, dtype=torch.double)
    for step in range(8):
        both = step in (0, 4, 6, 7)
        optimizer.zero_grad(), adam.zero_grad()
        optimizer.loss(((p + q + plain if both else p + plain) @ x)[None], -100 * x[:1]).backward()
        ((a + b if both else a) @ x).backward()
        optimizer.step(), adam.step()
        assert optimizer.last.gamma == 1
    assert [float(optimizer.state[w]["t"]) for w in (p, q)] == [8, 4]
    torch.testing.assert_close([p, q], [a, b], atol=1e-12, rtol=0)


def test_a_count_that_was_loaded_is_not_shared_with_another_group():
    model, twin = mlp(), mlp()
    options = {"lr": 0.01, "metric": Diagonal(), "average": 0.9}
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(model), **options)
    train(model, optimizer, 2)
    twin.load_state_dict(model.state_dict())
    other = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(twin), **options)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, m in ((optimizer, model), (other, twin)):
        each.param_groups[1]["lr"] = 0.0
        train(m, each, 5)
        each.param_groups[1]["lr"] = 0.01
    assert torch.equal(train(model, optimizer, 2), train(twin, other, 2))
    assert float(other.state[twin[2].weight]["t"]) == 4


@pytest.mark.parametrize("solver", [MultiStepFW(3), CorrectiveFW(3)])
def test_solvers_of_several_steps_learn_the_same_moments(solver):
    model, twin = mlp(), mlp()
    twin.load_state_dict(model.state_dict())
    optimizers = [
        ProxOptimizer(MultiClassHinge(), s, m.parameters(), 0.01, metric=Diagonal())
        for s, m in ((solver, model), (SingleStepFW(), twin))
    ]
    (x, y), *_ = batches(1, n=12)
    for optimizer, m in zip(optimizers, (model, twin), strict=True):
        optimizer.step(lambda o=optimizer, m=m: o.loss(m(x), y))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(optimizers[0].state[p]["v"], optimizers[1].state[q]["v"], atol=1e-14, rtol=0)
        assert float(optimizers[0].state[p]["t"]) == 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_closure_is_clipped_as_a_backward_pass_is(kind):
    (model, twin), options = (mlp(), mlp()), {"lr": 0.2, "metric": Diagonal(), "max_grad_norm": 0.3, **kind}
    twin.load_state_dict(model.state_dict())
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), model.parameters(), **options)
    train(model, optimizer)
    other = ProxOptimizer(MultiClassHinge(), SingleStepFW(), twin.parameters(), **options)
    for x, y in batches(10, n=12):
        other.step(lambda x=x, y=y: other.loss(twin(x), y))
    torch.testing.assert_close(list(twin.parameters()), list(model.parameters()), rtol=0, atol=1e-12)
    assert other.last.gamma == pytest.approx(float(optimizer.last.gamma), abs=1e-12)


def test_clipped_gradients_make_the_moments():
    found = []
    for bound, scale in ((0.5, 1.0), (None, 0.5)):
        w = nn.Parameter(torch.tensor([3.0, 4.0]))
        optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), [w], 0.1, metric=Diagonal(), max_grad_norm=bound)
        w.grad = torch.tensor([0.6, 0.8]) * scale
        optimizer.step(loss=1.0)
        found.append(optimizer.state[w]["v"])
    torch.testing.assert_close(*found, atol=1e-15, rtol=0)


# lr="auto".


def test_schedulers_multiply_the_automatic_eta():
    model = mlp()
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), "auto")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, 1)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    optimizer.param_groups[0]["lr"] = 0.0
    before = parameters_to_vector(model.parameters()).clone()
    assert torch.equal(train(model, optimizer, 1), before)


@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_the_automatic_eta_trains(metric):
    torch.manual_seed(0)
    model = mlp()
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), "auto", 0.9, metric=metric)
    (x, y), *_ = batches(1, n=12)
    first = float(optimizer.loss(model(x), y).detach())
    for _ in range(400):
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step()
    assert float(optimizer.last.loss) < 0.2 * first


@pytest.mark.parametrize("metric", METRICS, ids=repr)
def test_the_automatic_eta_keeps_its_history_when_the_first_group_thaws(metric):
    found = []
    for order in (1, -1):
        torch.manual_seed(0)
        model = mlp()
        optimizer = ProxOptimizer(
            CrossEntropy(), SingleStepFW(), two_groups(model)[::order], "auto", metric=metric, fused=False
        )
        model[0].requires_grad_(False)
        train(model, optimizer, 20)
        model[0].requires_grad_(True)
        found.append(train(model, optimizer, 5))
    torch.testing.assert_close(*found, atol=1e-10, rtol=0)


def test_the_history_of_an_older_state_is_found_in_its_later_group():
    model = mlp()
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(model), "auto")
    train(model, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    first, second = saved["param_groups"]
    for name in ("far", "squares"):
        first[name], second[name] = second[name], first[name]
    expected = copy.deepcopy(model), train(model, optimizer, 1)
    other = ProxOptimizer(CrossEntropy(), SingleStepFW(), two_groups(expected[0]), "auto")
    other.load_state_dict(saved)
    assert torch.equal(train(expected[0], other, 1), expected[1])


# Bad options.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Diagonal(beta2=1.0), r"beta2 is 1\.0; expected a number in \[0, 1\)"),
        (lambda: Diagonal(beta2=-0.1), "beta2 is -0.1"),
        (lambda: Diagonal(eps=0.0), r"eps is 0\.0; expected a number above 0"),
        (lambda: Diagonal(eps=math.nan), "eps is nan"),
    ],
)
def test_bad_options_of_a_metric(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("metric", [Diagonal, "diagonal", 3])
def test_a_metric_is_an_instance(metric):
    model = mlp()
    with pytest.raises(TypeError, match=r"metric is .*expected an instance of a proxsvm\.metrics\.Metric"):
        ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), metric=metric)
    with pytest.raises(TypeError, match="metric is"):
        ProxOptimizer(CrossEntropy(), SingleStepFW(), [{"params": model.parameters(), "metric": metric}])


def test_auto_needs_an_optimizer_and_other_words_are_refused():
    model, (x, y) = mlp(), batches(1)[0]
    with pytest.raises(ValueError, match="'auto' needs an optimizer's history"):
        ProxProblem.from_scores(CrossEntropy(), model(x), y, model.parameters(), lr="auto")
    with pytest.raises(TypeError, match="lr is 'fast'"):
        ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), lr="fast")
