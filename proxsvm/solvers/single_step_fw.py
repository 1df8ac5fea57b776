"""One Frank-Wolfe step: the Deep Frank-Wolfe algorithm of the paper."""

from __future__ import annotations

from dataclasses import dataclass

from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers.base import DualSolver


@dataclass(frozen=True)
class SingleStepFW(DualSolver):
    """One step from the start towards the loss's own gradient, with the best γ (Algorithm 1).

        γ = clip₀₁[ (lam_s − η⟨r, delta_s⟩) / (η‖delta_s‖²) ],      delta = γ delta_s

    The cost of SGD: one forward and one backward pass, without synchronising.

    >>> import torch
    >>> from proxsvm import ProxProblem
    >>> from proxsvm.losses import L1Regression
    >>> w = torch.tensor([1.0], requires_grad=True)
    >>> problem = ProxProblem.from_scores(L1Regression(), 2 * w, torch.tensor([0.0]), [w], lr=10.0)
    >>> point = SingleStepFW().solve(problem)       # |2(w + d)| is 0 at d = -1: γ = 2 / (10·4)
    >>> point.gamma, problem.displacement(point)
    (tensor(0.0500), [tensor([-1.])])
    """

    needs_graph = False
    on_ranks = True

    def solve(self, problem: ProxProblem) -> DualPoint:
        """The best point between the start and the first vertex."""
        return problem.move(problem.start(), problem.first())
