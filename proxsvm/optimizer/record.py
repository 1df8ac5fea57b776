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
from proxsvm.optimizer import messages

ROUNDING = 1e-5  # of float32, in which a value may have been read and passed back


class Record:
    """Σ weight × (value, lower bound) of what was differentiated since ``clear()``, ``[2]``, on the device.

    A watched value passes through ``value · one + bound · zero``, with the leaf (one, zero) = (1, 0): the value, bit
    for bit. d(weight · value · one)/d one = weight · value, so the leaf's gradient is the record, summed over
    micro-batches like gradients, in eager mode and inside a compiled graph. This is right for weighted sums;
    :meth:`backward` records any function of values.

    ``params`` returns the optimizer's parameters: only values that depend on one of them are recorded, unless they are
    ``hidden`` from the graph, as under FSDP.

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> record = Record(lambda: [w])
    >>> (record.through((2 * w).sum()) / 4).backward()
    >>> record.sums
    tensor([1.5000, 0.0000])
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]], hidden: bool = False) -> None:
        self._params, self.hidden = params, hidden
        self._reached: set[int] | None = None if hidden else set()  # what values reach, until the first step
        self.clear()
        # Who edits gradients edits all of them, and every pass changes the smallest one.
        known = [] if hidden else [p for p in params() if p.requires_grad]
        self._smallest = min(known, key=Tensor.numel, default=None)
        if self._smallest is not None:
            add: Any = self._smallest.register_post_accumulate_grad_hook
            weakref.finalize(self, add(_hook(self._accumulated)).remove)

    def clear(self) -> None:
        """Forget what was differentiated."""
        for entered in _entered():  # Ctrl-C has left those that were being evaluated
            entered.discard(self)
        self._stepped: tuple[weakref.ref[Tensor], int] | None = None  # a gradient after the last step, and its version
        self._users: list[weakref.WeakSet[Record]] = []  # for each value: the records whose steps have used it
        self._faults: set[str] = set()
        self._unrecorded = 0  # passes that gave the smallest parameter a gradient, less those that were recorded
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
            seen.users = getattr(value, "users", weakref.WeakSet())
            seen.register_hook(_hook(self._differentiated, seen.users))
            if self._reached is not None:
                try:
                    self._reached |= leaves(value)
                except RuntimeError:  # reentrant checkpointing hides parameters
                    self._reached = None
        return cast(Tensor, seen)

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

    # A backward pass calls these: first for every value, in eager mode; then for the leaf and the smallest parameter.

    def _differentiated(self, users: weakref.WeakSet[Record], weight: Tensor) -> None:
        self._begin()
        self._users.append(users)
        if torch.is_grad_enabled():
            self._faults.add(messages.SECOND_ORDER)
        used = weight[weight != 0] if weight.dim() and weight.is_cpu else weight.new_empty(0)
        if used.numel() and used.min() != used.max():
            self._faults.add(messages.WEIGHTS)

    def _recorded(self, _: Tensor) -> None:
        if self._stepped is not None and self._stepped[0]() is None:
            self.clear()
        self._stepped, self._unrecorded = None, self._unrecorded - 1

    def _accumulated(self, p: Tensor) -> None:
        if p.grad is not None:
            self._unrecorded, self._left = self._unrecorded + 1, (p.grad._version, p.grad.detach().norm())

    def _begin(self) -> None:
        """Drop the record of gradients that others have cleared since."""
        first, (stepped, version) = self._gradient(), self._stepped or (None, 0)
        if stepped is not None and (first is None or first is not stepped() or first._version != version):
            self.clear()
        elif first is None and not self.hidden:  # FSDP keeps the gradients of micro-batches to itself
            self._leaf.grad = None
        self._stepped = None

    def _gradient(self) -> Tensor | None:
        return next((p.grad for p in self._params() if p.grad is not None), None)

    # A step calls these.

    @property
    def sums(self) -> Tensor | None:
        """The value and the lower bound (0 where no loss declares one), ``[2]``; None where nothing was recorded."""
        return self._leaf.grad

    def faults(self) -> set[str]:
        """What is wrong with the record since ``clear()``, as texts of warnings."""
        reached, self._reached = self._reached, None
        stray = reached and any(p.grad is not None and id(p) not in reached for p in self._params())
        found = self._faults | ({messages.MISSING} if stray or self._unrecorded > 0 else set())
        grad = None if self._smallest is None else self._smallest.grad
        if grad is not None and self._left is not None and grad._version != self._left[0]:
            if not torch.equal(grad.norm(), self._left[1]):  # clip_grad_norm_(inf) multiplies by 1
                found.add(messages.EDITED)
            elif not grad.is_cpu:
                self._smallest = None  # do not synchronise at every step
        return found

    def claim(self, value: Tensor | None = None) -> None:
        """Say that this optimizer uses what was recorded, or only ``value``; raise if another one has."""
        for users in self._users if value is None else [getattr(value, "users", weakref.WeakSet())]:
            if users - {self}:
                raise RuntimeError(messages.USED)
            users.add(self)

    def spend(self) -> None:
        """A step has used the record, which stays valid while the gradients are kept."""
        if torch.compiler.is_compiling():
            self._leaf.grad = None  # a compiled step is followed by fresh gradients
        elif (first := self._gradient()) is not None:
            self._stepped = weakref.ref(first), first._version


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


class _Records(weakref.WeakSet[Record]):
    """The records of a watched module; a copy of it has none."""

    def __reduce__(self) -> Any:
        return _Records, ()


_INSIDE = threading.local()


def _entered() -> list[set[Record]]:
    """For every watched module that this thread is evaluating, its records."""
    found: list[set[Record]] = vars(_INSIDE).setdefault("entered", [])
    return found


def watch(module: nn.Module, record: Record) -> None:
    """Record the values of ``module`` from now on, once, however often it is watched; a copy of it is not watched."""
    known: Any = vars(module).get("_records")
    if known is None:
        known = module._records = _Records()  # type: ignore[assignment]
        module.register_forward_pre_hook(_enter)
        module.register_forward_hook(_leave, always_call=True)
    known.add(record)


def _enter(module: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling():
        _entered().append(set(module._records))  # type: ignore[arg-type]


def _leave(module: nn.Module, args: Any, value: Any) -> Tensor | None:
    """The value of a watched module, recorded; one inside of another counts as a part of that."""
    records: list[Record] = list(module._records)  # type: ignore[arg-type]
    if twice := torch.compiler.is_compiling():
        twice = sum(hasattr(part, "_records") for part in module.modules()) > 1
    else:
        if entered := _entered():  # else the module is watched since it was entered
            entered.pop()
        twice = any(hasattr(x, "users") for x in args if isinstance(x, Tensor))
        records = [record for record in records if not any(record in outer for outer in entered)]
    if not records or value is None:  # None after an exception
        return None
    if not isinstance(value, Tensor):
        raise TypeError(messages.NO_TENSOR.format(type(module).__name__, type(value).__name__))
    if not value.requires_grad:
        return None
    if len(records) > 1 and any(record.hidden for record in records):
        raise RuntimeError(messages.SHARED)
    if twice:
        raise RuntimeError(messages.INSIDE)
    return records[0].through(value) if len(records) == 1 else criterion_of_several_optimizers(records, value)


@eager
def criterion_of_several_optimizers(records: list[Record], value: Tensor) -> Tensor:
    """Which of several optimizers a value belongs to is in its graph, which a compiler does not have yet."""
    for record in records:
        value = record.through(value)
    return value
