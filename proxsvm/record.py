"""The value that a backward pass differentiated, kept by autograd itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.base import PiecewiseLinearLoss


class Record:
    """Σ weight × value of what was differentiated since ``clear()``, on the device.

    The criterion's value passes through ``value · one``, where ``one`` is a leaf tensor of value 1. The product is the
    value bit for bit, and

        d(weight · value · one) / d one = weight · value,

    so ``one.grad`` is the record: summed over micro-batches as gradients are, whatever the user divides by, in eager
    mode and inside a compiled graph. It must go when the gradients go, whoever clears them and how: see :meth:`spend`.

    Args:
        criterion: the loss to watch. It holds the record weakly, and a copy of it watches for nobody.
        like: a tensor on the device, and of the dtype, that values are expected to have.
        stale: whether the gradients that the record belongs to are gone (somebody else has cleared them).

    >>> from proxsvm.losses import L1Regression
    >>> criterion, w = L1Regression(), torch.tensor([3.0], requires_grad=True)
    >>> record = Record(criterion, torch.zeros(()), stale=lambda: False)
    >>> (criterion(2 * w, torch.zeros(1)) / 4).backward()
    >>> record.value
    tensor(1.5000)
    """

    def __init__(self, criterion: PiecewiseLinearLoss, like: Tensor, stale: Callable[[], bool]) -> None:
        self._stale = stale
        self._spent: Tensor | None = None
        self._same_gradients: Callable[[], bool] = lambda: False
        self._make_one(like)
        handle = criterion.register_forward_hook(_Watch(self))
        weakref.finalize(self, handle.remove)

    @property
    def value(self) -> Tensor | None:
        """The sum so far, or None where nothing was differentiated."""
        fresh = self.one.grad
        if torch.compiler.is_compiling() or self._spent is None or not self._same_gradients():
            return fresh
        return self._spent if fresh is None else self._spent + fresh

    def spend(self, param: Tensor) -> None:
        """A step has used the record. It counts on only for as long as ``param`` keeps the gradient it now has."""
        if not torch.compiler.is_compiling():  # a compiled step is followed by fresh gradients
            self._spent, gradient = self.value, weakref.ref(param.grad)
            self._same_gradients = lambda: param.grad is not None and gradient() is param.grad
        self.one.grad = None

    @property
    def mark(self) -> tuple[Tensor | None, int]:
        """What changes whenever something is recorded."""
        fresh = self.one.grad
        return fresh, -1 if fresh is None else fresh._version

    def clear(self) -> None:
        """Forget what was differentiated."""
        self.one.grad = self._spent = None

    def through(self, value: Tensor) -> Tensor:
        """``value``, connected to the record."""
        one = self.one
        if value.dtype != one.dtype or value.device != one.device:  # the model was moved
            if torch.compiler.is_compiling():  # a graph cannot make a leaf
                one = one.to(value)
            else:
                self._make_one(value)
                one = self.one
        seen = value * one
        if hasattr(value, "origin"):
            seen.origin = value.origin  # type: ignore[attr-defined]
        return seen

    def _make_one(self, like: Tensor) -> None:
        self.one = torch.ones((), dtype=like.dtype, device=like.device, requires_grad=True)
        me = weakref.ref(self)

        def drop_what_is_stale(_: Tensor) -> None:  # before the gradient is added, and before any parameter gets one
            record = me()
            if record is not None and record._stale():
                record.clear()

        self.one.register_hook(drop_what_is_stale)  # type: ignore[no-untyped-call]


class _Watch:
    """The forward hook on a criterion."""

    def __init__(self, record: Record | None = None) -> None:
        self.record = weakref.ref(record) if record is not None else None

    def __call__(self, criterion: PiecewiseLinearLoss, args: Any, value: Tensor) -> Tensor | None:
        record = self.record() if self.record is not None else None
        return record.through(value) if record is not None and value.requires_grad else None

    def __reduce__(self) -> tuple[type[_Watch], tuple[()]]:
        return _Watch, ()
