"""Fully corrective Frank-Wolfe: every step makes the best use of all earlier ones."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from proxsvm.losses.base import detached
from proxsvm.losses.hulls import ClosedHull
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._corrective import AtomHull, CurvatureModel
from proxsvm.solvers.base import Callback, DualSolver, Progress, check_options


@dataclass(frozen=True)
class CorrectiveFW(DualSolver):
    """Frank-Wolfe in which every step makes the best use of all earlier ones.

    It works in the space of scores. With x = p·s and G = J H⁻¹ Jᵀ, one vjp and one jvp evaluate G x of a new point, and
    every inner product ⟨delta_a, delta_b⟩ is a product of score vectors. The last step needs no jvp.

    Where the loss's hull has a closed form, G is learned from the moves so far, and the next point is the best one
    of the whole hull under that model: see :class:`~proxsvm.solvers._corrective.CurvatureModel`. For other
    losses the oracle's atoms are kept, and each step moves to the best point of their hull: see
    :class:`~proxsvm.solvers._corrective.AtomHull`.

    Args:
        max_steps: at most this many steps; each costs a vjp, and a jvp before the next. With the oracle alone, the end
            costs one more vjp.
        tol: stop once the relative gap (P − D)/(P − D₀) is at most this.
        fraction: stop once the gap is at most this fraction of the first one, as in ``MultiStepFW``.
        memory: how many points, or moves, to keep besides the current one.
        callback: called with a :class:`~proxsvm.solvers.Trace` before each step.

    >>> import torch
    >>> from proxsvm.losses import L1Regression
    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> problem = ProxProblem.from_scores(L1Regression(), w * torch.tensor([1.0, 3.0]), torch.zeros(2), [w], lr=10.0)
    >>> point = CorrectiveFW(max_steps=30, tol=1e-4).solve(problem)
    >>> bool(problem.relative_gap(point) <= 1e-4)
    True
    """

    on_ranks = True

    max_steps: int = 10
    tol: float = 1e-3
    fraction: float = 0.0
    memory: int = 30
    callback: Callback | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(tol=self.tol, fraction=self.fraction, max_steps=self.max_steps, memory=self.memory)

    def solve(self, problem: ProxProblem) -> DualPoint:
        """Step until the certified gap is small."""
        loss, target = problem.origin.loss, problem.origin.target
        hull, memory = loss.hull(detached(problem.origin.scores), target), self.memory
        state = CurvatureModel(problem, hull, memory) if isinstance(hull, ClosedHull) else AtomHull(problem, memory)
        progress = Progress(state.dual_of_start, tol=self.tol, fraction=self.fraction, callback=self.callback)
        for steps in range(self.max_steps):
            v = state.scores()
            vertex = loss.oracle(v, target)
            gap = state.ascent(v, vertex)
            if progress.stop(steps, state.dual, gap):
                point = state.point() if steps else state.start
                return replace(point, steps=steps, dual=problem.dual(point), gap=torch.full_like(point.lam, gap))
            state.step(v, vertex if steps else loss.direction(v, target))
        point = state.point()
        return replace(point, steps=self.max_steps, dual=problem.dual(point))
