"""What torch and other libraries test of every optimizer, in our own words.

After the patterns of torch's test_optim.py and common_optimizers.py (options of groups, hooks, copies, moves, layouts,
forloop against foreach), and of the suites of third-party optimizers (Beale, Rosenbrock, convergence).
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from proxsvm import ProxOptimizer
from proxsvm.losses import L1Regression, MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import K, mlp
from tests.optimizer.test_optimizer import batches, optimizer_for, train

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
    optimizer = ProxOptimizer(L1Regression(), solver, [w], lr=eta)
    target = torch.zeros(1, len(residual(w)))
    best = float("inf")
    for _ in range(steps):
        value = optimizer.step(lambda: optimizer.loss(residual(w)[None], target))
        best = min(best, float(value.detach()))
        if best < 0.05:
            break
    assert best < 0.06
    assert (w.detach() - torch.tensor(optimum)).norm() < 1.0


# Groups and their options.


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -0.5},
        {"lr": float("inf")},
        {"lr": torch.tensor([0.1, 0.2])},
        {"momentum": -0.5},
        {"weight_decay": -0.5},
        {"weight_decay": float("nan")},
    ],
    ids=str,
)
@pytest.mark.parametrize("late", [False, True], ids=["default", "late-group"])
def test_bad_options_are_refused_as_a_default_and_in_a_late_group(options, late):
    p, q = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    if not late:
        with pytest.raises(ValueError, match="expected"):
            ProxOptimizer(MultiClassHinge(), SingleStepFW(), [p], **options)
        return
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), [p])
    with pytest.raises(ValueError, match="expected"):
        optimizer.add_param_group({"params": [q], **options})
    assert len(optimizer.param_groups) == 1


def test_every_option_can_be_a_groups_own():
    first, second = nn.Linear(5, 6), nn.Linear(6, K)
    options = [{"lr": 0.3, "momentum": 0.0, "weight_decay": 0.1}, {"lr": 3.0, "momentum": 0.9, "weight_decay": 0.0}]
    groups = [{"params": m.parameters(), **o} for m, o in zip((first, second), options, strict=True)]
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups)
    assert [{k: g[k] for k in o} for g, o in zip(optimizer.param_groups, options, strict=True)] == options
    train(optimizer, nn.Sequential(first, nn.ReLU(), second), batches(2))
    assert set(optimizer.state) == set(second.parameters())  # no momentum, no state
    assert "ProxOptimizer" in repr(optimizer)
    assert "momentum: 0.9" in repr(optimizer)


def test_duplicated_and_empty_parameters_are_refused():
    p = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="more than one parameter group"):
        ProxOptimizer(MultiClassHinge(), SingleStepFW(), [{"params": [p]}, {"params": [p]}])
    with pytest.raises(ValueError, match="empty parameter list"):
        ProxOptimizer(MultiClassHinge(), SingleStepFW(), [])
    with pytest.raises(TypeError):
        ProxOptimizer(MultiClassHinge(), SingleStepFW(), p)
    with pytest.raises(ValueError, match="non-leaf"):
        ProxOptimizer(MultiClassHinge(), SingleStepFW(), [2 * p])


def test_a_set_of_parameters_is_refused_as_its_order_is_not_fixed():
    with pytest.raises(TypeError, match="ordered"):
        ProxOptimizer(MultiClassHinge(), SingleStepFW(), [{"params": set(mlp().parameters())}])


# Hooks.


def test_every_hook_of_the_base_class_runs():
    model, calls = mlp(), []
    optimizer = optimizer_for(model, lr=0.1, momentum=0.9)
    handles = [
        optimizer.register_step_pre_hook(lambda *_: calls.append("step-pre")),
        optimizer.register_step_post_hook(lambda *_: calls.append("step-post")),
        optimizer.register_state_dict_pre_hook(lambda *_: calls.append("save-pre")),
        optimizer.register_state_dict_post_hook(lambda *_: calls.append("save-post")),
        optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("load-pre")),
        optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("load-post")),
    ]
    train(optimizer, model, batches(1))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["step-pre", "step-post", "save-pre", "save-post", "load-pre", "load-post"]
    for handle in handles:
        handle.remove()
    train(optimizer, model, batches(1))
    assert len(calls) == 6


def test_a_post_accumulate_hook_may_free_gradients_after_the_step():
    """As in torch's test of optimizers in backward: what is cleared by hand does not come back."""
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5)
    for x, y in batches(3):
        value = optimizer.loss(model(x), y)
        value.backward()
        assert optimizer.step() == pytest.approx(float(value.detach()))
        for p in model.parameters():
            p.grad = None


