"""The value that a backward pass differentiated, kept by autograd itself; and the modules whose values it counts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from proxsvm._extras import eager
from proxsvm._kernels.tensors import accumulator
from proxsvm.linearization import graph
from proxsvm.losses.base import Origin, without_autocast
from proxsvm.optimizer import messages

ROUNDING = 1e-5  # of float32, in which a value may have been read and passed back


class Record:
    """Σ weight × (value, lower bound) of what was differentiated since ``clear()``: ``leaf.grad``, ``[2]``, or None.

    A watched value passes through ``value · one + bound · zero``, with the leaf (one, zero) = (1, 0): the value, bit
    for bit. d(weight · value · one)/d one = weight · value, so autograd keeps the record, summed over micro-batches
    like gradients, in eager mode and inside a compiled graph. This is right for weighted sums of the values that depend
    on ``params()``; :meth:`backward` records any function. The graph tells which do, unless they are ``hidden`` (FSDP).

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> record = Record(lambda: [w])
    >>> (record.through((2 * w).sum()) / 4).backward()
    >>> record.leaf.grad
    tensor([1.5000, 0.0000])
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]], hidden: bool = False) -> None:
        self._params, self.hidden, self.modules = params, hidden, 0
        self._reached: set[int] | None = set()  # by values, until the first step
        # Who edits gradients edits all of them, and every pass adds to all of them: a sample shows it.
        known = [] if hidden else [p for p in params() if p.requires_grad]
        self._sample = min(known, key=Tensor.numel, default=torch.empty(()).requires_grad_())
        me: Any = weakref.proxy(self)
        hook = self._sample.register_post_accumulate_grad_hook(partial(Record._accumulated, me))  # type: ignore[no-untyped-call]
        weakref.finalize(self, hook.remove)
        self.clear()

    def clear(self) -> None:
        """Forget what was differentiated."""
        self._users: list[weakref.WeakSet[Record]] = []  # for each value: the records whose steps have used it
        self._faults: set[str] = set()
        self._passing = False  # whether values were differentiated since the sample got a gradient
        # The sample's gradient after the last pass, its version and its norm.
        self._left: tuple[weakref.ref[Tensor], int, Tensor] | None = None
        self._fit()
        self.leaf.grad = None

    def _fit(self) -> None:
        """Make the leaf, and again where the model was moved or converted."""
        p = next(iter(self._params()), torch.empty(()))
        device, dtype = p.device, accumulator(p.dtype)
        if not hasattr(self, "leaf") or (self.leaf.device, self.leaf.dtype) != (device, dtype):
            self.leaf: Tensor = torch.tensor([1.0, 0.0], dtype=dtype, device=device).requires_grad_()

    def through(self, value: Tensor) -> Tensor:
        """``value``, connected to the record if it depends on the parameters."""
        compiling = torch.compiler.is_compiling()
        if not compiling and not self.hidden:
            if not (found := graph.reached(value, set(map(id, self._params())), every=self._reached is not None)):
                return value
            self._reached = None if self._reached is None else self._reached | found
            if self.leaf.grad is None:
                self._fit()
        (one, zero), origin = self.leaf.to(value).unbind(), getattr(value, "origin", None)
        seen: Any = value * one
        if self.modules > 1 and not compiling:  # what is inside of the value may be recorded already
            (known,) = torch.autograd.grad(value.sum(), self.leaf, retain_graph=True, materialize_grads=True)
            seen = seen - (known @ (self.leaf - self.leaf.detach()) / value.numel()).to(value)
        if isinstance(origin, Origin):
            if (bounds := origin.lower_bounds()) is not None:
                with torch.no_grad(), without_autocast(value):
                    bound = torch.dot(origin.coefficients, bounds).to(value)
                seen = seen + bound * zero
            seen.origin = origin
        if not compiling:
            seen.users = getattr(value, "users", weakref.WeakSet())
            seen.register_hook(partial(self._differentiated, seen.users))
        return cast(Tensor, seen)

    def backward(self, total: Tensor, retain_graph: bool | None = None) -> None:
        """Differentiate ``total`` and record its value, whatever function of watched values it is."""
        self._begin()
        before, self.leaf.grad = self.leaf.grad, None
        total.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        found = replaced(self.leaf.grad, total.detach().reshape(()).to(self.leaf))
        self.leaf.grad = found if before is None else before.add_(found)
        self._faults, self._reached = set(), None  # what this pass did is declared

    # A backward pass calls these: first for every value, in eager mode; then for the sample.

    def _differentiated(self, users: weakref.WeakSet[Record], weight: Tensor) -> None:
        self._begin()
        self._users.append(users)
        self._passing = True
        if torch.is_grad_enabled():
            self._faults.add(messages.SECOND_ORDER)
        if weight.dim() and weight.is_cpu and weight[weight != 0].unique().numel() > 1:  # type: ignore[no-untyped-call]
            self._faults.add(messages.WEIGHTS)

    def _begin(self) -> None:
        """Forget what belongs to gradients that others have cleared; FSDP keeps its own for itself until the step."""
        if self.leaf.grad is not None and not self.hidden and all(p.grad is None for p in self._params()):
            self.clear()

    def _accumulated(self, p: Tensor) -> None:
        if p.grad is not None:
            left = None if torch.is_grad_enabled() else self._left  # otherwise autograd adds in place
            if left is not None and (left[0]() is not p.grad or p.grad._version > left[1] + 1):
                self._faults.add(messages.EDITED)
            if not self._passing:
                self._faults.add(messages.MISSING)
            self._passing, self._left = False, (weakref.ref(p.grad), p.grad._version, p.grad.detach().norm())

    # A step calls these.

    def faults(self) -> set[str]:
        """What is wrong with the record since ``clear()``, as texts of warnings."""
        reached, self._reached, grad = self._reached, None, self._sample.grad
        found = set(self._faults)
        if not self._users:  # compiled values are not seen
            found.discard(messages.MISSING)
        if reached and any(p.grad is not None and id(p) not in reached for p in self._params()):
            found.add(messages.MISSING)
        left = self._left
        if grad is not None and left is not None and (left[0]() is not grad or left[1] != grad._version):
            if not torch.equal(grad.norm(), left[2]):  # clip_grad_norm_(inf) multiplies by 1
                found.add(messages.EDITED)
            elif not grad.is_cpu:
                self._sample = self.leaf.detach()  # do not synchronise at every step
        return found

    def claim(self, value: Tensor | None = None) -> int:
        """Say that this optimizer uses what was recorded, or only ``value``: how many; raise if another one has."""
        claimed = self._users if value is None else [getattr(value, "users", weakref.WeakSet())]
        for users in claimed:
            if users - {self}:
                raise RuntimeError(messages.USED)
            users.add(self)
        return len(claimed)

    def spend(self) -> None:
        """A step has used the record, which stays valid as long as the gradients."""
        if torch.compiler.is_compiling():
            self.leaf.grad = None  # a compiled step is followed by fresh gradients
        elif grads := [p.grad for p in self._params() if p.grad is not None]:
            me = weakref.ref(self)
            self._spent = weakref.ref(grads[0], lambda _: None if (record := me()) is None else record.clear())


