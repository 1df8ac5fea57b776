"""A solver is one method: take a problem, return a dual point."""

from __future__ import annotations

from abc import ABC, abstractmethod

from proxsvm.problem import DualPoint, ProxProblem


class DualSolver(ABC):
    """Base of all solvers. A subclass writes :meth:`solve`.

    ``needs_graph`` says whether :meth:`solve` asks for more than the problem's first vertex: then the optimizer must
    be stepped with a closure. A solver holds options and no state of the training.
    """

    needs_graph: bool = True

    @abstractmethod
    def solve(self, problem: ProxProblem) -> DualPoint:
        """A feasible dual point of ``problem``, at least as good as its start."""
