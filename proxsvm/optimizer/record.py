"""The value that a backward pass differentiated, kept by autograd itself."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm.linearization.graph import reaches
from proxsvm.losses.base import Origin, without_autocast
from proxsvm.optimizer.guard import Guard
from proxsvm.optimizer.messages import USED


class Record:
    """Σ weight × value of what was differentiated since ``clear()``, on the device.

    A watched value passes through ``value · one``, where ``one`` is a leaf tensor of value 1: the value, bit for bit.
    d(weight · value · one)/d one = weight · value, so ``one.grad`` is the record, summed over micro-batches like
    gradients, in eager mode and inside a compiled graph. The loss's lower bound is recorded with a leaf of value 0, in
    ``value · one + floor · zero``. This is right for weighted sums; :meth:`backward` records any function of values.

    Args:
        params: returns the optimizer's parameters; only values that depend on one of them are recorded.
        like: a tensor with the device and the dtype that values are expected to have.
        hidden: whether the graph does not contain the parameters, as under FSDP: then every value counts.

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> record = Record(lambda: [w], torch.zeros(()))
    >>> (record.through((2 * w).sum()) / 4).backward()
    >>> record.sums()
    (tensor(1.5000), None)
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]], like: Tensor, hidden: bool = False) -> None:
        self._params, self.hidden = params, hidden
        self.guard = Guard(list if hidden else params)
        self.inside = threading.local()  # its depth: how many watched modules are being evaluated in a thread
        self._one, self._zero = self._leaves(like)
        self._users: list[list[weakref.ref[Record]]] = []  # for each value: the record whose step has used it
        self._stepped: tuple[weakref.ref[Tensor], int] | None = None  # a gradient as the last step left it
        self.passes = self.clears = 0  # how many backward passes were recorded, and how often the record was cleared

    def through(self, value: Tensor) -> Tensor:
        """``value``, connected to the record if it depends on the parameters."""
        compiling = torch.compiler.is_compiling()
        if not compiling and not self.hidden and not reaches(value, {id(p) for p in self._params()}):
            return value
        seen, origin = value * self._one.to(value), getattr(value, "origin", None)
        if isinstance(origin, Origin):
            if (floors := origin.lower_bounds()) is not None:
                with torch.no_grad(), without_autocast(value):
                    floor = torch.dot(origin.coefficients, floors).to(value)
                seen = seen + floor * self._zero.to(value)
            seen.origin = origin  # type: ignore[attr-defined]
        if not compiling:
            self.guard.computed(value)
            self._listen(seen, getattr(value, "users", []))
        return seen

    def _listen(self, seen: Tensor, users: list[Any]) -> None:
        """Let ``seen`` tell when a backward pass reaches it."""
        me, seen.users = weakref.ref(self), users  # type: ignore[attr-defined]

        def reached(weight: Tensor) -> None:
            if (record := me()) is not None:
                record._begin()
                record._users.append(users)
                record.guard.differentiated(weight)

        seen.register_hook(reached)  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        """A backward pass has reached a value, but not yet the leaves: drop the record of cleared gradients."""
        first = next((p.grad for p in self._params() if p.grad is not None), None)
        stepped, version = self._stepped or (None, 0)
        if stepped is not None and (first is None or first is not stepped() or first._version != version):
            self.clear()
        elif first is None and not self.hidden:  # FSDP keeps the gradients of micro-batches to itself
            self._one.grad = self._zero.grad = None
        self._stepped = None

    def _count(self) -> None:
        """A leaf is about to get its gradient: for a compiled graph, the only sign of a backward pass."""
        if self._stepped is not None and self._stepped[0]() is None:
            self.clear()
        self._stepped, self.passes = None, self.passes + 1
        self.guard.recorded()

    def backward(self, total: Tensor, retain_graph: bool | None = None) -> None:
        """Differentiate ``total`` and record its value, whatever function of watched values it is."""
        if total.numel() != 1 or not total.requires_grad:
            raise ValueError(f"backward() got a tensor of shape {tuple(total.shape)}; expected one value and its graph")
        exact = total.detach().reshape(()).to(self._one)
        self._begin()
        before, self._one.grad, self._zero.grad = self.sums(), None, None
        total.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        value, floor = self.sums()
        if value is not None and floor is not None:  # a bound of the total, too, unless that is less than the sum
            floor = torch.where(exact >= value * (1 - 1e-5), floor, 0.0)
        self._one.grad, self._zero.grad = (
            new if old is None else old if new is None else old + new
            for old, new in zip(before, (exact, floor), strict=True)
        )
        self.passes += 1
        self.guard.declared()

    def sums(self) -> tuple[Tensor | None, Tensor | None]:
        """The value and the lower bound; None where nothing was recorded, or no loss declares a bound."""
        return self._one.grad, self._zero.grad

    def require_unused(self, value: Tensor | None = None) -> None:
        """Raise if another optimizer has taken a step for a recorded value, or for ``value``, given with its graph."""
        users = self._users if value is None else [getattr(value, "users", [])]
        if any(by() not in (None, self) for used in users for by in used):
            raise RuntimeError(USED)

    def spend(self, grads: Sequence[Tensor], value: Tensor | None = None) -> None:
        """A step has used the record, which stays valid while ``grads`` are kept; or only ``value``, with its graph."""
        if torch.compiler.is_compiling():
            self._one.grad = self._zero.grad = None  # a compiled step is followed by fresh gradients
            return
        for used in self._users if value is None else [getattr(value, "users", [])]:
            used[:] = [weakref.ref(self)]
        if value is None:
            self._stepped = weakref.ref(grads[0]), grads[0]._version

    def clear(self) -> None:
        """Forget what was differentiated."""
        self._one.grad = self._zero.grad = None
        self._stepped, self._users, self.clears = None, [], self.clears + 1
        self.guard.clear()
        if (p := next(iter(self._params()), None)) is not None and p.device != self._one.device:  # the model was moved
            self._one, self._zero = self._leaves(self._one.detach().to(p.device))

    def _leaves(self, like: Tensor) -> tuple[Tensor, Tensor]:
        one, zero = (torch.full((), at, dtype=like.dtype, device=like.device, requires_grad=True) for at in (1.0, 0.0))
        me = weakref.ref(self)

        def count(_: Tensor) -> None:
            if not torch.compiler.is_compiling() and (record := me()) is not None:
                record._count()

        one.register_hook(count)  # type: ignore[no-untyped-call]
        return one, zero
