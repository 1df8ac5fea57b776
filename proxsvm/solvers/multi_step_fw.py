"""Several Frank-Wolfe steps on the true linearisation."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxsvm.point import DualPoint, certified
from proxsvm.problem import ProxProblem
from proxsvm.solvers.base import Callback, DualSolver, Progress, check_options


@dataclass(frozen=True)
class MultiStepFW(DualSolver):
    """Up to ``max_steps`` steps of the proximal Frank-Wolfe algorithm (Algorithm 2).

    Each step uses the oracle's atom at the linearised scores u + J d, which also certifies the gap P − D. A
    step costs a vjp and a jvp of the network.

    Args:
        max_steps: at most this many steps.
        tol: stop once the relative gap (P − D)/(P − D₀) is at most this.
        fraction: stop once the gap is at most this fraction of the first one. With 0.3 an easy batch costs one
            step, and only the hard ones get more.
        callback: called with a :class:`~proxsvm.solvers.Trace` before each step.

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

    on_ranks = True

    max_steps: int = 10
    tol: float = 1e-3
    fraction: float = 0.0
    callback: Callback | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(tol=self.tol, fraction=self.fraction, max_steps=self.max_steps)

    def solve(self, problem: ProxProblem) -> DualPoint:
        """Step until the certified gap is small."""
        point = problem.start()
        assert point.dual is not None
        progress = Progress(point.dual, tol=self.tol, fraction=self.fraction, callback=self.callback)
        for step in range(self.max_steps):
            atom, gap = problem.best_atom(point)
            assert point.dual is not None  # set by the start and by every move
            if progress.stop(step, point.dual, gap):
                return certified(point, gap)
            point = problem.move(point, problem.vertex(atom, reuse=self.max_steps > 1))
        return point
