"""What hooks and version counters can tell about a record that is wrong."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm.linearization.graph import leaves
from proxsvm.optimizer.messages import EDITED, MISSING, SECOND_ORDER, WEIGHTS


class Guard:
    """Collects the faults of a record since ``clear()``.

    Edits, and backward passes that nobody recorded, are noticed by one gradient, that of the smallest parameter: who
    clips or divides changes all of them. A term that was added to a recorded value is only noticed by parameters of its
    own.
    """

    def __init__(self, params: Callable[[], Sequence[Tensor]]) -> None:
        self._params = params
        self._reached: set[int] | None = set()  # the parameters that recorded values reach, until the first step
        self._sentinel = min((p for p in params() if p.requires_grad), key=Tensor.numel, default=None)
        self.clear()
        if self._sentinel is not None:
            me = weakref.WeakMethod(self._accumulated)
            add: Callable[..., Any] = self._sentinel.register_post_accumulate_grad_hook
            hook = add(lambda p: None if (note := me()) is None else note(p))
            weakref.finalize(self, hook.remove)

    def clear(self) -> None:
        """The gradients were cleared."""
        self._faults: set[str] = set()
        self._unrecorded = 0  # passes that gave the sentinel a gradient, less those that were recorded
        self._left: tuple[int, Tensor] | None = None  # version and norm of that gradient after the last pass

    def _accumulated(self, p: Tensor) -> None:
        if (grad := p.grad) is not None and not torch.compiler.is_compiling():
            self._unrecorded, self._left = self._unrecorded + 1, (grad._version, grad.detach().norm())

    def computed(self, value: Tensor) -> None:
        """A value is going to be recorded."""
        if self._reached is not None:
            try:
                self._reached |= leaves(value)
            except RuntimeError:  # reentrant checkpointing hides parameters
                self._reached = None

    def differentiated(self, weight: Tensor) -> None:
        """A backward pass has reached a recorded value with this gradient."""
        if torch.is_grad_enabled():
            self._faults.add(SECOND_ORDER)
        used = weight[weight != 0] if weight.dim() and weight.is_cpu else weight.new_empty(0)
        if used.numel() and used.min() != used.max():
            self._faults.add(WEIGHTS)

    def recorded(self) -> None:
        """A backward pass was recorded."""
        self._unrecorded -= 1

    def declared(self) -> None:
        """The last backward pass was recorded with the value that it started from: what it did is no fault."""
        self._faults.clear()
        self._unrecorded, self._reached = min(self._unrecorded, 0), None

    def faults(self) -> set[str]:
        """What is wrong, as texts of warnings. On an accelerator an edited gradient is only looked at once."""
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
