"""The value that a backward pass differentiated, kept by autograd itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from proxsvm._kernels.tensors import in_transform
from proxsvm._numbers import on_host
from proxsvm.linearization.graph import reaches
from proxsvm.losses.base import Origin, without_autocast
from proxsvm.optimizer.undeclared import differentiated, reaches_past


class Record:
    """Σ weight × value of what was differentiated since ``clear()``, on the device.

    The value of a watched module passes through ``value · one``, where ``one`` is a leaf tensor of value 1. The product
    is the value bit for bit, and

        d(weight · value · one) / d one = weight · value,

    so ``one.grad`` is the record: summed over micro-batches like gradients, whatever the user divides by, in eager
    mode and inside a compiled graph. There is one such leaf per dtype and device. Only values that depend on the
    optimizer's own parameters pass through it. The record must be cleared with the gradients, however that happens.

    The lower bound of a loss is recorded in the same way, with a leaf of value 0 in ``value · one + floor · zero``.

    Args:
        params: returns the optimizer's parameters.
        like: a tensor on the device, and of the dtype, that values are expected to have.
        hidden: whether the graph does not contain the parameters, as under FSDP: then every value counts.

    >>> from proxsvm.losses import L1Regression
    >>> criterion, w = L1Regression(), torch.tensor([3.0], requires_grad=True)
    >>> record = Record(lambda: [w], torch.zeros(()))
    >>> record.watch(criterion)
    >>> (criterion(2 * w, torch.zeros(1)) / 4).backward()
    >>> record.value
    tensor(1.5000)
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]], like: Tensor, hidden: bool = False) -> None:
        self._params, self._hidden = params, hidden
        self.generation = 0  # how often the record was cleared
        self._spent: tuple[Tensor | None, Tensor | None] | None = None  # value and floor that a step has used
        self._gradients: Gradients | None = None  # as the last backward pass, step or clear() left them
        self._used: list[_Use] = []
        self._unaccounted = False  # whether a backward pass found gradients that are not those of the record
        self.edited = False  # whether a gradient was changed between backward() and step()
        self._pass = -1  # torch's id of the last backward pass
        self._found: tuple[int, bool, bool | None] = -1, False, None  # that id, and what it found the gradients to be
        self.partial = False  # whether a pass differentiated terms that were not recorded
        self._passes, self._doubts, self._doubted = 0, 0, False
        self._values, self._floors = (_Sum(at, like, _hook(self._begin)) for at in (1.0, 0.0))
        self._looking = _hook(self._look)

    def watch(self, module: nn.Module) -> None:
        """Record the values of ``module`` from now on. It refers to the record weakly; a copy of it is not watched."""
        handle = module.register_forward_hook(_Watch(self))
        weakref.finalize(self, handle.remove)

    @property
    def value(self) -> Tensor | None:
        """The sum so far, or None where nothing was differentiated."""
        return self.sums()[0]

    def sums(self, now: Gradients | None = None) -> tuple[Tensor | None, Tensor | None]:
        """The value, and the sum of the lower bounds of the losses, or None where none is above 0.

        ``now``: the current gradients, where they are known.
        """
        if torch.compiler.is_compiling():
            return self._values.first.grad, self._floors.first.grad
        return self._sums(self._spent is not None and self._same(self._present() if now is None else now))

    def _sums(self, kept: bool) -> tuple[Tensor | None, Tensor | None]:
        """What was differentiated since the last step, and before it where the gradients were ``kept``."""
        value, floor = self._spent if kept and self._spent is not None else (None, None)
        return self._values.total(value), self._floors.total(floor)

    @property
    def mark(self) -> tuple[tuple[int, int], ...]:
        """A key that changes whenever something is recorded."""
        grads = [one.grad for one in self._values.leaves()]
        return tuple((id(g), -1 if g is None else g._version) for g in grads)

    def missing(self, returned: object, before: Tensor | None) -> Tensor | None:
        """What a closure has returned beyond what was recorded since ``before``: terms that were not declared."""
        now = self.value
        if now is None or not isinstance(returned, Tensor | float | int):
            return None
        recorded = now if before is None else now - before
        return torch.as_tensor(returned).detach().reshape(()).to(recorded) - recorded

    def spend(self, now: Gradients | None, value: Tensor | None) -> None:
        """A step has used the record. It stays valid only as long as the parameters keep their gradients, ``now``.

        ``now`` is None where the step has used ``value`` itself, whose graph was still there, and no gradients.
        """
        if now is None and not torch.compiler.is_compiling():
            if (use := getattr(value, "used", None)) is not None:
                use.by = weakref.ref(self)
            self._used = []
            return
        if not torch.compiler.is_compiling():  # a compiled step is followed by fresh gradients
            same = self._same(now)
            self._unaccounted |= self._gradients is not None and not same
            self._spent, self._gradients = self._sums(same), now
            for use in self._used:
                use.by = weakref.ref(self)
            self._used = []
        self._drop()

    def clear(self) -> None:
        """Forget what was differentiated."""
        self._drop()
        self.generation += 1
        self._spent, self._used, self._unaccounted, self.edited, self.partial = None, [], False, False, False
        self._gradients = None if torch.compiler.is_compiling() else self._present()  # zeros, perhaps

    def check(self, now: Gradients | None, as_left: bool) -> None:
        """Raise if another optimizer has used this value; record whether a gradient was edited before ``now``.

        ``as_left``: whether the gradients should be as ``backward()`` left them. (Ranks and loss scalers change them.)
        """
        self._require_unused(self._used)
        changed = self._gradients is not None and not self._same(now)
        self.edited = as_left and _backward_pass()[1] is not None and (self._unaccounted or changed)

    def check_value(self, value: Tensor) -> None:
        """Raise if another optimizer has used ``value``, whose graph still exists."""
        if (use := getattr(value, "used", None)) is not None:
            self._require_unused([use])

    def doubt(self, lacking: bool) -> None:
        """Note whether a step found a gradient without a value; the graph of the next one is searched for its terms.

        It may well be in order, a hinge's tie, again and again: so only at the first, second, fourth, … of them.
        """
        if lacking or self._doubted:
            self._doubts += lacking
            self._doubted = lacking and self._doubts.bit_count() == 1

    def _require_unused(self, uses: Sequence[_Use]) -> None:
        if any(use.by is not None and use.by() is not None and use.by() is not self for use in uses):
            raise RuntimeError(
                "another optimizer has taken a step for the same loss value: each would move its parameters as if it "
                "had to remove the whole loss alone, and both together would go too far. Put all parameters into one "
                "ProxOptimizer, as parameter groups with options of their own"
            )

    def joined(self, change: Callable[[], None]) -> None:
        """Change the list of parameters. New ones have gradients of the same backward passes."""
        as_left = self._gradients is not None and self._same(self._present())
        change()
        if as_left:
            self._gradients = self._present()

    def _drop(self) -> None:
        for leaf in (*self._values.leaves(), *self._floors.leaves()):
            leaf.grad = None

    # Backward passes.

    def through(self, value: Tensor) -> Tensor:
        """``value``, connected to the record if it depends on the parameters."""
        if torch.compiler.is_compiling():
            seen = self._counted(value)
        elif self._hidden or reaches(value, {id(p) for p in self._params()}):
            seen = self._counted(value)
            use = getattr(value, "used", None) or _Use()
            self._used.append(use)
            seen.used = use  # type: ignore[attr-defined]
            if not in_transform():
                seen.register_hook(self._looking)  # type: ignore[no-untyped-call]
        else:
            return value
        if hasattr(value, "origin"):
            seen.origin = value.origin  # type: ignore[attr-defined]
        return seen

    def _counted(self, value: Tensor) -> Tensor:
        """value · one + floor · zero."""
        seen = value * self._values.leaf(value)
        origin: Origin | None = getattr(value, "origin", None)
        known = None if origin is None else origin.lower_bounds()
        if origin is None or known is None:
            return seen
        with torch.no_grad(), without_autocast(value):
            floor = torch.dot(origin.coefficients, known).to(value)
        return seen + floor * self._floors.leaf(value)

    def _look(self) -> None:
        """Record the state in which a backward pass finds the gradients.

        A leaf's hook runs after all values that pass through it. By then one of several heads may have its gradients.
        """
        now, _ = _backward_pass()
        if now == -1 or now != self._found[0]:
            same = self._same(self._present())
            self._found = now, same, None if same else _left(_grads(self._params()))

    def _begin(self) -> None:
        """A backward pass starts: gradients that were cleared or zeroed invalidate their record."""
        now, queue = _backward_pass()
        if queue is None or now == self._pass != -1:  # another leaf has reported it already
            return
        self._pass = now
        self._look()
        _, same, left = self._found
        if not same:
            spent, used = self._spent is not None, self._used
            if spent or left is False:
                self.clear()
                self._used = used[-1:]  # the value that is being differentiated
            if left or (left is None and not spent):
                self._unaccounted = bool(used)  # not for a compiled graph, whose order of gradients is its own
        self._passes += 1
        if self._doubted or self._passes.bit_count() == 1:  # 1, 2, 4, …: a script adds the same terms in every step
            leaves, params = {id(x) for x in self._values.leaves()}, {id(p) for p in self._params()}
            self.partial |= reaches_past(differentiated(), leaves, params)
        me = weakref.ref(self)

        def end() -> None:
            record = me()
            if record is not None:
                record._gradients = record._present()

        queue(end)

    def _present(self) -> Gradients | None:
        return Gradients.of(_grads(self._params()))

    def _same(self, now: Gradients | None) -> bool:
        then = self._gradients
        if then is None or now is None:
            return False
        return then.first() is now.first() and then[1:] == now[1:]


