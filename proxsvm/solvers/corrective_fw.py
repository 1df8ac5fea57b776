"""Fully corrective Frank-Wolfe: keep what was seen, and re-optimise over its hull."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm.losses.base import Atom, Scores, like, parts
from proxsvm.problem import DualPoint, ProxProblem, certified
from proxsvm.solvers.base import Callback, Clock, DualSolver, check_options
from proxsvm.solvers.simplex_qp import simplex_qp


@dataclass(frozen=True)
class CorrectiveFW(DualSolver):
    """Frank-Wolfe whose every step re-optimises over the hull of the points that it has seen.

    It lives in the space of scores. With x = p·s and G = J diag(η) Jᵀ, one vjp and one jvp give G x of a new point;
    every inner product ⟨delta_a, delta_b⟩_η = ⟨x_a, G x_b⟩ of the tiny QP is then a product of score vectors.

    The new point is the oracle's atom, or, where the loss's hull has a closed form, the *nearest* atom: each sample
    moves by itself as far as a quadratic of curvature h around its present s_i allows,

        argmax over the hull of  ⟨s, v_i⟩ + c − (h_i/2) ‖s − s_i‖²,      h the curvature of the last step

    Args:
        max_steps: the most steps; each costs a vjp and a jvp.
        tol: stop once the relative gap (P − D)/(P − D₀) is at most this.
        fraction: stop once the gap is at most this fraction of the first one, as in ``MultiStepFW``.
        memory: how many points to keep beside the present one.
        callback: called with a :class:`~proxsvm.solvers.Trace` before each step.

    >>> from proxsvm.losses import L1Regression
    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> problem = ProxProblem.from_scores(L1Regression(), w * torch.tensor([1.0, 3.0]), torch.zeros(2), [w], lr=10.0)
    >>> point = CorrectiveFW(max_steps=20, tol=1e-4).solve(problem)
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
        loss, target, p = problem.origin.loss, problem.origin.target, problem.origin.coefficients
        seen = _Seen(problem, self.memory)
        steps = 0
        while True:
            v = seen.scores()
            exact = loss.oracle(v, target)
            gap = torch.dot(p, exact.b(v) - seen.now.b(v))
            clock(steps, seen.dual, gap)
            first = gap if first is None else first
            enough = not (gap > self.tol * (gap + seen.dual - seen.dual_of_start) and gap > self.fraction * first)
            if enough or steps == self.max_steps:
                return seen.point(steps, gap)
            seen.add(self._candidate(problem, seen, v, exact))
            steps += 1

    def _candidate(self, problem: ProxProblem, seen: _Seen, v: Scores, exact: Atom) -> Atom:
        loss, _, target, p = problem.origin
        hull = loss.hull(v, target)
        if seen.curvature is None:
            return loss.direction(v, target)
        if hull is None or not isinstance(v, Tensor) or not isinstance(seen.now.s, Tensor):
            return exact
        h = (seen.curvature * p).clamp(min=1e-9 * float(seen.curvature * p.max()))
        h = h.reshape(-1, *[1] * (v.dim() - 1))
        return hull.nearest(v + h * seen.now.s, h)


