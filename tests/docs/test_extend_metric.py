"""The metric of docs/extend.md keeps its promises: the bounds, the formula, a state that is kept and loaded whole."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from proxsvm import ProxOptimizer, ProxProblem, checkpoint
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import verify
from tests.cases import mlp
from tests.optimizer.test_optimizer import batches, train

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
BLOCK = next(block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "(Metric)" in block)


def example() -> Any:
    """The page's metric."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(BLOCK, "docs/extend.md", "exec"), namespace)
    return namespace[re.search(r"class (\w+)\(Metric\)", BLOCK)[1]]()


def optimizer_of(model: nn.Module, **options: Any) -> ProxOptimizer:
    options = {"lr": 0.02, "memory": 0.9, "weight_decay": 0.01, "metric": example(), **options}
    return ProxOptimizer(CrossEntropy(), SingleStepFW(), model.parameters(), **options)


@pytest.mark.parametrize("loss", [CrossEntropy(), MultiClassHinge()], ids=repr)
def test_the_dual_bounds_hold(loss):
    model, ((x, y),) = mlp(), batches(1)
    options = {"lr": 0.3, "weight_decay": 0.05, "metric": example()}
    problem = ProxProblem.from_scores(loss, model(x), y, model.parameters(), **options)
    for solver in (SingleStepFW(), MultiStepFW(20, tol=0.0), CorrectiveFW(20, tol=0.0)):
        assert verify(problem, solver).ok
    assert verify(problem, ExactQP()).optimal


def test_training_is_the_plain_formula():
    """Without memory and decay: w ← w − γη M⁻¹G, γ = clip₀₁(loss / (η ⟨G, M⁻¹G⟩)), M one number per row."""
    model, beta, eps, eta = nn.Linear(5, 4, bias=False), 0.95, 1e-8, 0.5
    twin = copy.deepcopy(model)
    optimizer = optimizer_of(model, lr=eta, memory=0.0, weight_decay=0.0)
    v = torch.zeros(4, 1)
    for t, (x, y) in enumerate(batches(20), 1):
        train(optimizer, model, [(x, y)])
        value = nn.functional.cross_entropy(twin(x), y)
        (G,) = torch.autograd.grad(value, [twin.weight])
        v = beta * v + (1 - beta) * G.square().mean(1, keepdim=True)
        step = G / ((v / (1 - beta**t)).sqrt() + eps)
        gamma = min(1.0, float(value.detach() / (eta * (G * step).sum())))
        assert float(optimizer.last.gamma) == pytest.approx(gamma, rel=1e-8)
        with torch.no_grad():
            twin.weight -= gamma * eta * step
    torch.testing.assert_close(model.weight, twin.weight, atol=1e-10, rtol=0)


def test_it_resumes_bit_for_bit_and_another_state_is_refused(tmp_path):
    data, model, other = batches(8), mlp(), mlp()
    optimizer, resumed = optimizer_of(model), optimizer_of(other)
    train(optimizer, model, data[:4])
    checkpoint.save(tmp_path / "last.pt", model=model, optimizer=optimizer)
    checkpoint.load(tmp_path / "last.pt", model=other, optimizer=resumed)
    train(resumed, other, data[4:])
    train(optimizer, model, data[4:])
    torch.testing.assert_close(list(other.parameters()), list(model.parameters()), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"\(6,\).*\(6, 5\)"):
        optimizer_of(model, metric=Diagonal()).load_state_dict(optimizer.state_dict())
