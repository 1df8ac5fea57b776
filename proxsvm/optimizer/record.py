"""The value that a backward pass differentiated, kept by autograd itself; and the modules whose values it counts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from proxsvm._extras import eager
from proxsvm._kernels.tensors import accumulator
from proxsvm.linearization.graph import leaves, reaches
from proxsvm.losses.base import Origin, without_autocast
from proxsvm.optimizer.messages import EDITED, INSIDE, MISSING, NO_TENSOR, SECOND_ORDER, SHARED, USED, WEIGHTS

ROUNDING = 1e-5  # of float32, in which a value may have been read and passed back


class Record:
    """Σ weight × (value, lower bound) of what was differentiated since ``clear()``, ``[2]``, on the device.

    A watched value passes through ``value · one + bound · zero``, with the leaf (one, zero) = (1, 0): the value, bit
    for bit. d(weight · value · one)/d one = weight · value, so the leaf's gradient is the record, summed over
    micro-batches like gradients, in eager mode and inside a compiled graph. This is right for weighted sums;
    :meth:`backward` records any function of values.

    Args:
        params: returns the optimizer's parameters; only values that depend on one of them are recorded.
        hidden: whether the graph does not contain the parameters, as under FSDP: then every value counts.

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> record = Record(lambda: [w])
    >>> (record.through((2 * w).sum()) / 4).backward()
    >>> record.sums
    tensor([1.5000, 0.0000])
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]], hidden: bool = False) -> None:
        self._params, self.hidden, self.inside = params, hidden, _Inside()
        self._reached: set[int] | None = None if hidden else set()  # what values reach, until the first step
        self.clear()
        # Who clips or divides changes all gradients: the smallest one shows it, and passes that nobody recorded.
        known = [] if hidden else [p for p in params() if p.requires_grad]
        self._sentinel = min(known, key=Tensor.numel, default=None)
        if self._sentinel is not None:
            add: Any = self._sentinel.register_post_accumulate_grad_hook
            weakref.finalize(self, add(_hook(self._accumulated)).remove)

    def clear(self) -> None:
        """Forget what was differentiated."""
        self._stepped: tuple[weakref.ref[Tensor], int] | None = None  # a gradient after the last step, and its version
        self._users: list[list[weakref.ref[Record]]] = []  # for each value: the record whose step has used it
        self._faults: set[str] = set()
        self._unrecorded = 0  # passes that gave the sentinel a gradient, less those that were recorded
        self._left: tuple[int, Tensor] | None = None  # version and norm of that gradient after the last pass
        p = next(iter(self._params()), torch.empty(()))
        if not hasattr(self, "_leaf") or self._leaf.device != p.device:  # the model was moved
            self._leaf: Tensor = torch.tensor([1.0, 0.0], dtype=accumulator(p.dtype), device=p.device).requires_grad_()
            self._leaf.register_hook(_hook(self._recorded))  # type: ignore[no-untyped-call]
        self._leaf.grad = None

    def through(self, value: Tensor) -> Tensor:
        """``value``, connected to the record if it depends on the parameters."""
        compiling = torch.compiler.is_compiling()
        if not compiling and not self.hidden and not reaches(value, {id(p) for p in self._params()}):
            return value
        (one, zero), origin = self._leaf.to(value).unbind(), getattr(value, "origin", None)
        seen: Any = value * one
        if isinstance(origin, Origin):
            if (bounds := origin.lower_bounds()) is not None:
                with torch.no_grad(), without_autocast(value):
                    bound = torch.dot(origin.coefficients, bounds).to(value)
                seen = seen + bound * zero
            seen.origin = origin
        if not compiling:
            seen.users = getattr(value, "users", [])
            seen.register_hook(_hook(self._differentiated, seen.users))
            if self._reached is not None:
                try:
                    self._reached |= leaves(value)
                except RuntimeError:  # reentrant checkpointing hides parameters
                    self._reached = None
        return cast(Tensor, seen)

    # A backward pass calls these: first for every value, in eager mode; then for the leaf and the sentinel.

    def _differentiated(self, users: list[weakref.ref[Record]], weight: Tensor) -> None:
        self._begin()
        self._users.append(users)
        if torch.is_grad_enabled():
            self._faults.add(SECOND_ORDER)
        used = weight[weight != 0] if weight.dim() and weight.is_cpu else weight.new_empty(0)
        if used.numel() and used.min() != used.max():
            self._faults.add(WEIGHTS)

    def _recorded(self, _: Tensor) -> None:
        if self._stepped is not None and self._stepped[0]() is None:
            self.clear()
        self._stepped, self._unrecorded = None, self._unrecorded - 1

    def _accumulated(self, p: Tensor) -> None:
        if p.grad is not None:
            self._unrecorded, self._left = self._unrecorded + 1, (p.grad._version, p.grad.detach().norm())

    def _begin(self) -> None:
        """Drop the record of gradients that were cleared since."""
        first = next((p.grad for p in self._params() if p.grad is not None), None)
        stepped, version = self._stepped or (None, 0)
        if stepped is not None and (first is None or first is not stepped() or first._version != version):
            self.clear()
        elif first is None and not self.hidden:  # FSDP keeps the gradients of micro-batches to itself
            self._leaf.grad = None
        self._stepped = None

    def backward(self, total: Tensor, retain_graph: bool | None = None) -> None:
        """Differentiate ``total`` and record its value, whatever function of watched values it is."""
        if total.numel() != 1 or not total.requires_grad:
            raise ValueError(f"backward() got a tensor of shape {tuple(total.shape)}; expected one value and its graph")
        self._begin()
        before, self._leaf.grad = self._leaf.grad, None
        total.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        found = replaced(self._leaf.grad, total.detach().reshape(()).to(self._leaf))
        self._leaf.grad = found if before is None else before + found
        self._faults.clear()  # what this pass did is declared
        self._unrecorded, self._reached = min(self._unrecorded, 0), None

    # A step calls these.

    @property
    def sums(self) -> Tensor | None:
        """The value and the lower bound (0 where no loss declares one), ``[2]``; None where nothing was recorded."""
        return self._leaf.grad

    def faults(self) -> set[str]:
        """What is wrong with the record since ``clear()``, as texts of warnings.

        A term that was added to a recorded value is only noticed by parameters of its own, before the first step. On an
        accelerator an edited gradient is only looked at once.
        """
        reached, self._reached = self._reached, None
        stray = reached and any(p.grad is not None and id(p) not in reached for p in self._params())
        found = self._faults | ({MISSING} if stray or self._unrecorded > 0 else set())
        grad = None if self._sentinel is None else self._sentinel.grad
        if grad is not None and self._left is not None and grad._version != self._left[0]:
            if not torch.equal(grad.norm(), self._left[1]):  # clip_grad_norm_(inf) multiplies by 1
                found.add(EDITED)
            elif not grad.is_cpu:
                self._sentinel = None
        return found

    def claim(self, value: Tensor | None = None) -> None:
        """Say that this optimizer uses what was recorded, or only ``value``; raise if another one has."""
        for users in self._users if value is None else [getattr(value, "users", [])]:
            if any(by() not in (None, self) for by in users):
                raise RuntimeError(USED)
            users[:] = [weakref.ref(self)]

    def spend(self, grads: Sequence[Tensor]) -> None:
        """A step has used the record, which stays valid while ``grads`` are kept."""
        if torch.compiler.is_compiling():
            self._leaf.grad = None  # a compiled step is followed by fresh gradients
        elif grads:
            self._stepped = weakref.ref(grads[0]), grads[0]._version


