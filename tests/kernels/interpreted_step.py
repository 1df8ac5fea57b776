"""The kernels of a step, run by Triton's interpreter: ``TRITON_INTERPRET=1 pytest tests/kernels/interpreted_step.py``.

The interpreter has to be chosen before triton is imported: test_step_triton.py runs this file in a process of its own.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn

from proxsvm import ProxOptimizer
from proxsvm._kernels import step_triton
from proxsvm._kernels.passes import Moments, Update
from proxsvm._kernels.step import StepKernels
from proxsvm._kernels.step_foreach import ForeachPasses
from proxsvm._kernels.tensors import accumulator
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW

assert os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the interpreter computes in NumPy
CHUNK = 4096
SHAPES = [(3,), (2, 5), (), (0, 3), (1025,), (2048,), (CHUNK + 7,), (1,)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
each_metric = pytest.mark.parametrize("moments", [False, True], ids=["Euclidean", "diagonal"])


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(step_triton, "DEVICES", frozenset({"cuda", "cpu"}))
    monkeypatch.setattr(step_triton, "CHUNK", CHUNK)


def tensors(shapes, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def second_moments(shapes, dtype, scale=0.25):
    v = [t.square() for t in tensors(shapes, 6, accumulator(dtype))]
    return Moments(v, 0.99, torch.tensor(2.5), 1e-3, scale)


class Case:
    """The tensors of a step, and what both passes make of them."""

    def __init__(self, dtype, moments, shapes=SHAPES, wide=False, **given):
        wider = accumulator(dtype)
        self.w, self.x, self.start = (tensors(shapes, seed, dtype) for seed in (0, 1, 2))
        self.z, self.average = tensors(shapes, 3, wider if wide else dtype), tensors(shapes, 4, wider)
        self.moments = second_moments(shapes, dtype) if moments else None
        self.__dict__.update(given)

    @property
    def kept(self):
        lists = [self.w, self.z, self.average, None if self.moments is None else self.moments.v]
        return [t for tensors in lists if tensors is not None for t in tensors]

    def run(self, make, update, with_w=True):
        passes = make(self.w, self.x, self.moments)
        sums = [float(p) for p in passes.products(with_w, self.start)]
        passes.advance(self.z, self.average, update)
        return sums, self.kept


def fused(w, x, moments):
    made = StepKernels(True).bind(w, x, moments)
    assert isinstance(made, step_triton.FusedPasses)
    return made


UPDATES = {
    "floats": Update(0.18, 0.009, 0.015, 0.9, 0.3),
    "tensors": Update(*(torch.tensor(c, dtype=torch.float64) for c in (0.18, 0.009, 0.015)), 0.9, torch.tensor(0.25)),
    "not skipped": Update(torch.tensor(0.125), 0.009, 0.0, 0.9, 0.3, skip=torch.tensor(False)),
}


def same(case, update, dtype, **options):
    other = copy.deepcopy(case)
    got, expected = case.run(fused, update, **options), other.run(ForeachPasses, update, **options)
    rel = TOLERANCE[dtype]
    assert got[0] == pytest.approx(expected[0], rel=max(rel, 1e-12), abs=rel)
    for a, b in zip(got[1], expected[1], strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=rel, rtol=rel)


@each_dtype
@each_metric
@pytest.mark.parametrize("update", UPDATES)
def test_it_is_the_plain_twin(dtype, moments, update):
    same(Case(dtype, moments), UPDATES[update], dtype)


@each_metric
@pytest.mark.parametrize("missing", ["z", "average", "start"])
def test_with_less(moments, missing):
    same(Case(torch.float64, moments, **{missing: None}), UPDATES["floats"], torch.float64)


@each_metric
def test_without_weights_in_the_products(moments):
    same(Case(torch.float32, moments, start=None), UPDATES["floats"], torch.float32, with_w=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@each_metric
def test_half_precision_parameters_with_a_float32_velocity(dtype, moments):
    same(Case(dtype, moments, wide=True), UPDATES["tensors"], dtype)


@each_metric
def test_nothing_but_empty_tensors(moments):
    same(Case(torch.float64, moments, [(0,), (3, 0)]), UPDATES["floats"], torch.float64)


@each_metric
def test_unaligned_tensors_and_other_orders_of_memory(moments):
    case = Case(torch.float64, moments, [(7,), (130,), (4, 3, 5, 5)])
    for name in ("w", "x", "z", "average"):
        memory = torch.randn(400)
        a, b, c = getattr(case, name)
        odd = [memory[1:8].copy_(a), memory[13:143].copy_(b)]
        setattr(case, name, [*odd, c.to(memory_format=torch.channels_last) if name != "z" else c])
    case.x[2] = case.x[2].contiguous()
    same(case, UPDATES["floats"], torch.float64)


@each_metric
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_skipped_update_changes_no_bit(moments, bad):
    case = Case(torch.float64, moments, [(5,), (3000,)])
    case.w[0][0] = case.z[0][0] = case.average[0][0] = -0.0
    for t in case.x:
        t[0] = bad
    before = [t.clone() for t in case.kept]
    case.run(fused, UPDATES["tensors"]._replace(skip=torch.tensor(True)))
    for a, b in zip(before, case.kept, strict=True):
        assert torch.equal(a.view(torch.int64), b.view(torch.int64))


def test_sums_are_the_same_bit_for_bit_and_the_ticket_is_given_back():
    case, kernels = Case(torch.float32, True), StepKernels(True)
    passes = kernels.bind(case.w, case.x, case.moments)
    found = {tuple(float(p) for p in passes.products(start=case.start)) for _ in range(3)}
    assert len(found) == 1
    assert int(passes._plan.ticket) == 0


def test_a_table_of_addresses_is_kept_for_as_long_as_nothing_moves():
    case, kernels = Case(torch.float32, False), StepKernels(True)
    plan = kernels.bind(case.w, case.x)._plan
    for _ in range(3):
        kernels.bind(case.w, case.x).products()
    assert len(plan._tables) == 1
    case.x[0] = case.x[0].clone()
    kernels.bind(case.w, case.x).products()
    assert len(plan._tables) == 2
    for _ in range(3 * step_triton.TABLES):
        others = [t.clone() for t in case.x]
        kernels.bind(case.w, others).products()
    assert len(plan._tables) <= step_triton.TABLES


def test_autograd_sees_that_the_weights_have_changed():
    w = [torch.randn(5, requires_grad=True)]
    value = (w[0] ** 2).sum()
    with torch.no_grad():
        fused(w, [torch.ones(5)], None).advance(None, None, Update(0.1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_what_they_cannot_take_is_named():
    memory = torch.ones(10)
    for w, why in (([memory[:6], memory[4:]], "share memory"), ([torch.ones(4, 4)[:, :2]], "gaps or overlaps")):
        with pytest.raises(RuntimeError, match=rf"fused=True, but .*{why}.*GPU memory"):
            StepKernels(True).bind(w, w)
        assert isinstance(StepKernels().bind(w, w), ForeachPasses)


# A whole training.

OPTIONS = [
    {},
    {"momentum": 0.0, "average": None},
    {"max_grad_norm": 0.1},
    {"scale": 64.0},
    {"lr": torch.tensor(0.5)},
    {"lr": "auto"},
]


def train(fused, metric, dtype=torch.float64, scale=None, **options):
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    model = nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 3))
    given = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, "average": 0.9, **options}
    optimizer = ProxOptimizer(
        MultiClassHinge(smooth=True), SingleStepFW(), model.parameters(), metric=metric, fused=fused, **given
    )
    for t in range(4):
        optimizer.zero_grad()
        x, y = torch.randn(8, 5), torch.randint(3, (8,))
        (optimizer.loss(model(x), y) * (scale or 1.0)).backward()
        if scale is not None:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(float(t == 3))
        if t == 2:
            model[2].bias.grad[0] = float("nan")
        optimizer.step()
    state = [s[k] for s in optimizer.state.values() for k in sorted(s)]
    return [p.detach() for p in model.parameters()] + state, optimizer


@pytest.mark.filterwarnings("ignore:a gradient was changed:UserWarning")
@pytest.mark.parametrize("metric", [None, Diagonal()], ids=repr)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_training_is_that_of_the_plain_twin(metric, options):
    (got, ours), (expected, twin) = (train(fused, metric, **options) for fused in (True, False))
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
    assert int(ours.skipped) == int(twin.skipped) == 1 + ("scale" in options)
    assert float(ours.last.gamma) == pytest.approx(float(twin.last.gamma), abs=1e-12)
    assert float(ours.last.dual) == pytest.approx(float(twin.last.dual), abs=1e-12)