class _Sum:
    """Leaves of one fixed value, one per dtype and device, whose gradients add up.

    ``begin``: the hook of a leaf, called before it gets its gradient.
    """

    def __init__(self, at: float, like: Tensor, begin: Callable[[Tensor], None]) -> None:
        self.at, self.begin = at, begin
        self.first = self._new(like)
        self.others: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def leaves(self) -> list[Tensor]:
        return [self.first, *self.others.values()]

    def leaf(self, like: Tensor) -> Tensor:
        """The leaf of this dtype and device."""
        if like.dtype == self.first.dtype and like.device == self.first.device:
            return self.first
        if torch.compiler.is_compiling():  # a graph cannot create a leaf
            return self.first.to(like)
        key = like.dtype, like.device
        if key not in self.others:
            self.others[key] = self._new(like)
        return self.others[key]

    def _new(self, like: Tensor) -> Tensor:
        leaf = torch.full((), self.at, dtype=like.dtype, device=like.device, requires_grad=True)
        leaf.register_hook(self.begin)  # type: ignore[no-untyped-call]
        return leaf

    def total(self, kept: Tensor | None) -> Tensor | None:
        """The sum of the gradients and of what was ``kept``; None where there is nothing."""
        found = [x for x in [*[leaf.grad for leaf in self.leaves()], kept] if x is not None]
        return sum((x.to(found[0]) for x in found[1:]), start=found[0]) if found else None


