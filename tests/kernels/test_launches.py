"""Calls that would each be a kernel launch on a GPU, counted on fake tensors of one: a test fails when one is added."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.allocations import Allocations
from benchmarks.launches import Calls, count, ours
from proxsvm._kernels.passes import Moments, Update
from proxsvm._kernels.step_foreach import ForeachPasses
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal

each_number_of_tensors = pytest.mark.parametrize("n", [1, 80])
ALL = {"momentum": 0.9, "weight_decay": 0.01, "average": 0.99}


def passes(n, moments, everything, device, dtype=torch.float32, scaled=True):
    """Run both passes on n tensors."""

    def tensors(dtype=dtype):
        return [torch.ones(7, 300, dtype=dtype, device=device) for _ in range(n)]

    def scalar(value):
        return torch.full((), value, device=device)

    w, x, z, average = tensors(), tensors(), tensors(), tensors(torch.float32)
    v = Moments(tensors(torch.float32), 0.99, scalar(2.0), 1e-8, scalar(1.0) if scaled else 1.0) if moments else None
    update = Update(scalar(0.1), scalar(0.1), 0.01, 0.9, scalar(0.1), skip=scalar(0.0) != 0)
    if not everything:
        z, average, update = None, None, Update(scalar(0.1), skip=scalar(0.0) != 0)

    def run():
        made = ForeachPasses(w, x, v)
        made.products(with_w=everything)
        made.advance(z, average, update)

    return run


@each_number_of_tensors
@pytest.mark.parametrize(
    ("moments", "everything", "expected"), [(False, False, 5), (False, True, 25), (True, False, 21), (True, True, 38)]
)
def test_both_passes_are_a_fixed_number_of_calls(n, moments, everything, expected):
    with FakeTensorMode():
        run = passes(n, moments, everything, "cuda")
        with Calls() as calls:
            run()
    assert len(calls.names) == expected, calls.names
    assert not calls.waits
    assert expected <= (40 if moments else 30)


@pytest.mark.parametrize(("moments", "copies"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("everything", [False, True])
def test_temporary_memory_is_that_of_the_flat_buffers_and_the_same_at_every_step(moments, copies, everything):
    """One copy of the parameters in float32, two in the diagonal metric."""
    sizes = []
    for dtype in (torch.float32, torch.bfloat16):
        run = passes(10, moments, everything, "cpu", dtype)
        for _ in range(3):
            with Allocations() as made:
                run()
            sizes.append(made.peak)
            assert made.live == 0
    assert len(set(sizes)) == 1
    parameters = 10 * 7 * 300 * 4
    assert copies * parameters <= sizes[0] <= copies * parameters + 400  # a few scalars


# The whole step.


@each_number_of_tensors
@pytest.mark.parametrize(
    ("metric", "options", "scalars"),
    [
        (None, {}, 12),
        (None, {"weight_decay": 0.01}, 16),
        (None, ALL, 22),
        (Diagonal(), {}, 19),
        (Diagonal(), ALL, 27),
    ],
    ids=str,
)
def test_scalars_between_the_passes(n, metric, options, scalars):
    """γ, the dual, the skip flag and the counters: 0-dim tensors on the device that nothing waits for."""
    calls = count(ours(lr=0.1, metric=metric, **options), [(7, 3)] * n, "cuda")
    everything = options == ALL
    with FakeTensorMode():
        run = passes(n, metric is not None, everything, "cuda", scaled=False)
        with Calls() as in_passes:
            run()
    more = 5 if options and not everything else 0  # ⟨w, x⟩ and ⟨w, w⟩ in the first pass, drop · w in the second
    assert len(calls.names) - len(in_passes.names) - more == scalars, calls.names
    assert not calls.waits


# The criterion.


@pytest.mark.parametrize(
    ("loss", "forward", "backward"),
    [(MultiClassHinge(), 5, 5), (MultiClassHinge(smooth=True), 15, 5), (CrossEntropy(), 2, 3)],
    ids=repr,
)
def test_the_criterion_by_torchs_operations(loss, forward, backward):
    """On an accelerator without Triton, whose kernels are one launch forward and one backward."""
    scores, target = torch.zeros(128, 100, device="meta", requires_grad=True), torch.zeros(128, device="meta").long()
    with Calls() as calls:
        value = loss(scores, target)
    assert (len(calls.names), calls.waits) == (forward, [])
    with Calls() as calls:
        value.backward()
    assert (len(calls.names), calls.waits) == (backward, [])
