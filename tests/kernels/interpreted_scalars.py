"""The formulas between the passes, run by Triton's interpreter, in a process of its own: see interpreted_step.py."""

from __future__ import annotations

import itertools
import math
import os

import pytest
import torch
from torch import nn

from proxsvm import ProxOptimizer
from proxsvm._kernels import scalars, scalars_triton, step_triton, step_triton_kernels
from proxsvm._kernels.passes import Sums
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW

assert os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the interpreter computes in NumPy
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(step_triton, "DEVICES", frozenset({"cuda", "cpu"}))


def both(monkeypatch, run):
    """What a formula gives in Triton, and in torch's operations."""
    assert scalars._gpu(torch.ones(())) is scalars_triton
    ours = run()
    with monkeypatch.context() as patch:
        patch.setattr(scalars, "_gpu", lambda number: None)
        return ours, run()


def check(ours, expected, dtype):
    assert [isinstance(x, torch.Tensor) for x in ours] == [isinstance(x, torch.Tensor) for x in expected]
    for a, b in zip(ours, expected, strict=True):
        if isinstance(b, torch.Tensor):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=1e-30, equal_nan=True)
        else:
            assert a == b


@each_dtype
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("on_device", [False, True])
def test_weighed(monkeypatch, dtype, decay, on_device):
    eta = torch.tensor(0.1, dtype=dtype) if on_device else 0.1
    xx, wx, ww = torch.tensor([2.0, -3.0, 4.0], dtype=dtype).unbind()
    sums = Sums(xx, wx, ww) if decay else Sums(xx)
    check(*both(monkeypatch, lambda: scalars.weighed(sums, eta, decay)), dtype)


VALUES = [0.0, 1.0, -2.0, 7.5, math.nan, math.inf]


@each_dtype
def test_climbed(monkeypatch, dtype):
    """At both ends, inside, on a line, and with what is not finite."""
    for toward, curvature in itertools.product(VALUES, [0.0, 0.5, 1e30, math.nan]):
        given = [torch.tensor(x, dtype=dtype) for x in (toward, curvature)]

        def run(given=given):
            return scalars.climbed(0.25, 0.0, given[0], torch.tensor(0.5, dtype=dtype), given[1])

        (gamma, dual, lam), expected = both(monkeypatch, run)
        finite = math.isfinite(toward) and math.isfinite(curvature)
        assert torch.isfinite(dual) == torch.isfinite(expected[1]) == finite
        if finite:
            check((gamma, dual, lam), expected, dtype)


@each_dtype
@pytest.mark.parametrize("overflow", [False, torch.tensor(False), torch.tensor(True)], ids=str)
@pytest.mark.parametrize("dual", VALUES)
@pytest.mark.parametrize("value", VALUES)
def test_verdict(monkeypatch, dtype, overflow, dual, value):
    counters = iter([torch.tensor(3), torch.tensor(3)])
    kept = []

    def run():
        kept.append(next(counters))
        return scalars.verdict(torch.tensor(dual, dtype=dtype), torch.tensor(value, dtype=dtype), overflow, kept[-1])

    ours, expected = both(monkeypatch, run)
    assert ours.dtype == torch.bool
    assert bool(ours) == bool(expected) == (not math.isfinite(dual + value) or bool(overflow))
    assert kept[0] == kept[1] == 3 + int(ours)


@each_dtype
@pytest.mark.parametrize("skip", [False, torch.tensor(False), torch.tensor(True)], ids=str)
@pytest.mark.parametrize("eta", [0.1, 0.0], ids=str)
@pytest.mark.parametrize(("decay", "average", "count"), [(0.0, None, True), (0.5, 0.9, True), (0.5, 0.9, False)])
def test_coefficients(monkeypatch, dtype, skip, eta, decay, average, count):
    gamma, kept = torch.tensor(0.25, dtype=dtype), []

    def run():
        kept.append(torch.tensor(40.0, dtype=dtype))
        eta_ = torch.tensor(eta, dtype=dtype)
        return scalars.coefficients(eta_, decay, gamma, gamma, skip, mu=0.9, average=average, t=kept[-1], count=count)

    ours, expected = both(monkeypatch, run)
    rate = 0.0 if average is None else max(1 - average, 9 / 50)
    assert float(ours.rate) == pytest.approx(float(expected.rate), rel=1e-6) == pytest.approx(rate, rel=1e-6)
    check(ours[:3], expected[:3], dtype)
    assert bool(ours.skip) == bool(expected.skip) == (bool(skip) or eta == 0)
    assert kept[0] == kept[1] == 40 + (count and not bool(ours.skip))


@pytest.mark.parametrize("beta2", [0.0, 0.9, 0.999])
def test_the_bias_correction(beta2):
    log = math.log(beta2) if beta2 else -math.inf
    for t in (0, 1, 1000):
        found = scalars_triton.bias_correction(log, torch.tensor(float(t)), torch.float64)
        assert float(found) == pytest.approx(1 / (1 - beta2 ** (t + 1)), rel=1e-12)


class Counter:
    """Stands before a kernel, and counts its launches."""

    def __init__(self, kernel, name, seen):
        self.kernel, self.name, self.seen = kernel, name, seen

    def __getitem__(self, grid):
        self.seen.append(self.name)
        return self.kernel[grid]


ALL = {"momentum": 0.9, "weight_decay": 0.01, "average": 0.99}


@pytest.mark.parametrize("options", [{}, ALL, {**ALL, "metric": Diagonal()}], ids=str)
def test_a_step_is_two_passes_and_at_most_five_launches_between_them(monkeypatch, options):
    monkeypatch.setattr(scalars, "on_host", lambda x: False)  # as for the counters of a GPU
    seen = []
    for module, names in (
        (step_triton_kernels, ("products", "advance")),
        (scalars_triton, ("weigh", "climb", "judge", "combine", "correct")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Counter(getattr(module, name), name, seen))
    params = [nn.Parameter(torch.randn(7)) for _ in range(3)]
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, lr=0.1, fused=True, **options)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        seen.clear()
        optimizer.step(loss=torch.tensor(0.5))
    corrected = ["correct"] if "metric" in options else []
    assert seen == [*corrected, "products", "weigh", "climb", "judge", "combine", "advance"]
