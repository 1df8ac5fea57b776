"""Several Frank-Wolfe steps on the true linearisation."""

from __future__ import annotations

from dataclasses import dataclass

from proxsvm.problem import DualPoint, ProxProblem, certified
from proxsvm.solvers.base import DualSolver


@dataclass(frozen=True)
class MultiStepFW(DualSolver):
    """Up to ``max_steps`` steps of the proximal Frank-Wolfe algorithm (Algorithm 2).

    Each step takes the oracle's atom at the linearised scores u + J d, which certifies the gap P − D on the way, and
    stops once the relative gap (P − D)/(P − D₀) is at most ``tol``. A step costs a vjp and a jvp of the network.

    >>> import torch
    >>> from proxsvm import ProxProblem
    >>> from proxsvm.losses import L1Regression
    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> scores = w * torch.tensor([1.0, 3.0])
    >>> problem = ProxProblem.from_scores(L1Regression(), scores, torch.zeros(2), [w], lr=10.0)
    >>> point = MultiStepFW(max_steps=200, tol=1e-4).solve(problem)
    >>> bool(problem.relative_gap(point) <= 1e-4)
    True
    """

    max_steps: int = 10
    tol: float = 1e-3

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; expected at least 1")
        if not self.tol >= 0:
            raise ValueError(f"tol is {self.tol}; expected a relative gap of 0 or more")

    def solve(self, problem: ProxProblem) -> DualPoint:
        """Step until the certified relative gap is at most ``tol``."""
        point = problem.start()
        for _ in range(self.max_steps):
            vertex, gap = problem.conditional_gradient(point)
            if not problem.relative(gap, point) > self.tol:  # also where it is not a number
                return certified(point, gap)
            point = problem.move(point, vertex)
        return point
