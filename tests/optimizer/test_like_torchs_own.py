"""What torch and other libraries test of every optimizer, in our own words.

After the patterns of torch's test_optim.py and common_optimizers.py (groups, hooks, layouts, forloop against foreach),
and of the suites of third-party optimizers (Beale, Rosenbrock, convergence).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from proxsvm.losses import L1Regression, MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer

K = 4


def train(model, params, steps, **options):
    """Steps on random batches of 8 samples of 5 features."""
    draw = torch.Generator().manual_seed(0)
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, **options)
    for _ in range(steps):
        x, y = torch.randn(8, 5, generator=draw), torch.randint(K, (8,), generator=draw)
        optimizer.zero_grad()
        optimizer.loss(model(x), y).backward()
        optimizer.step()
    return optimizer


# Convergence. A residual form f = Σ_j |r_j(w)| of each test function: non-negative and piecewise linear in r.


def rosenbrock(w: Tensor) -> Tensor:
    """r = (1 − x, 3 (y − x²)), zero at (1, 1): a curved valley."""
    return torch.stack([1 - w[0], 3 * (w[1] - w[0] ** 2)])


def beale(w: Tensor) -> Tensor:
    """r_k = c_k − x (1 − y^k), zero at (3, 0.5)."""
    return torch.stack([c - w[0] * (1 - w[1] ** k) for k, c in ((1, 1.5), (2, 2.25), (3, 2.625))])


def quadratic(w: Tensor) -> Tensor:
    """r = A w − b of an A of condition 10, zero at (1, −2)."""
    return torch.tensor([[3.0, 0.0], [0.0, 0.3]]) @ w - torch.tensor([3.0, -0.6])


FUNCTIONS = [
    (rosenbrock, [-1.5, 2.0], [1.0, 1.0]),
    (beale, [1.5, 1.5], [3.0, 0.5]),
    (quadratic, [5.0, 5.0], [1.0, -2.0]),
]


@pytest.mark.parametrize(("residual", "start", "optimum"), FUNCTIONS, ids=["rosenbrock", "beale", "quadratic"])
@pytest.mark.parametrize(
    ("solver", "eta", "steps"),
    [(SingleStepFW(), 1e3, 1000), (MultiStepFW(20, tol=1e-3), 1.0, 300)],
    ids=["one", "many"],
)
def test_it_finds_the_optimum_of_the_usual_functions(residual, start, optimum, solver, eta, steps):
    w = nn.Parameter(torch.tensor(start))
    options = {"metric": Euclidean(), "momentum": 0.0}
    optimizer = ProxOptimizer(L1Regression(), solver, [w], lr=eta, **options)
    target = torch.zeros(1, len(residual(w)))
    best = float("inf")
    for _ in range(steps):
        value = optimizer.step(lambda: optimizer.loss(residual(w)[None], target))
        best = min(best, float(value.detach()))
        if best < 0.05:
            break
    assert best < 0.06
    assert (w.detach() - torch.tensor(optimum)).norm() < 1.0


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


def test_every_hook_of_the_base_class_runs():
    model, calls = nn.Linear(5, K), []
    optimizer = train(model, model.parameters(), 1, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: calls.append("step-pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("step-post"))
    optimizer.register_state_dict_pre_hook(lambda *_: calls.append("save-pre"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("load-post"))
    optimizer.step(lambda: optimizer.loss(model(torch.ones(2, 5)), torch.tensor([0, 1])))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["step-pre", "step-post", "save-pre", "load-post"]


OPTIONS = {"lr": 3.0, "momentum": 0.5, "weight_decay": 0.01, "metric": Euclidean()}


def test_how_the_parameters_are_cut_does_not_matter():
    """One matrix, its rows as many parameters, one group or many: the same trajectory."""
    results, start = [], torch.randn(K, 5)
    for rows, groups in ((K, False), (1, False), (2, True)):
        params = [nn.Parameter(part.clone()) for part in start.split(rows)]
        train(lambda x: x @ torch.cat(params).T, [{"params": [p]} for p in params] if groups else params, 20, **OPTIONS)
        results.append(torch.cat(params).detach())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("layout", ["transposed", "strided", "channels_last", "scalar", "empty"])
def test_parameters_of_any_layout(layout):
    """torch's noncontiguous cases: the same numbers."""
    torch.manual_seed(0)
    base = torch.randn(K, 5)
    extra = {"scalar": torch.zeros(()), "empty": torch.zeros(0, 3)}.get(layout)
    held = {
        "transposed": base.T.contiguous().T,
        "strided": torch.randn(K, 10)[:, ::2].copy_(base),
        "channels_last": base[:, :, None, None].contiguous(memory_format=torch.channels_last),
    }.get(layout, base.clone())
    results = []
    for w in (nn.Parameter(base.clone()), nn.Parameter(held)):
        params = [w] if extra is None else [w, nn.Parameter(extra.clone())]
        train(lambda x: x @ w.reshape(K, 5).T + sum(p.sum() for p in params[1:]), params, 5, **OPTIONS)
        results.append(w.detach().reshape(K, 5))
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)