def replaced(known: Tensor | None, value: Tensor) -> Tensor:
    """A record with another value. Its lower bound stays if that is the recorded one, or terms ≥ 0 were added."""
    if known is None:
        return torch.nn.functional.pad(value.reshape(1), (0, 1))
    return torch.stack([value, torch.where(value >= known[0] * (1 - ROUNDING), known[1], 0.0)])


def _hook(method: Callable[..., None], *args: Any) -> Callable[[Tensor], None]:
    """A hook for autograd in eager mode, which keeps no record alive."""
    known = weakref.WeakMethod(method)

    def call(x: Tensor) -> None:
        if not torch.compiler.is_compiling() and (found := known()) is not None:
            found(*args, x)

    return call


# Modules, whose values go through records.


class _Inside(threading.local):
    """How many watched modules are being evaluated in a thread: a value inside of another counts as a part of it."""

    depth = 0


def watch(module: nn.Module, record: Record) -> None:
    """Record the values of ``module`` from now on, once, however often it is watched; a copy of it is not watched."""
    known: Any = module.__dict__.get("_watch")
    if known is None:
        known = module._watch = _Watch()  # type: ignore[assignment]
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
        if not torch.compiler.is_compiling():
            for record in self.live():
                record.inside.depth += 1

    def leave(self, module: nn.Module, args: Any, value: Any) -> Any:
        records, compiling = self.live(), torch.compiler.is_compiling()
        if not compiling:
            for record in records:
                record.inside.depth = max(0, record.inside.depth - 1)  # watched since it was entered
            records = [record for record in records if record.inside.depth == 0]
        if not records or value is None:  # None after an exception
            return None
        if not isinstance(value, Tensor):
            raise TypeError(NO_TENSOR.format(type(module).__name__, type(value).__name__))
        if not value.requires_grad:
            return None
        if len(records) > 1 and any(record.hidden for record in records):
            raise RuntimeError(SHARED)
        if self.nested if compiling else any(isinstance(x, Tensor) and hasattr(x, "users") for x in args):
            raise RuntimeError(INSIDE)
        return records[0].through(value) if len(records) == 1 else criterion_of_several_optimizers(records, value)

    def __reduce__(self) -> tuple[type[_Watch], tuple[()]]:
        return _Watch, ()


@eager
def criterion_of_several_optimizers(records: list[Record], value: Tensor) -> Tensor:
    """Which of several optimizers a value belongs to is in its graph, which a compiler does not have yet."""
    for record in records:
        value = record.through(value)
    return value