def replaced(known: Tensor | None, value: Tensor) -> Tensor:
    """A record with another value. Its lower bound stays if that is the recorded one, or terms ≥ 0 were added."""
    if known is None:
        return torch.nn.functional.pad(value.reshape(1), (0, 1))
    return torch.stack([value, torch.where(value >= known[0] * (1 - ROUNDING), known[1], 0.0)])


class Watch(weakref.WeakSet[Record]):
    """The forward hook of a watched module, for all records of its values; that of a copy has none."""

    def __call__(self, module: nn.Module, args: Any, value: Any) -> Any:
        if not (records := list(self)):
            return value
        if not isinstance(value, Tensor):
            raise TypeError(messages.NO_TENSOR.format(type(module).__name__, type(value).__name__))
        if len(records) > 1 and any(record.hidden for record in records):
            raise RuntimeError(messages.SHARED)
        # A compiler does not have the graph, which tells what a value belongs to, and what of it is recorded.
        direct = len(records) == 1 and not any(hasattr(part, "_watch") for part in list(module.modules())[1:])
        for record in records if value.requires_grad else ():
            value = record.through(value) if direct else _values_of_several_modules_or_optimizers(record, value)
        return value

    def __reduce__(self) -> Any:
        return Watch, ()


_values_of_several_modules_or_optimizers = eager(Record.through)


def watch(module: nn.Module, record: Record) -> None:
    """Record the values of ``module`` from now on, once, however often it is watched."""
    known: Any = vars(module).get("_watch")
    if known is None:
        known = module._watch = Watch()  # type: ignore[assignment]
        module.register_forward_hook(known)
    record.modules += record not in known
    known.add(record)
