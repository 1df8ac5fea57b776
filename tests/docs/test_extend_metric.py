"""The metric of docs/extend.md, and what it needs of the optimizer: state of any shape, kept and loaded whole."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from proxsvm import ProxOptimizer, ProxProblem, checkpoint
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal, Metric
from proxsvm.solvers import CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from tests.cases import mlp
from tests.docs.test_extend import DOCS
from tests.optimizer.test_optimizer import batches


def example() -> type[Any]:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "extend.md").read_text(), flags=re.S)
    block = next(block for block in blocks if "class Kronecker" in block)
    assert block.count("\n") < 120
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(block, "docs/extend.md", "exec"), namespace)
    return namespace["Kronecker"]


Kronecker = example()


def optimizer_of(model: nn.Module, solver: Any = None, **options: Any) -> ProxOptimizer:
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01, "metric": Kronecker(), **options}
    return ProxOptimizer(CrossEntropy(), solver or SingleStepFW(), model.parameters(), **options)


def train(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach().clone()


def dense(problem: ProxProblem, power: float) -> torch.Tensor:
    """M^power of all parameters as one matrix, by Kronecker products."""
    blocks = []
    for w, fixed in zip(problem.params, problem.geometry.cells[0].fixed, strict=True):
        if fixed is None:
            blocks.append(torch.eye(w.numel()))
        else:
            (a, P), (b, Q) = fixed[1]
            blocks.append(torch.kron(P * a ** (power / 4) @ P.T, Q * b ** (power / 4) @ Q.T))
    return torch.block_diag(*blocks)


def test_it_is_the_dense_matrix():
    model, (x, y) = mlp(), batches(1, n=12)[0]
    problem = ProxProblem.from_scores(CrossEntropy(), model(x), y, model.parameters(), lr=1.0, metric=Kronecker())
    cell, metric = problem.geometry.cells[0], Kronecker()
    v = [torch.randn_like(w) for w in problem.params]
    flat = parameters_to_vector(v)
    for found, power in ((metric.solve(cell, v), -1), (metric.times(cell, v), 1)):
        torch.testing.assert_close(torch.cat([t.reshape(-1) for t in found]), dense(problem, power) @ flat)
    torch.testing.assert_close(metric.root(cell, flat[None])[0], dense(problem, -0.5) @ flat)
    assert torch.linalg.eigvalsh(dense(problem, 1)).min() > 0


@pytest.mark.parametrize("loss", [CrossEntropy(), MultiClassHinge()], ids=repr)
def test_the_dual_bounds_hold(loss):
    model, (x, y) = mlp(), batches(1, n=12)[0]
    problem = ProxProblem.from_scores(
        loss, model(x), y, model.parameters(), lr=0.3, weight_decay=0.05, metric=Kronecker()
    )
    best = ExactQP().solve(problem)
    exact = float(problem.dual(best))
    assert float(problem.gap(best)) < 1e-5
    for solver in (SingleStepFW(), MultiStepFW(20, tol=0.0), CorrectiveFW(20, tol=0.0)):
        point = solver.solve(problem)
        assert float(problem.dual(point)) <= exact + 1e-6 <= float(problem.primal(point)) + 2e-6


def test_training_is_the_plain_formula():
    """Without momentum and decay: w ← w − γη L^(−1/4) G R^(−1/4), γ = clip₀₁(loss / (η ⟨G, M⁻¹G⟩))."""
    model, beta, eps, eta = nn.Linear(5, 4, bias=False), 0.95, 1e-4, 0.5
    twin = copy.deepcopy(model)
    optimizer = optimizer_of(model, lr=eta, momentum=0.0, weight_decay=0.0)
    L, R = torch.zeros(4, 4), torch.zeros(5, 5)
    for t, (x, y) in enumerate(batches(20, n=12), 1):
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step()
        value = nn.functional.cross_entropy(twin(x), y)
        (G,) = torch.autograd.grad(value, [twin.weight])
        L, R = beta * L + (1 - beta) * G @ G.T, beta * R + (1 - beta) * G.T @ G
        roots = []
        for a in (L, R):
            values, Q = torch.linalg.eigh(a / (1 - beta**t))
            roots.append(Q @ torch.diag((values.clamp(min=0) + eps * values.max()) ** -0.25) @ Q.T)
        step = roots[0] @ G @ roots[1]
        gamma = min(1.0, float(value.detach() / (eta * (G * step).sum())))
        assert float(optimizer.last.gamma) == pytest.approx(gamma, rel=1e-8)
        with torch.no_grad():
            twin.weight -= gamma * eta * step
    torch.testing.assert_close(model.weight, twin.weight, atol=1e-10, rtol=0)


@pytest.mark.parametrize("way", ["state_dict", "deepcopy", "file"])
def test_it_resumes_bit_for_bit(way, tmp_path):
    data, model = batches(8, n=12), mlp()
    optimizer = optimizer_of(model)
    train(model, optimizer, data[:4])
    if way == "deepcopy":
        model, optimizer = copy.deepcopy((model, optimizer))
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if way == "file":
        checkpoint.save(tmp_path / "last.pt", model=model, optimizer=optimizer)
    expected = train(model, optimizer, data[4:])
    if way != "deepcopy":
        other = mlp()
        resumed = optimizer_of(other)
        if way == "file":
            checkpoint.load(tmp_path / "last.pt", model=other, optimizer=resumed)
        else:
            other.load_state_dict(saved["model"])
            resumed.load_state_dict(saved["optimizer"])
        assert torch.equal(train(other, resumed, data[4:]), expected)
    assert {k: tuple(x.shape) for k, x in optimizer.state[model[0].weight].items()} == {
        "t": (),
        "z": (6, 5),
        "L": (6, 6),
        "R": (5, 5),
    }


def test_a_state_of_another_shape_or_metric_is_refused():
    model = mlp()
    optimizer = optimizer_of(model)
    train(model, optimizer, batches(1, n=12))
    saved = optimizer.state_dict()
    with pytest.raises(ValueError, match="has \\['L', 'R', 't', 'z'\\]"):
        optimizer_of(model, metric=Diagonal()).load_state_dict(saved)
    saved = copy.deepcopy(saved)
    saved["state"][0]["L"] = torch.zeros(6, 5)
    with pytest.raises(ValueError, match=r"the L of parameter 0 is \(6, 5\).*expected \(6, 6\)"):
        optimizer.load_state_dict(saved)


def test_a_skipped_step_changes_no_bit():
    model = mlp()
    optimizer = optimizer_of(model)
    train(model, optimizer, batches(3, n=12))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    (x, y), *_ = batches(1, n=12)
    train(model, optimizer, [(x * torch.nan, y)])
    assert optimizer.skipped == 1
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()["state"]), before, rtol=0, atol=0)


def test_a_closure_takes_the_same_step():
    model, (x, y) = mlp(), batches(1, n=12)[0]
    twin = copy.deepcopy(model)
    train(model, optimizer_of(model), [(x, y)])
    optimizer = optimizer_of(twin)
    optimizer.step(lambda: optimizer.loss(twin(x), y))
    torch.testing.assert_close(list(twin.parameters()), list(model.parameters()), rtol=0, atol=1e-12)


def test_bfloat16_keeps_its_state_in_float32():
    model = mlp().to(torch.bfloat16)
    optimizer = optimizer_of(model)
    train(model, optimizer, [(x.bfloat16(), y) for x, y in batches(2, n=12)])
    assert optimizer.state[model[0].weight]["L"].dtype == torch.float32
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[model[0].weight]["L"].dtype == torch.float32


def test_solve_and_times_are_enough():
    """A user's metric that learns nothing: M = 2 without a word more."""

    class Twice(Metric):
        def solve(self, cell, x):
            return [y / 2 for y in x]

        def times(self, cell, x):
            return [2 * y for y in x]

    model, data = mlp(), batches(5, n=12)
    twin = copy.deepcopy(model)
    found = train(model, optimizer_of(model, metric=Twice(), lr=0.2, weight_decay=0.02), data)
    # H = 2/0.2 = 1/0.1, and r = decay · 2 w
    expected = train(twin, optimizer_of(twin, metric=None, lr=0.1, weight_decay=0.04), data)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    problem = ProxProblem.from_scores(
        CrossEntropy(), model(data[0][0]), data[0][1], model.parameters(), lr=1.0, metric=Twice()
    )
    with pytest.raises(TypeError, match=r"Twice has no root\(\)"):
        ExactQP().solve(problem)
