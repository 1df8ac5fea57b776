"""Which modules' values go through which records."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from proxsvm._extras import eager
from proxsvm.optimizer.messages import INSIDE, SHARED
from proxsvm.optimizer.record import Record


def watch(module: nn.Module, record: Record) -> None:
    """Record the values of ``module`` from now on, once, however often it is watched; a copy of it is not watched."""
    known = module.__dict__.get("_watch")
    if not isinstance(known, _Watch):
        known = _Watch()
        module._watch = known  # type: ignore[assignment]
        module.register_forward_pre_hook(known.enter)
        module.register_forward_hook(known.leave, always_call=True)
    known.nested |= any("_watch" in part.__dict__ for part in module.modules() if part is not module)
    if record not in known.live():
        known.records.append(weakref.ref(record, known.records.remove))


class _Watch:
    """The hooks of a watched module, for all records that watch it; a copy belongs to nobody."""

    def __init__(self) -> None:
        self.records: list[weakref.ref[Record]] = []
        self.nested = False  # whether the module contains another watched one

    def live(self) -> list[Record]:
        known = [record() for record in self.records]
        return [record for record in known if record is not None]

    def enter(self, module: nn.Module, args: Any) -> None:
        """A value inside a watched value counts once, as a part of it."""
        if not torch.compiler.is_compiling():
            for record in self.live():
                record.inside.depth = getattr(record.inside, "depth", 0) + 1

    def leave(self, module: nn.Module, args: Any, value: Any) -> Any:
        records = self.live()
        if torch.compiler.is_compiling():
            if self.nested:
                raise RuntimeError(INSIDE)
            if len(records) > 1:
                return criterion_of_several_optimizers_in_eager_mode(records, value)
            return records[0].through(value) if records and value.requires_grad else None
        for record in records:
            record.inside.depth = depth = max(0, getattr(record.inside, "depth", 1) - 1)
            if depth or value is None:  # None after an exception
                continue
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"{type(module).__name__} is watched, and returned a {type(value).__name__}; expected a tensor: "
                    "watch a module that returns its term's value alone, or call optimizer.backward(total)"
                )
            if value.requires_grad:
                if record.hidden and len(records) > 1:
                    raise RuntimeError(SHARED)
                if any(isinstance(x, Tensor) and hasattr(x, "users") for x in args):
                    raise RuntimeError(INSIDE)
                value = record.through(value, shared=len(records) > 1)
        return value

    def __reduce__(self) -> tuple[type[_Watch], tuple[()]]:
        return _Watch, ()


@eager
def criterion_of_several_optimizers_in_eager_mode(records: list[Record], value: Tensor) -> Tensor:
    """Which of several optimizers a value belongs to is in its graph, which a compiler does not have yet."""
    for record in records:
        value = record.through(value, shared=True)
    return value