class _Seen:
    """The present point (slot 0) and those seen before, all in the space of scores.

    A row of ``x`` is the flattened p·s of a point, a row of ``gx`` its G x, ``lin`` its Σ p (⟨s, v₀⟩ + c) with
    v₀ = u − J(ηr): the dual of a combination a of the rows is ⟨lin, a⟩ − ½ ⟨a, Q a⟩ + D₀, Q = x gxᵀ.
    """

    def __init__(self, problem: ProxProblem, memory: int) -> None:
        self.problem = problem
        start = problem.start()
        assert start.dual is not None
        self.dual = self.dual_of_start = start.dual
        self.v0 = problem.linearised_scores(start)
        zero = torch.zeros_like(_flat(self.v0))
        n = len(problem.origin.coefficients)
        self.now = Atom(_unflat(zero, self.v0), zero.new_zeros(n))
        self.atoms = [self.now]
        self.x, self.gx = zero[None], zero[None]
        self.Q: Any = np.zeros((1, 1))
        self.lin: Any = np.zeros(1)
        self.mass: Any = np.zeros(1)  # how much of a point is not the start
        self.memory = memory
        self.curvature: Tensor | None = None

    def scores(self) -> Scores:
        """v = v₀ − G x of the present point."""
        return _unflat(_flat(self.v0) - self.gx[0], self.v0)

    def add(self, atom: Atom) -> None:
        """See a point, and move to the best one of the hull."""
        problem = self.problem
        p = problem.origin.coefficients
        vertex = problem.vertex(atom, reuse=True)
        minus_eta_delta = [-g.eta * vertex.delta[i] for g in problem.groups for i in g.at]
        gx = -_flat(problem.linearization.jvp(minus_eta_delta))
        x = _flat(like(self.v0, tuple(p.reshape(-1, *[1] * (s.dim() - 1)) * s for s in parts(atom.s))))
        if len(self.x) > self.memory:  # forget the oldest, never the present one
            self._keep([0, *range(2, len(self.x))])
        dx, dgx = x - self.x[0], gx - self.gx[0]
        norm = dx @ dx
        self.curvature = torch.where(norm > 0, (dx @ dgx).clamp(min=0) / norm, torch.zeros_like(norm))
        row = torch.cat([self.x @ gx, (x @ gx)[None], torch.dot(p, atom.b(self.v0))[None]]).double().cpu().numpy()
        size = len(self.Q)
        Q = np.empty((size + 1, size + 1))
        Q[:size, :size] = self.Q
        Q[size, :] = Q[:, size] = row[:-1]
        self.Q, self.lin = Q, np.append(self.lin, row[-1])
        self.mass = np.append(self.mass, 1.0)
        self.x, self.gx = torch.cat([self.x, x[None]]), torch.cat([self.gx, gx[None]])
        self.atoms.append(atom)
        self._move(simplex_qp(self.Q, self.lin))

    def _move(self, a: Any) -> None:
        weights = torch.as_tensor(a).to(self.x)
        self.x[0], self.gx[0] = weights @ self.x, weights @ self.gx
        used = [t for t in range(len(a)) if a[t] > 0]
        mixed = [
            torch.stack([parts(self.atoms[t].s)[k] for t in used]) for k in range(len(parts(self.v0)))
        ]  # [used, n, ...]
        s = like(self.v0, tuple(torch.tensordot(weights[used], stack, 1) for stack in mixed))
        offset = torch.tensordot(weights[used], torch.stack([self.atoms[t].offset for t in used]), 1)
        self.now = self.atoms[0] = Atom(s, offset)
        Qa = self.Q @ a
        self.Q[0, :] = self.Q[:, 0] = Qa
        self.Q[0, 0] = a @ Qa
        self.lin[0], self.mass[0] = a @ self.lin, a @ self.mass
        # The row of the new slot 0 is ⟨x_0, G x_t⟩ for every t, itself included.
        self.dual = self.dual_of_start + float(self.lin[0] - self.Q[0, 0] / 2)

    def _keep(self, rows: list[int]) -> None:
        self.x, self.gx = self.x[rows], self.gx[rows]
        self.Q, self.lin, self.mass = self.Q[np.ix_(rows, rows)], self.lin[rows], self.mass[rows]
        self.atoms = [self.atoms[t] for t in rows]

    def point(self, steps: int, gap: Tensor) -> DualPoint:
        """The present point with its delta, at the cost of a vjp."""
        if steps == 0:
            return certified(self.problem.start(), gap)
        gamma = torch.full_like(gap, min(1.0, float(self.mass[0])))
        found = replace(self.problem.vertex(self.now), gamma=gamma, steps=steps, gap=gap)
        return replace(found, dual=self.problem.dual(found))


def _flat(scores: Scores) -> Tensor:
    return torch.cat([u.detach().reshape(-1) for u in parts(scores)])


def _unflat(flat: Tensor, scores: Scores) -> Scores:
    sizes = [u.numel() for u in parts(scores)]
    return like(scores, tuple(x.reshape(u.shape) for x, u in zip(flat.split(sizes), parts(scores), strict=True)))
