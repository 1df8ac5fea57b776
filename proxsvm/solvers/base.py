"""A solver is one method: take a problem, return a dual point."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from torch import Tensor

from proxsvm.problem import DualPoint, ProxProblem


class Trace(NamedTuple):
    """Where a solver stands: after ``step`` steps (or passes over the blocks), ``seconds`` after it began.

    ``primal`` and ``dual`` enclose the exact value, ``gap`` is their difference.
    """

    step: int
    primal: float
    dual: float
    gap: float
    seconds: float


Callback: TypeAlias = Callable[[Trace], None]


class DualSolver(ABC):
    """Base of all solvers. A subclass writes :meth:`solve`.

    ``needs_graph`` says whether :meth:`solve` asks for more than the problem's first vertex: then the optimizer must
    be stepped with a closure. A solver holds options and no state of the training.
    """

    needs_graph: bool = True

    @abstractmethod
    def solve(self, problem: ProxProblem) -> DualPoint:
        """A feasible dual point of ``problem``, at least as good as its start."""


class Clock:
    """Tells ``callback``, if there is one, where a solver stands. Without one it reads no value off the device.

    >>> clock = Clock(lambda trace: print(trace.step, trace.primal, trace.dual))
    >>> clock(1, dual=0.5, gap=0.25)
    1 0.75 0.5
    """

    def __init__(self, callback: Callback | None) -> None:
        self.callback, self.began = callback, time.perf_counter()

    def __call__(self, step: int, dual: Tensor | float | None, gap: Tensor | float) -> None:
        """Report one step."""
        if self.callback is not None:
            assert dual is not None
            d, g = float(dual), float(gap)
            self.callback(Trace(step, d + g, d, g, time.perf_counter() - self.began))


def check_options(*, tol: float, **counts: int) -> None:
    """Raise ValueError unless ``tol`` is 0 or more and every count at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; expected at least 1")
    if not tol >= 0:
        raise ValueError(f"tol is {tol}; expected a relative gap of 0 or more")
