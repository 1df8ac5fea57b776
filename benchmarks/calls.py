"""How many of torch's operations a step is on an accelerator, where each of them launches a kernel; needs no GPU."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common import Options, write
from benchmarks.step import Shapes, Steps, ours, peers, torchs

SIZES = (10, 200)


class Calls(TorchDispatchMode):
    """The operations that launch a kernel, and those that wait for the device.

    >>> import torch
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


def count(step: Callable[[], Any]) -> Calls:
    """The operations of the third step: what is made once exists by then."""
    step()
    step()
    with Calls() as calls:
        step()
    return calls


def steps(shapes: Shapes) -> Steps:
    """Those that have a path for accelerators."""
    return ours(shapes, fused=False) | {"SGD foreach": torchs(shapes)["SGD foreach"]} | peers(shapes)


def main(options: Options) -> None:
    found = {n: {name: count(step) for name, step in steps([(8, 8), (8,)] * (n // 2)).items()} for n in SIZES}
    rows = [
        {"optimizer": name, **{f"{n} tensors": len(found[n][name].names) for n in SIZES}, "waits": len(calls.waits)}
        for name, calls in found[SIZES[-1]].items()
    ]
    write(options, "calls", rows, "Operations of a step, scalars included; waits for the device with 200 tensors.")
