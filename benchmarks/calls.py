"""How many of torch's operations a step is on an accelerator, where each of them launches a kernel; needs no GPU."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common import Options, write
from benchmarks.step import OURS, TORCHS, peers, update


class Calls(TorchDispatchMode):
    """The operations that launch a kernel, and those that wait for the device."""

    WAITS = frozenset({"_local_scalar_dense", "equal", "nonzero", "is_nonzero"})
    FREE = frozenset(  # views, and memory that is not written
        {"view", "_unsafe_view", "_reshape_alias", "as_strided", "expand", "t", "transpose", "permute", "unsqueeze"}
        | {"squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "detach", "alias", "lift_fresh"}
        | {"empty", "empty_like", "new_empty", "empty_strided"}
        | {"_record_function_enter_new", "_record_function_exit", "device"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.names, self.waits = list[str](), list[str]()

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


def main(options: Options) -> None:
    makes = {name: make(fused=False) for name, make in OURS.items()} | {"SGD foreach": TORCHS["SGD foreach"]} | peers()
    rows = []
    for name, make in makes.items():
        with FakeTensorMode() if name in OURS else nullcontext():  # which has no values, as on an accelerator
            few, many = (count(update(make, [(8, 8), (8,)] * n)) for n in (5, 100))
        kernels = {"10 tensors": len(few.names), "200 tensors": len(many.names)}
        rows.append({"optimizer": name, **kernels, "waits": len(many.waits)})
    write(options, "calls", rows, "Operations of a step, scalars included; waits for the device with 200 tensors.")
