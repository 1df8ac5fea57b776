"""How many of torch's operations a step is on an accelerator, where each of them launches a kernel; needs no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common import Options, write
from benchmarks.step import PAPER, PLAIN, Shapes, parameters
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import CrossEntropy
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import SingleStepFW

Make = Callable[[list[nn.Parameter]], Callable[[], Any]]
SIZES = (10, 200)


class Calls(TorchDispatchMode):
    """The operations that launch a kernel, and those that wait for the device.

    >>> with Calls() as calls:
    ...     _ = float(torch.ones(2).view(2, 1).sum())
    >>> calls.names, calls.waits
    (['ones', 'sum'], ['_local_scalar_dense'])
    """

    WAITS = frozenset({"_local_scalar_dense", "equal", "nonzero", "is_nonzero"})
    FREE = frozenset(  # views, and memory that is not written
        {"view", "_unsafe_view", "_reshape_alias", "as_strided", "expand", "t", "transpose", "permute", "unsqueeze"}
        | {"squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "detach", "alias", "lift_fresh"}
        | {"empty", "empty_like", "new_empty", "empty_strided"}
        | {"_record_function_enter_new", "_record_function_exit", "device"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in self.FREE:
            (self.waits if name in self.WAITS else self.names).append(name)
        return func(*args, **(kwargs or {}))


def count(make: Make, shapes: Shapes) -> Calls:
    """The operations of the third step: what is made once exists by then."""
    step = make(parameters(shapes))
    step()
    step()
    with Calls() as calls:
        step()
    return calls


def ours(**given: Any) -> Make:
    """A step of SingleStepFW, by torch's operations."""

    def make(params: list[nn.Parameter]) -> Callable[[], Any]:
        optimizer = ProxOptimizer(CrossEntropy(), SingleStepFW(), params, fused=False, **{**PAPER, **given})
        value = torch.tensor(0.01)
        return lambda: optimizer.step(loss=value)

    return make


def schedule_free(params: list[nn.Parameter]) -> Callable[[], Any]:
    optimizer = load("schedulefree", extra="peers").SGDScheduleFree(params, lr=0.1, foreach=True)
    optimizer.train()
    return lambda: optimizer.step()


MAKES: dict[str, Make] = {
    "Euclidean": ours(metric=Euclidean()),
    "Euclidean, average": ours(metric=Euclidean(), average=0.995),
    "Diagonal": ours(metric=Diagonal()),
    "Diagonal, average": ours(metric=Diagonal(), average=0.995),
    "SGD foreach": lambda params: torch.optim.SGD(params, nesterov=True, foreach=True, **PLAIN).step,
    "schedule-free SGD foreach": schedule_free,
    "Prodigy": lambda params: load("prodigyopt", extra="peers").Prodigy(params).step,
}


def main(options: Options) -> None:
    rows = []
    for name, make in MAKES.items():
        found = {n: count(make, [(8, 8), (8,)] * (n // 2)) for n in SIZES}
        row = {f"{n} tensors": len(calls.names) for n, calls in found.items()}
        rows.append({"optimizer": name, **row, "waits": len(found[SIZES[-1]].waits)})
    write(options, "calls", rows, "Operations of a step, scalars included; waits for the device with 200 tensors.")
