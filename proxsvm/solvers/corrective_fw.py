"""Fully corrective Frank-Wolfe: what was seen is kept, and every step makes the best of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxsvm.losses.base import like, parts
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.solvers.base import Callback, Clock, DualSolver, check_options
from proxsvm.solvers.learnt import Learnt
from proxsvm.solvers.seen import Seen


@dataclass(frozen=True)
class CorrectiveFW(DualSolver):
    """Frank-Wolfe whose every step makes the best of all that was seen before.

    It lives in the space of scores. With x = p·s and G = J diag(η) Jᵀ, one vjp and one jvp show G x of a new point, and
    every inner product ⟨delta_a, delta_b⟩_η is a product of score vectors. The last step is spared its jvp.

    Where the loss's hull has a closed form, G is learnt from the moves made so far, and the next point is the best one
    of the whole hull under that model: see :class:`~proxsvm.solvers.learnt.Learnt`. Of other losses the oracle's atoms
    are kept, and each step takes the best point of their hull: see :class:`~proxsvm.solvers.seen.Seen`.

    Args:
        max_steps: the most steps; each costs a vjp, and a jvp before the next. With the oracle alone, the end costs
            one more vjp.
        tol: stop once the relative gap (P − D)/(P − D₀) is at most this.
        fraction: stop once the gap is at most this fraction of the first one, as in ``MultiStepFW``.
        memory: how many points, or moves, to keep beside the present one.
        callback: called with a :class:`~proxsvm.solvers.Trace` before each step.

    >>> import torch
    >>> from proxsvm.losses import L1Regression
    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> problem = ProxProblem.from_scores(L1Regression(), w * torch.tensor([1.0, 3.0]), torch.zeros(2), [w], lr=10.0)
    >>> point = CorrectiveFW(max_steps=30, tol=1e-4).solve(problem)
    >>> bool(problem.relative_gap(point) <= 1e-4)
    True
    """

    max_steps: int = 10
    tol: float = 1e-3
    fraction: float = 0.0
    memory: int = 30
    callback: Callback | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(tol=self.tol, max_steps=self.max_steps, memory=self.memory)
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction is {self.fraction}; expected a fraction of the first gap, in [0, 1)")

    def solve(self, problem: ProxProblem) -> DualPoint:
        """Step until the certified gap is small."""
        clock, first = Clock(self.callback), None
        loss, scores, target, *_ = problem.origin
        hull = loss.hull(like(scores, tuple(u.detach() for u in parts(scores))), target)
        state: Seen | Learnt = Seen(problem, self.memory) if hull is None else Learnt(problem, hull, self.memory)
        for steps in range(self.max_steps):
            v = state.scores()
            vertex = loss.oracle(v, target)
            gap = state.ascent(v, vertex)
            clock(steps, state.dual, gap)
            first = gap if first is None else first
            if not (gap > self.tol * (gap + state.dual - state.dual_of_start) and gap > self.fraction * first):
                return state.point(steps, gap)
            state.step(v, vertex if steps else loss.direction(v, target))
        return state.point(self.max_steps, None)
