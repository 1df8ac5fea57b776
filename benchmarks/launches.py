"""What a step costs an accelerator: calls that would each be a kernel launch, and waits of the host. Needs no GPU.

Ours and torch's run on fake tensors of a GPU, which have a device, a dtype and a shape, and no memory: they take the
path that they take there. Some of the peers read a number from the device, which a fake tensor does not have. They run
on the CPU, with torch's foreach calls where they have the option.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common import Options, write
from benchmarks.step import LISTS, NESTEROV
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW


class Calls(TorchDispatchMode):
    """The names of all calls that launch something, and of those that wait for the device.

    >>> with Calls() as calls:
    ...     _ = float(torch.ones(2).view(2, 1).sum())
    >>> calls.names, calls.waits
    (['ones', 'sum'], ['_local_scalar_dense'])
    """

    WAITS = frozenset({"_local_scalar_dense", "equal", "nonzero", "is_nonzero"})
    FREE = frozenset(  # views, and memory that is not written
        {"view", "_unsafe_view", "_reshape_alias", "as_strided", "expand", "t", "transpose", "permute", "unsqueeze"}
        | {"squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "detach", "alias", "empty"}
        | {"empty_like", "new_empty", "empty_strided", "lift_fresh", "device"}
        | {"_record_function_enter_new", "_record_function_exit"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.WAITS:
            self.waits.append(name)
        elif name not in self.FREE:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


Shapes = list[tuple[int, ...]]
Make = Callable[[list[nn.Parameter]], Callable[[], Any]]


def count(make: Make, shapes: Shapes, device: str) -> Calls:
    """The calls of the third step on parameters of these shapes: what is created once exists by then."""
    with FakeTensorMode() if device != "cpu" else nullcontext():
        params = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
        step = make(params)
        for _ in range(3):
            for p in params:
                p.grad = torch.ones_like(p)
            with Calls() as calls:
                step()
    return calls


def ours(**options: Any) -> Make:
    """A step of SingleStepFW with torch's own operations."""

    def make(params: list[nn.Parameter]) -> Callable[[], Any]:
        value = torch.full((), 0.01, device=params[0].device)
        optimizer = ProxOptimizer(MultiClassHinge(), SingleStepFW(), params, fused=False, **options)
        return lambda: optimizer.step(loss=value)

    return make


def with_value(make: Callable[[list[nn.Parameter]], Any]) -> Make:
    """A step of an optimizer that takes the loss."""
    value = torch.tensor(0.01)

    def made(params: list[nn.Parameter]) -> Callable[[], Any]:
        optimizer = make(params)
        return lambda: optimizer.step(loss=value)

    return made


def schedule_free(params: list[nn.Parameter]) -> Callable[[], Any]:
    """A step of schedule-free SGD, in training mode."""
    free = load("schedulefree", extra="peers").SGDScheduleFree(params, lr=0.1, weight_decay=1e-4, foreach=True)
    free.train()
    step: Callable[[], Any] = free.step
    return step


OURS = {
    "SingleStepFW": ours(**NESTEROV),
    "SingleStepFW, average": ours(**NESTEROV, average=0.99),
    "SingleStepFW, Diagonal()": ours(**NESTEROV, metric=Diagonal()),
    "SingleStepFW, Diagonal(), average": ours(**NESTEROV, metric=Diagonal(), average=0.99),
}
TORCHS: dict[str, Make] = {
    "SGD foreach": lambda params: torch.optim.SGD(params, nesterov=True, foreach=True, **NESTEROV).step,
    "Adam foreach": lambda params: torch.optim.Adam(params, weight_decay=1e-4, foreach=True, capturable=True).step,
}
PEERS: dict[str, Make] = {
    "MoMo": with_value(lambda params: load("momo", extra="peers").Momo(params, lr=0.1, weight_decay=1e-4)),
    "schedule-free SGD": schedule_free,
    "Prodigy": lambda params: load("prodigyopt", extra="peers").Prodigy(params, weight_decay=1e-4).step,
}


def rows() -> list[dict[str, Any]]:
    """Each optimizer on the tensors of a WRN-40-4, and on one tensor."""
    wrn = next(iter(LISTS.values()))
    found = []
    for names, device in ((OURS | TORCHS, "cuda"), (PEERS, "cpu")):
        for name, make in names.items():
            many, one = count(make, wrn, device), count(make, [(64, 64)], device)
            found.append(
                {
                    "optimizer": name,
                    "calls, WRN-40-4 (116 tensors)": len(many.names),
                    "waits": len(many.waits),
                    "calls, one tensor": len(one.names),
                    "waits of one": len(one.waits),
                }
            )
    return found


def main(options: Options) -> None:
    """Count the calls of a step, and the waits for the device."""
    note = "Momentum and weight decay where the optimizer has them; with torch's own operations, scalars included."
    write(options, "launches", rows(), note)
