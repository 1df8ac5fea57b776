"""The two passes over the parameters: every implementation gives the plain formula's numbers."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from proxsvm._kernels import step_compiled
from proxsvm._kernels.passes import Moments, Update
from proxsvm._kernels.step import PLANS, StepKernels
from proxsvm._kernels.step_compiled import FusedPasses as CompiledPasses
from proxsvm._kernels.step_foreach import ForeachPasses
from proxsvm._kernels.step_slices import SlicedPasses
from proxsvm._numbers import to_float

SHAPES = [(3,), (280_000,), (2, 5), (), (130, 700), (16_384,), (0, 3)]
KINDS = {False: ForeachPasses, True: CompiledPasses, None: SlicedPasses}
each_kind = pytest.mark.parametrize("fused", KINDS, ids=["foreach", "compiled", "sliced"])


@pytest.fixture(autouse=True)
def no_numba_by_default(monkeypatch):
    """fused=None has the choice between the compiled loops and slices; here numba is missing."""
    monkeypatch.setattr(step_compiled, "available", lambda dtype: False)


def tensors(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def bind(fused, w, x):
    made = StepKernels(fused).bind(w, x)
    assert isinstance(made, KINDS[fused])
    return made


def update(decay, mu=0.9, skip=False, as_tensors=False):
    """γ = 0.6, η = 0.3: push = ηγ, lift = η·decay·γ, drop = η·decay."""
    numbers = 0.18, 0.18 * decay, 0.3 * decay
    if as_tensors:
        numbers, skip = [torch.tensor(c) for c in numbers], torch.tensor(skip)
    return Update(*numbers, mu, skip=skip)


@each_kind
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_products_are_the_inner_products(fused, dtype, rel):
    w, x = ([t.to(dtype) for t in tensors(SHAPES, seed)] for seed in (0, 1))
    flat_w, flat_x = (torch.cat([t.reshape(-1) for t in s]).double() for s in (w, x))
    expected = flat_x @ flat_x, flat_w @ flat_x, flat_w @ flat_w
    for got, exact in zip(bind(fused, w, x).products()[:3], expected, strict=True):
        assert float(got) == pytest.approx(float(exact), rel=rel, abs=0.05 if dtype == torch.float32 else 0)
    alone = bind(fused, w, x).products(with_w=False)
    assert float(alone[0]) == pytest.approx(float(expected[0]), rel=rel)
    assert alone[1:] == (0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_half_tensors_do_not_overflow(dtype):
    x = [torch.full((300,), 200.0).to(dtype), torch.full((20_000,), 200.0).to(dtype)]
    found = StepKernels().bind(x, x).products()
    assert all(float(p) == pytest.approx(20_300 * 200.0**2, rel=1e-3) for p in found[:3])
    assert found[0].dtype == torch.float32


@each_kind
@pytest.mark.parametrize("as_tensors", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_implementation_is_the_formula(fused, as_tensors, decay, momentum):
    """z ← μz − η(γr + delta), w ← w − η(r + delta) + μz with delta = γ x."""
    w, z, x = tensors(SHAPES), tensors(SHAPES, 1) if momentum else None, tensors(SHAPES, 2)
    eta, gamma = 0.3, 0.6
    new_z = [momentum * c - eta * (gamma * decay * a + gamma * b) for a, b, c in zip(w, x, z or w, strict=True)]
    new_w = [a - eta * (decay * a + gamma * b) for a, b in zip(w, x, strict=True)]
    if momentum:
        new_w = [a + momentum * b for a, b in zip(new_w, new_z, strict=True)]
    before = [t.clone() for t in x]
    bind(fused, w, x).advance(z, None, update(decay, momentum, as_tensors=as_tensors))
    torch.testing.assert_close(w, new_w, atol=1e-12, rtol=0)
    if momentum:
        torch.testing.assert_close(z, new_z, atol=1e-12, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(before, x, strict=True))


@each_kind
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_a_skipped_update_changes_no_bit(fused, decay):
    w, z, x = tensors(SHAPES[:-1]), tensors(SHAPES[:-1], 1), tensors(SHAPES[:-1], 2)
    w[0][0] = z[0][0] = -0.0
    for t in x:
        t.view(-1)[0] = float("nan")
    before = [t.clone() for t in (*w, *z)]
    bind(fused, w, x).advance(z, None, update(decay, skip=True, as_tensors=True))
    for a, b in zip(before, (*w, *z), strict=True):
        assert torch.equal(a.view(-1).view(torch.int64), b.view(-1).view(torch.int64))


@each_kind
def test_other_orders_of_memory(fused):
    w, x = torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)
    other = w.clone().to(memory_format=torch.channels_last)
    z, other_z = torch.zeros_like(w), torch.zeros_like(other)
    products = [[to_float(p) for p in bind(fused, [a], [x]).products()] for a in (w, other)]
    bind(fused, [w], [x]).advance([z], None, update(0.05))
    bind(fused, [other], [x]).advance([other_z], None, update(0.05))
    torch.testing.assert_close(w, other.contiguous(), atol=1e-12, rtol=0)
    torch.testing.assert_close(z, other_z.contiguous(), atol=1e-12, rtol=0)
    assert products[0] == pytest.approx(products[1])


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fused", [None, False])
def test_other_precisions(fused, dtype, decay):
    w, x = ([t.to(dtype) for t in tensors(SHAPES, seed)] for seed in (0, 1))
    z = [torch.zeros_like(t) for t in w]
    expected = [
        a.double() * (1 - 0.12 * decay) - 0.18 * (b.double() + decay * a.double()) * 1.9
        for a, b in zip(w, x, strict=True)
    ]
    StepKernels(fused).bind(w, x).advance(z, None, update(decay))
    tolerance = 1e-6 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close([t.double() for t in w], expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("fused", [None, False])
def test_it_runs_on_fake_tensors(fused):
    with FakeTensorMode():
        w, x = tensors(SHAPES), tensors(SHAPES)
        passes = StepKernels(fused).bind(w, x)
        assert all(p.shape == () for p in passes.products(start=tensors(SHAPES)))
        passes.advance(tensors(SHAPES), None, update(0.05, as_tensors=True))


@each_kind
def test_autograd_sees_that_the_weights_have_changed(fused):
    w = [torch.randn(shape, requires_grad=True) for shape in SHAPES]
    value = sum((p**2).sum() for p in w)
    with torch.no_grad():
        bind(fused, w, tensors(SHAPES)).advance(None, None, update(0.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@each_kind
@pytest.mark.parametrize("what", ["gradient", "velocity"])
def test_shapes_are_compared_before_memory_is_touched(fused, what):
    w, wrong, right = (
        [torch.ones(5), torch.ones(4, 3)],
        [torch.ones(5), torch.ones(3, 4)],
        [torch.ones(5), torch.ones(4, 3)],
    )
    with pytest.raises(RuntimeError, match=rf"the {what} of parameter 1 has shape \(3, 4\).*the parameter \(4, 3\)"):
        StepKernels(fused).bind(w, wrong if what == "gradient" else right).advance(wrong, None, update(0.0))
    assert all(t.eq(1).all() for t in w)


def test_plans_of_ever_other_shapes_are_not_collected():
    kernels = StepKernels(True)
    for n in range(1, 3 * PLANS):
        w = tensors([(n,), (2,)])
        kernels.bind(w, w)
    assert len(kernels._plans) <= PLANS


def test_equal_sizes_of_two_dtypes_are_two_plans():
    kernels = StepKernels(True)
    for dtype in (torch.float32, torch.float64):
        w = [torch.ones(10_000, dtype=dtype), torch.ones(3, dtype=dtype)]
        assert kernels.bind(w, w).products()[0] == 10_003


def moments(shapes, seed=3, scale=1.0):
    return Moments([t.square() for t in tensors(shapes, seed)], 0.99, 2.5, 1e-3, scale)


@each_kind
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("averaged", [False, True])
def test_the_diagonal_metric_and_the_average_are_their_formulas(fused, scale, decay, momentum, averaged):
    w, z, x = tensors(SHAPES), tensors(SHAPES, 1) if momentum else None, tensors(SHAPES, 2)
    given, average = moments(SHAPES, scale=scale), tensors(SHAPES, 4) if averaged else None
    new_v = [0.99 * v + 0.01 * (scale * g) ** 2 for v, g in zip(given.v, x, strict=True)]
    M = [(2.5 * v).sqrt() + 1e-3 for v in new_v]
    passes, start = StepKernels(fused).bind(w, x, given), tensors(SHAPES, 5)
    expected = (
        sum((g * g / m).sum() for g, m in zip(x, M, strict=True)),
        sum((a * g).sum() for a, g in zip(w, x, strict=True)),
        sum((a * a * m).sum() for a, m in zip(w, M, strict=True)),
        sum(((a - b) ** 2 * m).sum() for a, b, m in zip(w, start, M, strict=True)),
    )
    assert [float(p) for p in passes.products(start=start)] == pytest.approx([float(p) for p in expected], rel=1e-10)
    direction = [g / m for g, m in zip(x, M, strict=True)]
    plain_w, plain_z = [t.clone() for t in w], None if z is None else [t.clone() for t in z]
    StepKernels(False).bind(plain_w, direction).advance(plain_z, None, update(decay, momentum))
    passes.advance(z, average, update(decay, momentum)._replace(rate=0.3))
    torch.testing.assert_close(w, plain_w, atol=1e-12, rtol=0)
    torch.testing.assert_close(list(given.v), new_v, atol=1e-12, rtol=0)
    if z is not None:
        torch.testing.assert_close(z, plain_z, atol=1e-12, rtol=0)
    if average is not None:
        mean = [0.7 * a + 0.3 * b for a, b in zip(tensors(SHAPES, 4), w, strict=True)]
        torch.testing.assert_close(average, mean, atol=1e-12, rtol=0)


@each_kind
def test_a_skipped_update_changes_no_bit_of_moments_and_averages(fused):
    shapes = SHAPES[:-1]
    w, z, x, average = (tensors(shapes, seed) for seed in (0, 1, 2, 4))
    given = moments(shapes)
    for t in x:
        t.view(-1)[0] = float("inf")
    w[0][0] = average[0][0] = -0.0
    kept = [*w, *z, *average, *given.v]
    before = [t.clone() for t in kept]
    skipped = update(0.05, skip=True, as_tensors=True)._replace(rate=0.3)
    StepKernels(fused).bind(w, x, given).advance(z, average, skipped)
    for a, b in zip(before, kept, strict=True):
        assert torch.equal(a.view(-1).view(torch.int64), b.view(-1).view(torch.int64))


def test_two_cells_of_equal_shapes_keep_their_own_scalars():
    kernels, (w, u, x) = StepKernels(True), (tensors([(4,)], seed) for seed in range(3))
    both = [kernels.bind(a, x, moments([(4,)])._replace(eps=eps)) for a, eps in ((w, 1.0), (u, 9.0))]
    alone = StepKernels(True).bind(w, x, moments([(4,)])._replace(eps=1.0))
    assert both[0].products() == alone.products()


ODD = {
    "transposed": lambda w, x: setattr(w, "data", w.data.t()),
    "shorter": lambda w, x: (setattr(w, "data", w.data[:1]), x.resize_(1, 2)),
    "of another precision": lambda w, x: (setattr(w, "data", w.data.double()), setattr(x, "data", x.data.double())),
    "a negative view": lambda w, x: setattr(x, "data", torch._neg_view(x.data)),
    "a transposed gradient": lambda w, x: setattr(x, "data", x.data.t()),
    "a gradient of another precision": lambda w, x: setattr(x, "data", x.data.double()),
    "nothing": lambda w, x: None,
}


@pytest.mark.parametrize("guards", [True, False])
@pytest.mark.parametrize("odd", ODD)
def test_what_changes_after_a_step_is_noticed(odd, guards, monkeypatch):
    monkeypatch.setattr("proxsvm._kernels.tensors._guards_hold", lambda: guards)
    w, x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 10.0], [100.0, 1000.0]])
    kernels = StepKernels(True)
    kernels.bind([w], [x]).products()
    ODD[odd](w, x)
    found = kernels.bind([w], [x]).products()
    assert found[:3] == (float((x * x).sum()), float((w * x).sum()), float((w * w).sum()))
    for wrong in (torch.ones(3), torch.ones(w.shape, device="meta")):
        with pytest.raises(RuntimeError):
            kernels.bind([w], [wrong])


@pytest.mark.parametrize("missing", [False, True], ids=["torch's fused SGD", "without it"])
@pytest.mark.parametrize(("push", "drop"), [(0.1, 0.02), (0.0, 0.02), (0.1, 0.0), (0.1, 1.0)])
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_a_slice_moves_as_the_formula_says(monkeypatch, missing, push, drop, mu):
    if missing:
        monkeypatch.delattr(torch, "_fused_sgd_")
    w, x, z = ([t.double() for t in tensors([(7,), (200_000,)], seed)] for seed in (0, 1, 2))
    lift = 0.6 * drop
    new_z = [mu * c - push * b - lift * a for a, b, c in zip(w, x, z, strict=True)]
    new_w = [a - drop * a - push * b + mu * c for a, b, c in zip(w, x, new_z, strict=True)]
    SlicedPasses(w, x).advance(z if mu else None, None, Update(push, lift, drop, mu))
    torch.testing.assert_close(w, new_w, rtol=1e-12, atol=1e-12)
    if mu:
        torch.testing.assert_close(z, new_z, rtol=1e-12, atol=1e-12)