def _hook(method: Callable[[], None]) -> Callable[[Tensor], None]:
    """A tensor's hook that calls a method, without keeping its object alive; a compiled graph does not call it."""
    weak = weakref.WeakMethod(method)

    def call(_: Tensor) -> None:
        known = weak()
        if known is not None and not torch.compiler.is_compiling():
            known()

    return call


class Gradients(NamedTuple):
    """Detects changed gradients by identity and version, which hooks, ``.data`` and NumPy do not change."""

    first: weakref.ref[Tensor]
    ids: list[int]
    versions: list[int]

    @classmethod
    def of(cls, grads: Sequence[Tensor]) -> Gradients | None:
        """Those of ``grads``; None where there are none, and while a graph is compiled, which needs no record."""
        if not grads or torch.compiler.is_compiling():
            return None
        return cls(weakref.ref(grads[0]), list(map(id, grads)), list(map(attrgetter("_version"), grads)))


def _grads(params: Sequence[Tensor]) -> list[Tensor]:
    return [g for p in params if (g := p.grad) is not None]


def _left(grads: Sequence[Tensor]) -> bool | None:
    """Whether a gradient is not zero; None on an accelerator, where the check would synchronise."""
    return any(bool(g.any()) for g in grads) if all(map(on_host, grads)) else None


def _backward_pass() -> tuple[int, Callable[[Callable[[], None]], None] | None]:
    """torch's id of the running backward pass, and the function that queues a callback for its end.

    Both are private parts of torch. Without them, gradients that others edit or clear go unnoticed.
    """
    try:
        return torch._C._current_graph_task_id(), torch.autograd.Variable._execution_engine.queue_callback
    except AttributeError:
        return -1, None


class _Use:
    """Which record's step has used a value."""

    by: weakref.ref[Record] | None = None


class _Watch:
    """The forward hook on a module whose values are recorded."""

    def __init__(self, record: Record | None = None) -> None:
        self.record = weakref.ref(record) if record is not None else None

    def __call__(self, module: nn.Module, args: Any, value: Tensor) -> Tensor | None:
        record = self.record() if self.record is not None else None
        return record.through(value) if record is not None and value.requires_grad else None

    def __reduce__(self) -> tuple[type[_Watch], tuple[()]]:
        return _Watch, ()
