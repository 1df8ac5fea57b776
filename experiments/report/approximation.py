"""The paper's Figure 1: SGD's model of the objective at w_t, and the model of the loss-preserving linearisation.

A network of one weight with three scores under the multi-class hinge. Every curve and both next iterates come from
proxsvm: the tangent is the first vertex of the dual, the piecewise linear model is the loss at the linearised scores,
and its proximal problem is solved by ``BlockFW``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm import ProxProblem
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import BlockFW

TRUTH = torch.tensor([0])
W_T, ETA = 2.6, 2.2


def network(w: Tensor) -> Tensor:
    """Scores ``[n, 3]`` of n weights: the true class's is 0, one curve rises and one falls."""
    return torch.stack([0 * w, 0.20 * w**2 + 0.45 * w - 1.0, 0.05 * w**2 - 0.9 * w + 0.1], 1)


@dataclass(frozen=True)
class Approximation:
    """Curves over the weights ``w``, the proximal term that is added to both models, and where they step to."""

    w: Tensor
    objective: Tensor
    sgd: Tensor
    preserving: Tensor
    proximal: Tensor
    w_sgd: float
    w_preserving: float
    w_best: float


def approximation(points: int = 501) -> Approximation:
    """The models at w_t = 2.6 with η = 2.2."""
    w = torch.linspace(-1.9, 3.4, points, dtype=torch.float64)
    w_t = torch.tensor([W_T], dtype=torch.float64, requires_grad=True)
    scores = network(w_t)
    problem = ProxProblem.from_scores(MultiClassHinge(), scores, TRUTH, [w_t], lr=ETA)
    first, step = problem.first(), w - W_T
    slope = problem.linearization.jvp([torch.ones_like(w_t)])
    exact = BlockFW(tol=1e-9).solve(problem)
    objective = _loss(network(w))
    return Approximation(
        w=w,
        objective=objective,
        sgd=first.lam + first.delta[0] * step,
        preserving=_loss(scores.detach() + step[:, None] * slope),
        proximal=step**2 / (2 * ETA),
        w_sgd=W_T - ETA * first.delta[0].item(),
        w_preserving=W_T + problem.displacement(exact)[0].item(),
        w_best=w[objective.argmin()].item(),
    )


def _loss(scores: Tensor) -> Tensor:
    return MultiClassHinge(reduction="none")(scores, TRUTH.expand(len(scores)))
