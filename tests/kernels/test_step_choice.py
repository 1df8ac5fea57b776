"""fused=None: the compiled loops where they can be used, torch's kernels elsewhere; fused=True insists."""

import threading
import weakref

import pytest
import torch
from torch import nn

from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer


class Tagged(nn.Parameter):
    """A subclass with, perhaps, ideas of its own."""


def alike():
    """Two parameters in the same memory."""
    memory = torch.ones(10)
    return [nn.Parameter(memory[:6]), nn.Parameter(memory[4:])]


def unaligned(g):
    memory = bytearray(1) + bytearray(g.contiguous().numpy().tobytes())
    return torch.frombuffer(memory, dtype=g.dtype, offset=1).view(g.shape)


UNSUITABLE = {
    "torch.bfloat16": lambda: [nn.Parameter(torch.ones(3, dtype=torch.bfloat16))],
    "subclass": lambda: [Tagged(torch.ones(3))],
    "gaps or overlaps": lambda: [nn.Parameter(torch.ones(4, 4)[:, :2])],
    "share memory": alike,
    "another memory order": lambda: [nn.Parameter(unaligned(torch.ones(3)))],
}


def stepped(params, **options):
    for p in params:
        p.grad = torch.full_like(p, 0.1)
    options = {"lr": 0.5, "momentum": 0.9, **options}
    optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, **options)
    optimizer.step(loss=0.01)
    return optimizer


def is_compiled(optimizer):
    params = optimizer.param_groups[0]["params"]
    return optimizer._kernels.bind(0, {"w": params, "g": [p.grad for p in params]}) is not None


def test_the_default_is_the_loops_and_false_never():
    assert is_compiled(stepped([nn.Parameter(torch.ones(3))]))
    assert not is_compiled(stepped([nn.Parameter(torch.ones(3))], fused=False))


@pytest.mark.parametrize("why", UNSUITABLE)
def test_what_the_loops_cannot_walk_goes_without_a_word_unless_they_were_asked_for(why):
    optimizer = stepped(UNSUITABLE[why]())
    assert not is_compiled(optimizer)
    assert 0 < optimizer.last.gamma <= 1
    params = UNSUITABLE[why]()
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match=rf"fused=True, but .*{why}.*Leave fused=None"):
        stepped(params, fused=True)
    assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))


def test_some_parameters_may_be_walked_and_others_not():
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]
    stepped(params)
    assert all(p.lt(1).all() for p in params)


GRADIENTS = {
    "as the weights": ((4, 3, 5, 5), lambda g: g.to(memory_format=torch.channels_last)),
    "another order": ((4, 3, 5, 5), lambda g: g),
    "unaligned": ((4, 1, 5, 5), unaligned),
    "the other sign": ((1, 1, 1, 1), lambda g: torch.complex(g, -g).conj().imag),  # g, stored as −g
}


@pytest.mark.parametrize(("shape", "layout"), GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_in_any_memory(shape, layout):
    """Of channels_last weights."""
    results = []
    for fused in (False, None, True):
        torch.manual_seed(0)
        w = nn.Parameter(torch.randn(shape).to(memory_format=torch.channels_last))
        optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), [w], 0.3, 0.9, 0.01, fused=fused)
        for _ in range(3):
            w.grad = layout(torch.randn(shape))
            optimizer.step(loss=0.5)
        results.append((w.detach(), optimizer.state[w]["z"], optimizer.last.gamma))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("kept", "options"), [("velocity", {}), ("second moment", {"momentum": 0.0, "metric": Diagonal()})]
)
def test_another_shape_in_the_same_memory_is_told(fused, kept, options):
    p = nn.Parameter(torch.ones(2, 3))
    optimizer = stepped([p], fused=fused, **options)
    p.grad, p.data = None, p.data.view(3, 2)
    p.grad = torch.full_like(p, 0.1)
    with pytest.raises(RuntimeError, match=rf"{kept} of parameter 0 has shape \(2, 3\)"):
        optimizer.step(loss=0.01)


def test_another_order_of_the_same_memory_is_another_parameter():
    """What is kept has the order of before."""
    weights = []
    for fused in (None, False):
        p = nn.Parameter(torch.arange(9.0).view(3, 3))
        optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), [p], 0.1, metric=Diagonal(), fused=fused)
        for turned in (False, True):
            p.grad, p.data = None, p.data.t() if turned else p.data
            p.grad = torch.arange(9.0).view(3, 3) + 1
            optimizer.step(loss=1.0)
        weights.append(p.detach())
    torch.testing.assert_close(*weights, atol=1e-12, rtol=0)


def test_parameters_without_elements_beside_others():
    params = [nn.Parameter(torch.ones(n)) for n in (0, 3, 0)]
    stepped(params, fused=True)
    assert params[1].lt(1).all()
    stepped(params[:1], fused=True)


def test_the_gradients_are_not_kept():
    p = nn.Parameter(torch.ones(3))
    optimizer = stepped([p], fused=True)
    gradient = weakref.ref(p.grad)
    optimizer.zero_grad()
    assert gradient() is None


def test_no_number_of_threads_changes_a_bit():
    results = []
    for threads in (1, 2):
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        try:
            params = [nn.Parameter(torch.randn(n)) for n in (4_300_000, 7, 70_000)]
            optimizer = stepped(params, fused=True, weight_decay=0.1)
        finally:
            torch.set_num_threads(1)
        results.append(torch.cat([*[p.detach() for p in params], optimizer.last.gamma.reshape(1)]))
    assert torch.equal(results[0], results[1])


def test_several_threads_of_python_step_at_once():
    def train(seed, into):
        torch.set_num_threads(2)
        generator = torch.Generator().manual_seed(seed)
        w = nn.Parameter(torch.randn(4_300_000, generator=generator))
        optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), [w], 0.3, 0.9, 0.01, fused=True)
        for _ in range(3):
            w.grad = torch.randn(4_300_000, generator=generator)
            optimizer.step(loss=0.5)
        into[seed] = w.detach()

    one_by_one, at_once = {}, {}
    try:
        for seed in range(2):
            train(seed, one_by_one)
        workers = [threading.Thread(target=train, args=(seed, at_once)) for seed in range(2)]
        for act in (threading.Thread.start, threading.Thread.join):
            list(map(act, workers))
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one_by_one[seed], at_once[seed]) for seed in range(2))
