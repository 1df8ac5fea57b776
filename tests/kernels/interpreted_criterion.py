"""The kernels of the criterion, run by Triton's interpreter, in the process that test_step_triton.py starts for it."""

from __future__ import annotations

import os

import pytest
import torch

from proxsvm import ProxOptimizer
from proxsvm._kernels import class_rows, class_triton, class_triton_kernels, step_triton
from proxsvm.losses import ConvexLoss, CrossEntropy, MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW

assert os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # the interpreter computes in NumPy
LOSSES = {
    "hinge": MultiClassHinge,
    "smooth hinge": lambda **options: MultiClassHinge(smooth=True, **options),
    "cross-entropy": CrossEntropy,
}
each_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """The interpreter's kernels instead of the compiled loops, and rows that take several blocks."""
    monkeypatch.setattr(step_triton, "DEVICES", frozenset({"cuda", "cpu"}))
    monkeypatch.setattr("proxsvm.losses._compiled.in_memory", lambda scores, target: False)
    monkeypatch.setattr(class_triton_kernels, "BLOCK", 32)


def batch(n, K, dtype=torch.float64, spread=2.0):
    torch.manual_seed(n + K)
    return (spread * torch.randn(n, K)).to(dtype), torch.randint(K, (n,))


def twin(loss, scores, target):
    """The value and the gradient by torch's own operations."""
    u = scores.detach().requires_grad_()
    value = ConvexLoss.forward(loss, u, target)
    return value.detach(), *torch.autograd.grad(value, u)


def same(loss, scores, target, tolerance=1e-12):
    u = scores.detach().requires_grad_()
    assert class_triton.on_gpu(u.float(), target)
    value = loss(u, target)
    assert "_Rows" in repr(value.grad_fn) or "Rows" in repr(value.grad_fn.next_functions)
    (2 * value).backward()
    expected, gradient = twin(loss, scores, target)
    torch.testing.assert_close(value.detach(), expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    torch.testing.assert_close(u.grad, 2 * gradient, atol=tolerance, rtol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(loss(scores, target), expected, atol=tolerance, rtol=tolerance, equal_nan=True)


@each_loss
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (5, 33), (4, 100)], ids=str)
def test_it_is_the_plain_twin(make, shape):
    same(make(), *batch(*shape))


@each_loss
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_other_precisions(make, dtype, tolerance):
    same(make(), *batch(9, 17, dtype), tolerance)


@each_loss
@pytest.mark.parametrize(
    "options", [{"reduction": "sum"}, {"ignore_index": 2}, {"weight": torch.tensor([0.0, 2, 1, 3])}]
)
def test_options(make, options):
    scores, target = batch(12, 4)
    if "ignore_index" not in options:
        target[::7] = -100
    same(make(**options), scores, target)
    same(make(**options), 0.1 * scores, target)  # where the softmax does not help


@each_loss
def test_masked_classes(make):
    scores, target = batch(6, 5)
    scores[0, (target[0] + 1) % 5] = scores[1, (target[1] + 2) % 5] = -torch.inf
    others = torch.arange(5) != target[2]
    scores[2, others] = -torch.inf
    same(make(), scores, target)


@each_loss
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(make, bad):
    scores, target = batch(6, 70)
    scores[3, (target[3] + 40) % 70] = bad
    value = make()(scores, target)
    assert not value.isfinite()
    target[3] = -100
    assert make()(scores, target).isfinite()  # a sample that does not count does not count


@each_loss
@pytest.mark.parametrize("wrong", [5, -1])
def test_a_class_that_does_not_exist_fails_an_assertion_on_the_device(make, wrong):
    scores, target = batch(6, 5)
    target[2] = wrong
    with pytest.raises(RuntimeError, match=r"a class index is outside \[0, 5\)"):
        make()(scores, target)
    same(make(), *batch(6, 5))  # and the counter of the programs is 0 again


def test_every_run_gives_the_same_bits():
    scores, target = batch(40, 7, torch.float32)
    assert len({float(MultiClassHinge(smooth=True)(scores, target)) for _ in range(3)}) == 1


def test_the_cross_entropy_can_be_differentiated_twice():
    scores, target = batch(2, 3)
    assert torch.autograd.gradgradcheck(lambda u: CrossEntropy()(u, target), scores.requires_grad_())


@pytest.mark.parametrize("solver", [SingleStepFW(), MultiStepFW(3)], ids=repr)
@each_loss
def test_training_is_that_of_the_plain_twin(make, solver, monkeypatch):
    results = []
    for kernels in (True, False):
        if not kernels:
            monkeypatch.setattr(step_triton, "DEVICES", frozenset())
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 4)
        optimizer = ProxOptimizer(make(), solver, model.parameters(), lr=0.5, momentum=0.9)
        for _ in range(3):
            x, y = torch.randn(4, 6), torch.randint(4, (4,))
            optimizer.step(lambda x=x, y=y: optimizer.loss(model(x), y))
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)


def test_the_kinds_have_the_numbers_of_the_loops():
    assert tuple(LOSSES) == class_rows.KINDS
