"""Memory and the Kronecker metric: the shared plain reference, Nesterov, MoMo, dense matrices and cvxpy."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from proxsvm.losses import CrossEntropy
from proxsvm.metrics import Diagonal, Euclidean, Kronecker, Metric
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from tests.cases import LOSSES as CASES
from tests.cases import SMALL_MODELS, Coupled, K, differentiate, each_metric, mlp, setting, twins, vector
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.metrics.test_metrics import KINDS, train
from tests.optimizer.test_optimizer import batches, begun
from tests.reference import PlainStep

METRICS = {"euclidean": Euclidean(), "diagonal": Diagonal(eps=1e-4), "kronecker": Kronecker(eps=1e-3, every=1000)}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lr", [0.05, "auto"])
@pytest.mark.parametrize("metric", METRICS)
def test_it_is_the_shared_reference_for_100_steps(metric, lr, kind):
    model, twin = twins()
    options = {"memory": 0.9, "metric": METRICS[metric], "average": 0.995}
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), lr, **options, **kind)
    plain = PlainStep(twin.parameters(), lr, **options)
    for x, y in batches(100, n=12):
        differentiate(optimizer, model, x, y)
        optimizer.step()
        twin.zero_grad()
        value = nn.functional.cross_entropy(twin(x), y)
        value.backward()
        gamma = plain.step(value.detach())
        assert float(optimizer.last.gamma) == pytest.approx(gamma, abs=1e-9)
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), atol=1e-9, rtol=0)
    means = [optimizer.state[p]["average"] for p in model.parameters()]
    torch.testing.assert_close(means, plain.mean, atol=1e-9, rtol=0)


def trained(loss, metric, lr=0.3, memory=0.8):
    """An optimizer with a past, and the value of a next batch."""
    case, options = setting(loss, SMALL_MODELS[1]), {"memory": memory, "metric": metric}
    optimizer = ProxOptimizer(case.loss, SingleStepFW(), case.model.parameters(), lr, 0.0, 0.01, **options)
    for _ in range(3):
        optimizer.step(case.value)
    return case, optimizer


@pytest.mark.parametrize("loss", [case for case in CASES if case.name != "grid"], ids=repr)
@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_dual_bounds_hold_with_the_past(loss, metric):
    case, optimizer = trained(loss, metric)
    problem = optimizer.problem(case.value())
    best = ExactQP(tol=1e-5).solve(problem)
    exact = float(problem.dual(best))
    slack = 1e-6 * (1 + abs(exact)) + float(problem.gap(best).clamp(min=0))
    for solver in (SingleStepFW(), MultiStepFW(5, tol=0.0), CorrectiveFW(5, tol=0.0), BlockFW(tol=1e-3)):
        point = solver.solve(problem)
        assert float(problem.dual(point)) <= exact + slack
        assert exact <= float(problem.primal(point)) + slack


def dense(metric: Metric, optimizer: ProxOptimizer) -> tuple[torch.Tensor, torch.Tensor]:
    """M of all parameters as one matrix, from the state: Kronecker products of the bases; and the bases, as one."""
    blocks, bases = [], []
    for p in optimizer.param_groups[0]["params"]:
        own, Q = optimizer.state[p], torch.eye(p.numel())
        if "v" not in own:
            blocks.append(Q + (3 / p.numel() if isinstance(metric, Coupled) else 0))
            bases.append(Q)
            continue
        m = (own["v"] / (1 - metric.beta2 ** own["t"])).sqrt() + metric.eps
        if "age" in own:
            rows, columns = len(p), p[0].numel()
            Q = torch.kron(own.get("U", torch.eye(rows)), own.get("V", torch.eye(columns)))
        blocks.append(Q @ torch.diag(m.reshape(-1)) @ Q.T)
        bases.append(Q)
    return torch.block_diag(*blocks), torch.block_diag(*bases)


PRIMAL = {
    "hinge": lambda cp, u, y: cp.max(u + (1 - y), axis=1) - cp.sum(cp.multiply(u, y), axis=1),
    "cross-entropy": lambda cp, u, y: cp.log_sum_exp(u, axis=1) - cp.sum(cp.multiply(u, y), axis=1),
}


@pytest.mark.parametrize("name", PRIMAL)
@pytest.mark.parametrize("mu", [0.0, 0.8])
@each_metric
def test_the_exact_value_is_that_of_the_primal_written_out(metric, mu, name):
    """P* = min of ½⟨d, M d⟩/η + decay ⟨M w, d⟩ + (1 − μ²) ℓ(u + J d) + μ² max(0, h + ⟨q, d⟩), by cvxpy."""
    cp = pytest.importorskip("cvxpy")
    case, optimizer = trained(next(case for case in CASES if case.name == name), metric, memory=mu)
    params, scores = list(case.model.parameters()), case.model(case.x)
    rows = [torch.autograd.grad(u, params, retain_graph=True) for u in scores.reshape(-1)]
    J, w = torch.stack([parameters_to_vector(row) for row in rows]).numpy(), vector(case.model)
    q = parameters_to_vector([optimizer.state[p]["q"] if mu else torch.zeros_like(p) for p in params])
    h = float(optimizer.param_groups[0]["h"]) if mu else 0.0
    problem = optimizer.problem(case.value())
    exact = ExactQP().solve(problem)
    bounds = float(problem.dual(exact)), float(problem.primal(exact))
    optimizer.step(case.value)
    M, Q = dense(metric, optimizer)  # of the same gradients: a metric observes before it is used
    d = cp.Variable(len(w))
    u = scores.detach().numpy() + cp.reshape(J @ d, scores.shape, order="C")
    loss = cp.sum(PRIMAL[name](cp, u, nn.functional.one_hot(case.target, K).numpy())) / len(scores)
    term = cp.sum_squares(torch.linalg.cholesky(M).T.numpy() @ d) / (2 * 0.3) + 0.01 * (M @ w).numpy() @ d
    past = cp.pos(h + (Q @ q).numpy() @ d)
    best = cp.Problem(cp.Minimize(term + (1 - mu**2) * loss + mu**2 * past)).solve(solver="CLARABEL")
    assert bounds == pytest.approx((best, best), abs=1e-5)


@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(1), MultiStepFW(4)], ids=repr)
def test_one_step_of_any_solver_keeps_the_same_past(solver):
    """MultiStepFW(1) is the single step, by another way; h is the plane's value at the new weights."""
    results = []
    for each in (SingleStepFW(), solver):
        torch.manual_seed(0)
        model = mlp()
        optimizer = ProxOptimizer(CrossEntropy(), each, model.parameters(), 0.1, memory=0.9, metric=Diagonal(eps=1e-3))
        (x, y), before = batches(1)[0], vector(model)
        value = optimizer.step(lambda: optimizer.loss(model(x), y))
        d = vector(model) - before
        q = parameters_to_vector([optimizer.state[p]["q"] for p in model.parameters()])
        h = optimizer.param_groups[0]["h"]
        torch.testing.assert_close(h, 0.1 * value.detach() + q @ d, atol=1e-10, rtol=0)  # q = (1 − μ) g
        results.append(before + d)
    if solver == MultiStepFW(1):
        torch.testing.assert_close(*results, atol=1e-10, rtol=0)