# State, copies, moves.


def test_state_dict_is_plain_and_shares_no_memory_after_deepcopy():
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5, momentum=0.9)
    train(optimizer, model, batches(2))
    state = optimizer.state_dict()
    assert set(state) == {"state", "param_groups"}
    assert all(set(s) == {"z"} for s in state["state"].values())
    saved = copy.deepcopy(state)
    train(optimizer, model, batches(2))
    assert not torch.equal(saved["state"][0]["z"], optimizer.state_dict()["state"][0]["z"])


def test_loading_a_state_twice_or_into_itself_changes_nothing():
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5, momentum=0.9)
    train(optimizer, model, batches(2))
    before = copy.deepcopy(optimizer.state_dict())
    for _ in range(2):
        optimizer.load_state_dict(optimizer.state_dict())
    after = optimizer.state_dict()
    assert before["param_groups"] == after["param_groups"]
    assert all(torch.equal(before["state"][i]["z"], after["state"][i]["z"]) for i in before["state"])


def test_a_state_saved_without_momentum_loads_with_it_and_back():
    model = mlp()
    plain, heavy = optimizer_for(model, lr=0.5), optimizer_for(model, lr=0.5, momentum=0.9)
    train(plain, model, batches(1))
    train(heavy, model, batches(1))
    heavy.load_state_dict(plain.state_dict())  # torch's rule: the options come with the state
    assert heavy.param_groups[0]["momentum"] == 0.0
    train(heavy, model, batches(1))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_keep_every_option(copied):
    optimizer = optimizer_for(mlp(), lr=0.25, momentum=0.5, nonfinite="raise", max_grad_norm=2.0, process_group=None)
    other = copied(optimizer)
    for name in ("nonfinite", "max_grad_norm", "process_group"):
        assert getattr(other, name) == getattr(optimizer, name)
    assert {k: other.defaults[k] for k in optimizer.defaults} == optimizer.defaults
    assert other.solver == optimizer.solver


def test_a_model_may_change_its_dtype_before_the_first_step():
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5, momentum=0.9)
    model.float()
    train(optimizer, model, [(x.float(), y) for x, y in batches(3)])
    assert all(s["z"].dtype == torch.float32 for s in optimizer.state.values())
    assert optimizer.last.gamma.dtype == torch.float32


def test_a_model_may_move_to_another_device_before_the_first_step():
    """The meta device, which every machine has: it computes nothing, and fails where two devices meet."""
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5, momentum=0.9, weight_decay=0.1, max_grad_norm=1.0)
    torch.__future__.set_swap_module_params_on_conversion(True)  # in place, as for a real device
    model.to("meta")
    torch.__future__.set_swap_module_params_on_conversion(False)
    train(optimizer, model, [(x.to("meta"), y.to("meta")) for x, y in batches(2)])
    assert all(s["z"].is_meta for s in optimizer.state.values())
    assert optimizer.last.gamma.is_meta
    assert optimizer.skipped.is_meta


@pytest.mark.skipif(not torch.cuda.is_available(), reason="moves to a second device need a GPU")
def test_a_state_saved_on_the_cpu_loads_on_the_gpu():
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5, momentum=0.9)
    train(optimizer, model, batches(2))
    other = copy.deepcopy(model).cuda()
    moved = optimizer_for(other, lr=0.5)
    moved.load_state_dict(optimizer.state_dict())
    assert all(s["z"].is_cuda for s in moved.state.values())
    train(moved, other, [(x.cuda(), y.cuda()) for x, y in batches(2)])


