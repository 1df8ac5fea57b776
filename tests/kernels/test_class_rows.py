"""The compiled hinge is the hinge: value, gradient and what else autograd may ask, beside the base class's forward."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parameter import Parameter

from proxsvm._kernels import class_rows, jit, native, tensors
from proxsvm._kernels.tensors import in_transform
from proxsvm.losses import ConvexLoss, CrossEntropy, MultiClassHinge
from proxsvm.losses._compiled import compiled_value
from tests.cases import cost_matrix

pytest.importorskip("numba")
each_kind = pytest.mark.parametrize("smooth", [False, True], ids=["plain", "smooth"])


@pytest.fixture(params=["in one", "in blocks"], autouse=True)
def size(request, monkeypatch):
    """Every test runs as on a small batch, in one block, and as on a large one, in blocks by threads."""
    monkeypatch.setattr(class_rows, "GRAIN", 1 << 30 if request.param == "in one" else 40)
    return request.param


def reference(loss, u, y):
    """The general path: no loops."""
    return ConvexLoss.forward(loss, u, y)


def value_and_gradient(value, u):
    return value.detach(), torch.autograd.grad(value, u)[0]


def batch(n=6, K=20, scale=3.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = scale * torch.randn(n, K, generator=generator, dtype=dtype)
    return u.requires_grad_(), torch.randint(K, (n,), generator=generator)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # ``size`` is the same for all examples
@given(
    n=st.integers(1, 9),
    K=st.sampled_from([1, 2, 3, 10, 16, 37, 100, 130, 1000]),
    scale=st.sampled_from([0.01, 1.0, 5.0, 50.0, 1e4]),
    smooth=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    reduction=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 10_000),
)
def test_the_loops_compute_what_the_oracle_says(n, K, scale, smooth, dtype, reduction, seed):
    u, y = batch(n, K, scale, dtype, seed)
    loss = MultiClassHinge(smooth=smooth, reduction=reduction)
    value = compiled_value(loss, u, y)
    assert value.dtype == dtype
    tolerance = {} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5 * max(1.0, scale) * n}
    for found, expected in zip(value_and_gradient(value, u), value_and_gradient(reference(loss, u, y), u), strict=True):
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("loss", [MultiClassHinge, partial(MultiClassHinge, smooth=True), CrossEntropy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_weights_and_ignored_samples_are_the_loops_own(loss, dtype, reduction):
    u, y = batch(11, 30, dtype=dtype)
    y[[0, 5]] = -100
    for weight in (None, torch.rand(30), torch.rand(60)[::2]):
        criterion = loss(weight=weight, reduction=reduction)
        value = compiled_value(criterion, u, y)
        for found, expected in zip(
            value_and_gradient(value, u), value_and_gradient(reference(criterion, u, y), u), strict=True
        ):
            torch.testing.assert_close(found, expected)
        p = torch.as_tensor(criterion.coefficients(u, y, None))
        torch.testing.assert_close(value.origin.coefficients, p)


@each_kind
def test_rows_where_smoothing_helps_and_where_it_does_not(smooth):
    u = torch.tensor([[0.0, 0.5, -1.0], [9.0, 0.0, 0.0], [3.0, 2.1, 2.0]]).repeat(1, 50)[:, :120].contiguous()
    u[2, 3:] = -1.5  # the far classes weigh the mean down, but the margin to class 1 is not met
    u, y = u.requires_grad_(), torch.zeros(3, dtype=torch.long)
    loss = MultiClassHinge(smooth=smooth, reduction="sum")
    assert loss.smoothed(u.detach(), y).b(u.detach())[2] < 0
    for found, expected in zip(
        value_and_gradient(loss(u, y), u), value_and_gradient(reference(loss, u, y), u), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exponential(dtype):
    """softmax of two scores, over the whole range of exp."""
    x = -torch.linspace(0, 800, 4001, dtype=dtype)
    u, y = torch.stack([torch.zeros_like(x), x], 1).requires_grad_(), torch.ones(len(x), dtype=torch.long)
    (grad,) = torch.autograd.grad(MultiClassHinge(smooth=True, reduction="sum")(u, y), u)
    torch.testing.assert_close(grad, u.detach().softmax(1) - torch.tensor([0.0, 1.0], dtype=dtype))
    u, y = u.detach().requires_grad_(), 1 - y
    soft = MultiClassHinge(smooth=True).smoothed(u.detach(), y).b(u.detach()) > 0
    (grad,) = torch.autograd.grad(MultiClassHinge(smooth=True, reduction="sum")(u, y), u)
    torch.testing.assert_close(grad[soft, 1], u.detach().softmax(1)[soft, 1], rtol=1e-5, atol=0)


@each_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("nan")])
@pytest.mark.parametrize("at", [0, 1, 19], ids=["true class", "another", "the last"])
def test_what_is_not_finite_shows_in_the_value(smooth, bad, at):
    u, _ = batch()
    u.data[2, at] = bad
    y = torch.zeros(6, dtype=torch.long)
    value = MultiClassHinge(smooth=smooth)(u, y)
    if not smooth and at == 0 and bad == float("inf"):
        assert value.isfinite()  # the margin is met by far
    else:
        assert not value.isfinite()


@each_kind
def test_a_mask_of_very_low_scores(smooth):
    u, _ = batch(dtype=torch.float32)
    u.data[:, 7:] = torch.finfo(torch.float32).min
    loss, y = MultiClassHinge(smooth=smooth), torch.zeros(6, dtype=torch.long)
    value, gradient = value_and_gradient(loss(u, y), u)
    assert not gradient[:, 7:].any()
    torch.testing.assert_close(value, loss(u[:, :7].contiguous(), y).detach())


@each_kind
def test_threads_change_no_bit(smooth, monkeypatch):
    monkeypatch.setattr(class_rows, "GRAIN", 60)  # two of the eleven rows
    u, y = batch(11, 30)
    found, seen, run = {}, [], native.run
    monkeypatch.setattr(native, "run", lambda *job: seen.append(job[2]) or run(*job))
    for count in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        found[count] = value_and_gradient(MultiClassHinge(smooth=smooth)(u, y), u)
    assert seen == [1, 2, 3]
    assert all(torch.equal(a, b) for n in (2, 3) for a, b in zip(found[n], found[1], strict=True))
    torch.testing.assert_close(found[1], value_and_gradient(reference(MultiClassHinge(smooth=smooth), u, y), u))


@each_kind
def test_several_threads_of_python_may_call_at_once(smooth):
    u, y = batch(50, 30)
    expected = value_and_gradient(MultiClassHinge(smooth=smooth)(u, y), u)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: value_and_gradient(MultiClassHinge(smooth=smooth)(u, y), u), range(40)):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@each_kind
def test_a_gradient_that_is_differentiated(smooth):
    """Also where the graph is not kept: torch lets the caller say so."""
    u, y = batch()
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value = scale * MultiClassHinge(smooth=smooth)(u, y)
    (gradient,) = torch.autograd.grad(value, u, create_graph=True, retain_graph=False)
    (by_scale,) = torch.autograd.grad(gradient.sum(), scale)
    expected = torch.autograd.grad(MultiClassHinge(smooth=smooth)(u, y), u)[0]
    torch.testing.assert_close(gradient, 2 * expected)
    torch.testing.assert_close(by_scale, expected.sum())


@each_kind
def test_a_graph_that_is_kept_gives_the_same_gradient_again(smooth):
    u, y = batch()
    value = MultiClassHinge(smooth=smooth)(u, y)
    first = torch.autograd.grad(value, u, retain_graph=True)[0]
    (3 * value).backward(retain_graph=True)
    torch.testing.assert_close(u.grad, 3 * first)
    assert torch.equal(torch.autograd.grad(value, u)[0], first)
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


@each_kind
def test_a_batch_of_gradients(smooth):
    u, y = batch()
    value = MultiClassHinge(smooth=smooth)(u, y)
    (several,) = torch.autograd.grad(value, u, torch.tensor([1.0, -2.0]).double(), is_grads_batched=True)
    (one,) = torch.autograd.grad(MultiClassHinge(smooth=smooth)(u, y), u)
    torch.testing.assert_close(several, torch.stack([one, -2 * one]))


@each_kind
def test_gradients_whose_memory_does_not_hold_their_number(smooth):
    u, y = batch()
    loss = MultiClassHinge(smooth=smooth)
    (expected,) = torch.autograd.grad(loss(u, y), u)
    one = torch.ones((), dtype=torch.float64)
    for grad, factor in [(torch._neg_view(one), -1), (torch._efficientzerotensor((), dtype=torch.float64), 0)]:
        torch.testing.assert_close(torch.autograd.grad(loss(u, y), u, grad)[0].clone(), factor * expected)


@each_kind
def test_the_value_may_be_changed_in_place(smooth):
    u, y = batch()
    value = MultiClassHinge(smooth=smooth)(u, y)
    expected = torch.autograd.grad(value, u, retain_graph=True)[0] / 4
    value /= 4
    torch.testing.assert_close(torch.autograd.grad(value, u)[0], expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")  # torch's forward mode
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # vmap has no rule for scatter_
@each_kind
def test_transforms_go_the_general_way(smooth):
    u, y = batch()
    loss, u = MultiClassHinge(smooth=smooth), u.detach()
    loss(u, y)  # accepted by the loops, and remembered
    expected = torch.func.grad(lambda v: reference(loss, v, y))(u)
    torch.testing.assert_close(torch.func.grad(lambda v: loss(v, y))(u), expected)
    rows = torch.func.vmap(lambda v, t: loss(v[None], t[None]))(u, y)
    torch.testing.assert_close(rows.mean(), loss(u, y))
    each = torch.func.vmap(torch.func.grad(lambda v, t: loss(v[None], t[None])))(u, y)
    torch.testing.assert_close(each / len(y), expected)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(loss(forward_ad.make_dual(u, torch.ones_like(u)), y)).tangent
    torch.testing.assert_close(tangent, expected.sum())


def test_what_the_loops_leave_to_others():
    u, y = batch()
    loss = MultiClassHinge()
    assert compiled_value(loss, u, y) is not None
    assert compiled_value(loss, Parameter(u.detach()), y) is not None
    assert compiled_value(loss, u.bfloat16(), y).dtype == torch.float32
    for scores, target in [
        (u.detach().T.contiguous().T, y),
        (u, y.int()),
        (u, y[:3]),
        (u[None], y),
        (u[:0], y[:0]),
        (u, y + 20),
        (u, y - 20),
        ([1.0], y),
        (torch._neg_view(u.detach()), y),
    ]:
        assert compiled_value(loss, scores, target) is None


def test_what_is_not_plain_goes_the_general_way(monkeypatch):
    def never(*_):
        raise AssertionError("the loops know nothing of this")

    monkeypatch.setattr("proxsvm.losses._compiled.run", never)
    u, y = batch(K=4)
    for loss, weight in [
        (MultiClassHinge(cost_matrix()), None),
        (MultiClassHinge(reduction="none"), None),
        (MultiClassHinge(), torch.ones(6)),
        (type("Mine", (MultiClassHinge,), {"oracle": MultiClassHinge.oracle})(), None),
    ]:
        loss(u, y, weight)
    for loss in (MultiClassHinge(), type("Mine", (MultiClassHinge,), {"predict": None})()):
        with pytest.raises(AssertionError, match="know nothing"):
            loss(u, y)


def missing(module, extra):
    raise ModuleNotFoundError(module)


def broken(module, extra):
    raise ImportError("Numba needs NumPy 2.2 or less")


def disabled(module, extra):
    return SimpleNamespace(config=SimpleNamespace(DISABLE_JIT=1))


@each_kind
@pytest.mark.parametrize("numba", [missing, broken, disabled])
def test_without_a_usable_numba_torch_does_it(smooth, numba, monkeypatch):
    u, y = batch()
    loss = MultiClassHinge(smooth=smooth)
    expected = loss(u, y)
    class_rows.loops.cache_clear()
    monkeypatch.setattr(jit, "load", numba)
    try:
        assert compiled_value(loss, u, y) is None
        torch.testing.assert_close(loss(u, y), expected)
    finally:
        class_rows.loops.cache_clear()


@each_kind
def test_tracers_see_operations_and_no_constant(smooth):
    """make_fx and jit.trace record the general path: another batch through what they recorded gives its own value."""
    (u, y), (v, z) = batch(seed=1), batch(seed=2)
    u, v, loss = u.detach(), v.detach(), MultiClassHinge(smooth=smooth)
    loss(u, y)  # accepted by the loops, and remembered
    recorded = make_fx(lambda u, y: loss(u, y))(u, y)
    torch.testing.assert_close(recorded(v, z), loss(v, z))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and warns of every Python number
        recorded = torch.jit.trace(loss, (u, y), check_trace=False)
    torch.testing.assert_close(recorded(v, z), loss(v, z))


@pytest.mark.parametrize("name", ["_are_functorch_transforms_active", "_len_torch_dispatch_stack"])
def test_where_a_private_function_of_torch_is_missing_the_general_path_is_taken(name, monkeypatch):
    private = SimpleNamespace(**{k: v for k, v in vars(torch._C).items() if k != name})
    monkeypatch.setattr(tensors, "torch", SimpleNamespace(**{**vars(torch), "_C": private}))  # torch itself keeps it
    u, y = batch()
    assert in_transform() == (name == "_are_functorch_transforms_active")
    torch.testing.assert_close(MultiClassHinge()(u, y), reference(MultiClassHinge(), u, y))


def test_the_value_carries_its_scores_and_target():
    u, y = batch()
    origin = MultiClassHinge()(u, y).origin
    assert origin.scores is u
    assert origin.target is y
    torch.testing.assert_close(origin.coefficients, torch.full((6,), 1 / 6, dtype=torch.float64))
    assert not hasattr(MultiClassHinge()(u.detach(), y), "origin")
