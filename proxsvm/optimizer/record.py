"""The value that a backward pass differentiated, kept by autograd itself."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm.linearization.graph import leaves, reaches
from proxsvm.losses.base import Origin, without_autocast
from proxsvm.optimizer.messages import EDITED, MISSING, SECOND_ORDER, USED, WEIGHTS

NODES = 10_000  # of a graph that are searched for a parameter, some milliseconds; beyond them a value counts
ROUNDING = 1e-5  # of float32, in which a value may have been read and passed back


class Record:
    """Σ weight × (value, lower bound) of what was differentiated since ``clear()``, ``[2]``, on the device.

    A watched value passes through ``value · one + bound · zero``, with the leaf (one, zero) = (1, 0): the value, bit
    for bit. d(weight · value · one)/d one = weight · value, so the leaf's gradient is the record, summed over
    micro-batches like gradients, in eager mode and inside a compiled graph. This is right for weighted sums;
    :meth:`backward` records any function of values.

    Args:
        params: returns the optimizer's parameters; only values that depend on one of them are recorded.
        like: a tensor with the device and the dtype that values are expected to have.
        hidden: whether the graph does not contain the parameters, as under FSDP: then every value counts.

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> record = Record(lambda: [w], torch.zeros(()))
    >>> (record.through((2 * w).sum()) / 4).backward()
    >>> record.sums
    tensor([1.5000, 0.0000])
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]], like: Tensor, hidden: bool = False) -> None:
        self._params, self.hidden = params, hidden
        self.inside = threading.local()  # its depth: how many watched modules are being evaluated in a thread
        self.passes = self.clears = 0  # how many backward passes were recorded, and how often the record was cleared
        self._stepped: tuple[weakref.ref[Tensor], int] | None = None  # a gradient after the last step
        self._reached: set[int] | None = None if hidden else set()  # what values reach, until the first step
        self._renew(like.dtype, like.device)
        self._forget()
        # Who clips or divides changes all gradients: the smallest one shows it, and passes that nobody recorded.
        known = [] if hidden else [p for p in params() if p.requires_grad]
        self._sentinel = min(known, key=Tensor.numel, default=None)
        if self._sentinel is not None:
            me = weakref.WeakMethod(self._accumulated)
            add: Callable[..., Any] = self._sentinel.register_post_accumulate_grad_hook
            hook = add(lambda p: None if (note := me()) is None else note(p))
            weakref.finalize(self, hook.remove)

    def _forget(self) -> None:
        self._users: list[list[weakref.ref[Record]]] = []  # for each value: the record whose step has used it
        self._faults: set[str] = set()
        self._unrecorded = 0  # passes that gave the sentinel a gradient, less those that were recorded
        self._left: tuple[int, Tensor] | None = None  # version and norm of that gradient after the last pass

    def _renew(self, dtype: torch.dtype, device: torch.device) -> None:
        """Create the leaf. Its hook is, for a compiled graph, the only sign of a backward pass."""
        self._leaf, me = torch.tensor([1.0, 0.0], dtype=dtype, device=device, requires_grad=True), weakref.ref(self)

        def count(_: Tensor) -> None:
            if torch.compiler.is_compiling() or (record := me()) is None:
                return
            if record._stepped is not None and record._stepped[0]() is None:
                record.clear()
            record._stepped, record.passes = None, record.passes + 1
            record._unrecorded -= 1

        self._leaf.register_hook(count)  # type: ignore[no-untyped-call]

    def through(self, value: Tensor, shared: bool = False) -> Tensor:
        """``value``, connected to the record if it depends on the parameters; ``shared``: if it may be another's."""
        compiling, limit = torch.compiler.is_compiling(), None if shared else NODES
        if not compiling and not self.hidden and not reaches(value, {id(p) for p in self._params()}, limit):
            return value
        (one, zero), origin = self._leaf.to(value).unbind(), getattr(value, "origin", None)
        seen = value * one
        if isinstance(origin, Origin):
            if (bounds := origin.lower_bounds()) is not None:
                with torch.no_grad(), without_autocast(value):
                    bound = torch.dot(origin.coefficients, bounds).to(value)
                seen = seen + bound * zero
            seen.origin = origin  # type: ignore[attr-defined]
        if not compiling:
            self._listen(seen, value)
        return seen

    def _listen(self, seen: Tensor, value: Tensor) -> None:
        """Note what ``value`` reaches, and, when a backward pass comes to it, its users and its weight."""
        me, users = weakref.ref(self), getattr(value, "users", [])
        seen.users = users  # type: ignore[attr-defined]
        if self._reached is not None:
            try:
                self._reached |= leaves(value)
            except RuntimeError:  # reentrant checkpointing hides parameters
                self._reached = None

        def differentiated(weight: Tensor) -> None:
            if (record := me()) is None:
                return
            record._begin()
            record._users.append(users)
            if torch.is_grad_enabled():
                record._faults.add(SECOND_ORDER)
            used = weight[weight != 0] if weight.dim() and weight.is_cpu else weight.new_empty(0)
            if used.numel() and used.min() != used.max():
                record._faults.add(WEIGHTS)

        seen.register_hook(differentiated)  # type: ignore[no-untyped-call]

    def _accumulated(self, p: Tensor) -> None:
        if (grad := p.grad) is not None and not torch.compiler.is_compiling():
            self._unrecorded, self._left = self._unrecorded + 1, (grad._version, grad.detach().norm())

    def _begin(self) -> None:
        """A backward pass has reached a value, but not yet the leaf: drop the record of cleared gradients."""
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
        self.passes += 1
        self._faults.clear()  # what this pass did is declared
        self._unrecorded, self._reached = min(self._unrecorded, 0), None

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

    def require_unused(self, value: Tensor | None = None) -> None:
        """Raise if another optimizer has taken a step for a recorded value, or for ``value``, given with its graph."""
        users = self._users if value is None else [getattr(value, "users", [])]
        if any(by() not in (None, self) for used in users for by in used):
            raise RuntimeError(USED)

    def spend(self, grads: Sequence[Tensor], value: Tensor | None = None) -> None:
        """A step has used the record, which stays valid while ``grads`` are kept; or only ``value``, with its graph."""
        if torch.compiler.is_compiling():
            self._leaf.grad = None  # a compiled step is followed by fresh gradients
            return
        for used in self._users if value is None else [getattr(value, "users", [])]:
            used[:] = [weakref.ref(self)]
        if value is None:
            self._stepped = weakref.ref(grads[0]), grads[0]._version

    def clear(self) -> None:
        """Forget what was differentiated."""
        self._leaf.grad, self._stepped, self.clears = None, None, self.clears + 1
        self._forget()
        if (p := next(iter(self._params()), None)) is not None and p.device != self._leaf.device:  # the model was moved
            self._renew(self._leaf.dtype, p.device)


def replaced(known: Tensor | None, value: Tensor) -> Tensor:
    """A record with another value. Its lower bound stays if that is the recorded one, or terms ≥ 0 were added."""
    if known is None:
        return torch.nn.functional.pad(value.reshape(1), (0, 1))
    return torch.stack([value, torch.where(value >= known[0] * (1 - ROUNDING), known[1], 0.0)])
