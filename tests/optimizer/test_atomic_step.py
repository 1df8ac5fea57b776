"""An exception anywhere inside a step leaves everything as before, or the step is complete."""

import copy
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from proxsvm import follow
from proxsvm._kernels import step
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal, Kronecker
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_faults import same
from tests.optimizer.test_optimizer import batches


class RaisingAt(TorchDispatchMode):
    """Raises once: before the k-th of torch's operations and calls of a compiled loop, or after it if k is even."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k, self.calls = k, 0

    def call(self, function, *args, **kwargs):
        self.calls += 1
        if self.calls == self.k and self.k % 2:
            raise MemoryError
        result = function(*args, **kwargs)
        if self.calls == self.k:
            raise KeyboardInterrupt
        return result

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.call(func, *args, **(kwargs or {}))


def started(options, norm=False):
    """Two groups and two precisions, so four buckets, after two steps."""
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6), nn.BatchNorm1d(6) if norm else nn.ReLU(), nn.Linear(6, 5).float(), nn.Linear(5, 4)]
    model = nn.Sequential(*layers).double() if norm else nn.Sequential(*layers)
    groups = [{"params": layers[0].parameters()}, {"params": model[2:].parameters(), "weight_decay": 0.1}]
    optimizer = ProxOptimizer(MultiClassHinge(smooth=True), SingleStepFW(), groups, **options)
    if norm:
        follow(model, optimizer)
    for x, y in batches(2):
        forward(model, optimizer, x, y)
        optimizer.step()
    return model, optimizer


def forward(model, optimizer, x, y):
    optimizer.zero_grad()
    for layer in model:
        x = layer(x.to(getattr(layer, "weight", x).dtype))
    value = optimizer.loss(x.double(), y)
    if not optimizer.solver.needs_graph:
        value.backward()
    return value


def everything(model, optimizer):
    """All that a step may change; not what is shared with whom."""
    kept = [*optimizer.state.values()], optimizer.param_groups[0], float(optimizer.skipped)
    return copy.deepcopy((dict(model.named_parameters()), kept))


SETTINGS = {
    "paper": {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01},
    "diagonal": {"lr": 0.01, "momentum": 0.9, "metric": Diagonal(), "average": 0.9},
    "memory, auto": {"lr": "auto", "memory": 0.9, "metric": Diagonal(), "average": 0.9, "weight_decay": 0.01},
    "kronecker": {"lr": "auto", "memory": 0.9, "metric": Kronecker(every=2), "average": 0.9},
}


def outcome(model, optimizer, data, raising):
    """Everything before and after a step of a copy, in which ``raising`` may raise."""
    model, optimizer = copy.deepcopy((model, optimizer))
    if isinstance(model[1], nn.BatchNorm1d):
        follow(model, optimizer)
    value = forward(model, optimizer, *data)
    start = everything(model, optimizer)
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt, MemoryError), raising:
        for loops in ("products_loop", "update_loop"):
            build = getattr(step, loops)
            patch.setattr(step, loops, lambda *a, build=build: lambda *x: raising.call(build(*a), *x))
        optimizer.step((lambda: value) if optimizer.solver.needs_graph else None)
    return start, everything(model, optimizer)


@pytest.mark.parametrize("several", [False, True], ids=["single step", "several steps"])
@pytest.mark.parametrize("fused", [None, False], ids=["compiled", "torch"])
@pytest.mark.parametrize("name", SETTINGS)
def test_an_exception_at_any_call_leaves_a_step_undone_or_complete(name, fused, several, monkeypatch):
    if fused is None and (several or name in ("kronecker", "diagonal")):
        pytest.skip("has no compiled loops, or the same as another")
    monkeypatch.setattr(step, "CHUNK", 8)  # several chunks of each parameter
    model, optimizer = started({**SETTINGS[name], "fused": fused}, norm=name == "kronecker")
    optimizer.solver, data, seen = MultiStepFW(2) if several else SingleStepFW(), batches(3)[-1], set()
    never = RaisingAt(0)
    _, end = outcome(model, optimizer, data, never)
    calls = never.calls
    # What is written is written in the end; whatever were written before would show at each later call.
    for k in (*range(1, calls - 25, calls // 10), *range(calls - 25, calls + 1)):
        start, after = outcome(model, optimizer, data, RaisingAt(k))
        seen.add(moved := not same(start, after))
        assert not moved or same(after, end), k
    assert seen == {False, True}