def test_a_parameter_without_a_gradient_keeps_its_part_of_the_past():
    p, q = (nn.Parameter(torch.ones(3, dtype=torch.double)) for _ in range(2))
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), [p, q], 0.1, memory=0.9, metric=Euclidean())
    for both in (True, False):
        optimizer.zero_grad()
        optimizer.loss((p + q if both else p)[None] * torch.arange(3.0), torch.tensor([0])).backward()
        kept = optimizer.state[q].get("q", torch.zeros(3)).clone()
        optimizer.step()
    assert torch.equal(optimizer.state[q]["q"], kept)
    assert not torch.equal(optimizer.state[p]["q"], kept)


@pytest.mark.parametrize("largest", [2048, 5])
def test_a_step_is_that_of_the_dense_matrix(largest):
    """Convolutions, matrices and vectors; a side above ``largest`` is not rotated. Bases change every other step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 4))
    metric, eta = Kronecker(eps=1e-4, every=2, largest=largest), 0.2
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), eta, metric=metric)
    for _ in range(5):
        x, y = torch.randn(8, 1, 4, 4), torch.randint(4, (8,))
        before = vector(model)
        value = differentiate(optimizer, model, x, y)
        g = parameters_to_vector([p.grad for p in model.parameters()])
        optimizer.step()
        M, _ = dense(metric, optimizer)
        assert torch.linalg.eigvalsh(M).min() > 0
        direction = torch.linalg.solve(M, g)
        gamma = min(1.0, float(value.detach() / (eta * g @ direction)))
        assert float(optimizer.last.gamma) == pytest.approx(gamma, rel=1e-8)
        expected = before - gamma * eta * direction
        torch.testing.assert_close(vector(model), expected, atol=1e-8, rtol=0)


def test_its_bases_are_orthogonal_and_follow_the_eigenvectors():
    torch.manual_seed(0)
    metric, G = Kronecker(every=1), torch.randn(6, 4) * torch.tensor([1.0, 3.0, 9.0, 27.0])
    state = metric.start(G)
    for t in range(30):
        _, (state,) = metric.observe([G], [state], torch.tensor(float(t)))
        torch.testing.assert_close(state["V"].T @ state["V"], torch.eye(4), atol=1e-10, rtol=0)
    turned = state["V"].T @ state["R"] @ state["V"]
    assert (turned - turned.diag().diag()).norm() < 1e-6 * turned.norm()


def test_vectors_and_a_metric_without_sides_are_the_diagonal_metric_bit_for_bit():
    found = []
    for metric in (Diagonal(), Kronecker(largest=1)):
        torch.manual_seed(0)
        model, optimizer, _ = begun(loss=CrossEntropy(), lr=0.01, metric=metric, fused=False)
        found.append(train(model, optimizer))
    torch.testing.assert_close(*found, atol=1e-13, rtol=0)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (3, 2, 2), (0, 3), ()], ids=str)
def test_unusual_shapes_and_zero_gradients(shape):
    w = nn.Parameter(torch.ones(shape))
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), [w], 0.1, metric=Kronecker(), memory=0.9)
    for scale in (0.0, 1.0, 0.0):
        w.grad = torch.full(shape, scale)
        optimizer.step(loss=1.0)
        assert w.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_and_nonfinite_gradients(dtype):
    model = mlp().to(dtype)
    options = {"metric": Kronecker(every=1), "memory": 0.9, "lr": "auto", "average": 0.9}
    optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), **options)
    for t, (x, y) in enumerate(batches(4)):
        optimizer.zero_grad()
        optimizer.loss(model(x.to(dtype)), y).backward()
        if t == 2:
            model[0].weight.grad[0, 0] = float("nan")
        before = vector(model)
        optimizer.step(loss=optimizer.last.loss if t == 2 else None)
        assert torch.equal(before, vector(model)) == (t == 2)
        assert all(own["L"].dtype == torch.float32 for own in optimizer.state.values() if "L" in own)
    assert int(optimizer.skipped) == 1
    assert all(x.isfinite().all() for own in optimizer.state.values() for x in own.values() if torch.is_tensor(x))


@pytest.mark.parametrize("mu", [0.0, 0.9])
@pytest.mark.parametrize("metric", ["euclidean", "diagonal"])
def test_with_heavy_ball_weights_and_its_bias_correction_it_is_momo(metric, mu):
    """MoMo's cap is η / (1 − μᵗ), and its weights are 1 − μ and μ; everything else is the same, without memory all."""
    momo = pytest.importorskip("momo")
    (model, twin), chosen, lr, gammas = twins(), METRICS[metric], 0.05, []
    plain = PlainStep(model.parameters(), lr, metric=chosen, memory=mu, average=0.995, heavy_ball=True)
    if metric == "diagonal":
        peer = momo.MomoAdam(twin.parameters(), lr=lr, betas=(mu, chosen.beta2), eps=chosen.eps)
    else:
        peer = momo.Momo(twin.parameters(), lr=lr, beta=mu, bias_correction=True)
    for t, (x, y) in enumerate(batches(100, n=12), 1):
        values = []
        for net in (model, twin):
            net.zero_grad()
            values.append(nn.functional.cross_entropy(net(x), y))
            values[-1].backward()
        plain.lr = [lr / (1 - mu**t)] * len(plain.lr)
        told = 1e-4 if t > 10 else 1.0  # else γ would be 1
        gammas.append(plain.step(told * values[0].detach()))
        peer.step(loss=told * values[1])
    assert sum(0 < gamma < 1 for gamma in gammas) >= 10
    torch.testing.assert_close(list(model.parameters()), list(twin.parameters()), atol=1e-9, rtol=0)
