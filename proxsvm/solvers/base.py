"""A solver is one method: take a problem, return a dual point."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Integral, Real
from typing import NamedTuple, TypeAlias

from torch import Tensor

from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem


class Trace(NamedTuple):
    """The state of a solver after ``step`` steps (or passes over the blocks), ``seconds`` after the start.

    ``primal`` and ``dual`` enclose the exact value, ``gap`` is their difference.
    """

    step: int
    primal: float
    dual: float
    gap: float
    seconds: float


Callback: TypeAlias = Callable[[Trace], None]
Scalar: TypeAlias = "float | Tensor"  # a tensor where it lives on the device


class DualSolver(ABC):
    """Base of all solvers. A subclass defines :meth:`solve`, and declares what it needs.

    ``needs_graph``: :meth:`solve` needs more than the problem's first vertex, so the optimizer must be stepped with
    a closure. ``on_ranks``: it uses the samples only through the problem's ``expect()``, ``mean()``, ``gather()`` and
    ``linearization.vjp()``, which know the samples of all ranks that train together; without it the optimizer refuses
    to run it there. A solver holds options and no training state.
    """

    needs_graph: bool = True
    on_ranks: bool = False

    @abstractmethod
    def solve(self, problem: ProxProblem) -> DualPoint:
        """A feasible dual point of ``problem``, at least as good as its start."""


class Progress:
    """Reports each step to the callback, and is the stopping rule of all iterative solvers:

        P − D ≤ tol · (P − D₀)    or    P − D ≤ fraction · (the first gap),       D₀ the dual of the start

    >>> progress = Progress(0.0, tol=0.25, callback=lambda trace: print(trace.step, trace.primal, trace.dual))
    >>> progress.stop(0, dual=0.5, gap=0.5), progress.stop(1, dual=0.75, gap=0.25)
    0 1.0 0.5
    1 1.0 0.75
    (False, True)
    """

    def __init__(
        self, dual_of_start: Scalar, *, tol: float, fraction: float = 0.0, callback: Callback | None = None
    ) -> None:
        self.dual_of_start, self.tol, self.fraction, self.callback = dual_of_start, tol, fraction, callback
        self.first: Scalar | None = None
        self.began = time.perf_counter()

    def enough(self, dual: Scalar, gap: Scalar) -> Scalar:
        """The gap that ``tol`` requires, tol · (P − D₀)."""
        return self.tol * (gap + dual - self.dual_of_start)

    def stop(self, step: int, dual: Scalar, gap: Scalar) -> bool:
        """Report ``step``; whether the solver may stop. Without a callback nothing else is read from the device."""
        if self.callback is not None:
            d, g = float(dual), float(gap)
            self.callback(Trace(step, d + g, d, g, time.perf_counter() - self.began))
        self.first = gap if self.first is None else self.first
        # The negated form also stops where the gap is NaN.
        return not (gap > self.enough(dual, gap) and gap > self.fraction * self.first)


def check_options(*, tol: float, fraction: float = 0.0, **counts: int) -> None:
    """Raise ValueError unless ``tol`` is at least 0, ``fraction`` in [0, 1) and every count a whole number from 1.

    >>> check_options(tol=1e-3, max_steps=0)
    Traceback (most recent call last):
    ValueError: max_steps is 0; expected a whole number, at least 1
    """
    for name, count in counts.items():
        if not (isinstance(count, Integral) and count >= 1):
            raise ValueError(f"{name} is {count}; expected a whole number, at least 1")
    if not (isinstance(tol, Real) and tol >= 0):
        raise ValueError(f"tol is {tol}; expected a relative gap of 0 or more")
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction is {fraction}; expected a fraction of the first gap, in [0, 1)")