def test_groups_added_after_steps_train_from_then_on():
    body, head = nn.Linear(5, 6), nn.Linear(6, K)
    model = nn.Sequential(body, nn.ReLU(), head)
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), head.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(optimizer, model, batches(2))
    still = body.weight.clone()
    scheduler.step()
    body.zero_grad()
    optimizer.add_param_group({"params": body.parameters(), "lr": 0.1})
    assert torch.equal(still, body.weight)
    train(optimizer, model, batches(2))
    assert not torch.equal(still, body.weight)
    assert len(optimizer.state_dict()["param_groups"]) == 2
    resumed = ProxOptimizer(
        MultiClassHinge(), SingleStepFW(), [{"params": head.parameters()}, {"params": body.parameters()}]
    )
    resumed.load_state_dict(optimizer.state_dict())
    assert [g["lr"] for g in resumed.param_groups] == [g["lr"] for g in optimizer.param_groups]


# One parameter or many: the same numbers (what torch calls foreach parity).


def test_how_the_parameters_are_cut_does_not_matter():
    """One matrix, its rows as many parameters, one group or many: the same trajectory."""
    results = []
    start = torch.randn(K, 5)
    for cut in (lambda w: [w], lambda w: list(w.split(1)), lambda w: [{"params": [r]} for r in w.split(2)]):
        pieces = cut(start)
        params = [p["params"][0] if isinstance(p, dict) else p for p in pieces]
        params = [nn.Parameter(p.clone()) for p in params]
        groups = [{"params": [p]} for p in params] if isinstance(pieces[0], dict) else params
        optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), groups, 3.0, 0.5, 0.01)
        for x, y in batches(20):
            optimizer.zero_grad()
            optimizer.loss(x @ torch.cat(params).T, y).backward()
            optimizer.step()
        results.append(torch.cat(params).detach())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("layout", ["transposed", "strided", "channels_last", "scalar", "empty"])
def test_parameters_of_any_layout(layout):
    """torch's noncontiguous cases: same numbers, and the velocity has the layout of its parameter."""
    torch.manual_seed(0)
    base = torch.randn(K, 5)
    extra = {"scalar": torch.zeros(()), "empty": torch.zeros(0, 3)}.get(layout)
    if layout == "transposed":
        held = base.T.contiguous().T
    elif layout == "strided":
        held = torch.randn(K, 10)[:, ::2].copy_(base)
    elif layout == "channels_last":
        held = base[:, :, None, None].contiguous(memory_format=torch.channels_last)
    else:
        held = base.clone()
    results = []
    for w in (nn.Parameter(base.clone()), nn.Parameter(held)):
        params = [w] if extra is None else [w, nn.Parameter(extra.clone())]
        optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, 3.0, 0.5, 0.01)
        for x, y in batches(5):
            optimizer.zero_grad()
            optimizer.loss(x @ w.reshape(K, 5).T + sum(p.sum() for p in params[1:]), y).backward()
            optimizer.step()
        results.append(w.detach().reshape(K, 5))
        if layout in ("transposed", "channels_last"):
            assert optimizer.state[w]["z"].stride() == w.stride()
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)


def test_an_lr_tensor_is_the_users_and_is_read_each_time():
    lr, model = torch.tensor(0.5), mlp()
    optimizer = optimizer_for(model, lr=lr)
    assert optimizer.param_groups[0]["lr"] is lr
    lr.fill_(0.0)
    before = parameters_to_vector(model.parameters()).clone()
    train(optimizer, model, batches(1))
    assert torch.equal(before, parameters_to_vector(model.parameters()))
    assert lr == 0


def test_swa_and_ema_average_as_with_any_optimizer():
    model = mlp()
    optimizer = optimizer_for(model, lr=0.5)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    seen = []
    for x, y in batches(4):
        train(optimizer, model, [(x, y)])
        averaged.update_parameters(model)
        seen.append(parameters_to_vector(model.parameters()).detach().clone())
    torch.testing.assert_close(parameters_to_vector(averaged.module.parameters()), torch.stack(seen).mean(0))
