"""Fully corrective Frank-Wolfe: keep what was seen, and re-optimise over its hull."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm.losses.base import Atom, Scores, like, parts
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.solvers.base import Callback, Clock, DualSolver, check_options
from proxsvm.solvers.simplex_qp import simplex_qp

# How far the nearest atom reaches, chosen with the period of the vertices by the steps that a few small networks need.
EARLY, LATER = 6, 0.03


@dataclass(frozen=True)
class CorrectiveFW(DualSolver):
    """Frank-Wolfe whose every step re-optimises over the hull of the points that it has seen.

    It lives in the space of scores. With x = p·s and G = J diag(η) Jᵀ, one vjp and one jvp give G x of a new point;
    every inner product ⟨delta_a, delta_b⟩_η = ⟨x_a, G x_b⟩ of the tiny QP is then a product of score vectors. G is
    symmetric, so that the QP needs no G x of the newest point: the last step is spared its jvp.

    The new point is the oracle's atom, or, where the loss's hull has a closed form, the *nearest* atom: each sample
    moves by itself as far as a quadratic of curvature h around its present s_i allows,

        argmax over the hull of  ⟨s, v_i⟩ + c − (h_i/2) ‖s − s_i‖²

    with h the curvature of the last step, and after a few steps 0.03 of it.

    Args:
        max_steps: the most steps; each costs a vjp, and a jvp before the next. The end costs one more vjp.
        tol: stop once the relative gap (P − D)/(P − D₀) is at most this.
        fraction: stop once the gap is at most this fraction of the first one, as in ``MultiStepFW``.
        memory: how many points to keep beside the present one.
        callback: called with a :class:`~proxsvm.solvers.Trace` before each step.

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
        loss, target, p = problem.origin.loss, problem.origin.target, problem.origin.coefficients
        seen = _Seen(problem, self.memory)
        hull, largest = loss.hull(seen.v0, target), float(p.max())
        for steps in range(self.max_steps):
            v = seen.scores()
            vertex = loss.oracle(v, target)
            gap = float(torch.dot(p, vertex.b(v))) - seen.worth
            clock(steps, seen.dual, gap)
            first = gap if first is None else first
            if not (gap > self.tol * (gap + seen.dual - seen.dual_of_start) and gap > self.fraction * first):
                return seen.point(steps, gap)
            if steps == 0:
                seen.add(loss.direction(v, target))
            elif hull is None or (steps > 2 and steps % 4 == 0):  # a vertex now and then reaches across the hull
                seen.add(vertex)
            else:
                near = 1.0 if steps <= EARLY else LATER
                h = (near * seen.curvature * p).clamp(min=max(1e-9 * seen.curvature * largest, 1e-30))
                h = h.reshape(-1, *[1] * (v.dim() - 1))
                seen.add(hull.nearest(v + h * _unflat(seen.now, seen.v0), h))
        return seen.point(self.max_steps, None)


class _Seen:
    """The points seen so far, in the space of scores, and their weights ``a``: the present point is their combination.

    A row of ``s`` is a point's flattened s, with ``offset`` its c and ``gx`` its G x, x = p·s; ``lin`` is its
    Σ p (⟨s, v₀⟩ + c) with v₀ = u − J(ηr). The dual of a combination a of the rows is D₀ + ⟨lin, a⟩ − ½ ⟨a, Q a⟩
    with Q = ⟨x, G x⟩. Row 0 is the start, s = 0; where memory ends, it becomes what was the present point.
    """

    def __init__(self, problem: ProxProblem, memory: int) -> None:
        self.problem = problem
        start = problem.start()
        assert start.dual is not None
        self.dual = self.dual_of_start = float(start.dual)
        self.v0 = problem.linearised_scores(start)
        self.flat_v0 = _flat(self.v0)
        self.weight = problem.origin.coefficients
        self.p = _flat(like(self.v0, tuple(_by_sample(self.weight, u).expand_as(u) for u in parts(self.v0))))
        rows = memory + 2
        self.s, self.gx = (self.p.new_zeros(rows, len(self.p)) for _ in range(2))
        self.offset = self.p.new_zeros(rows, len(self.weight))
        self.Q, self.lin, self.a = np.zeros((rows, rows)), np.zeros(rows), np.zeros(rows)
        self.mass = np.ones(rows)  # how much of a point is not the start
        self.a[0], self.mass[0] = 1.0, 0.0
        self.weights = torch.as_tensor(self.a[:1]).to(self.p)  # a as a tensor
        self.now = self.s[0]  # the present s
        self.worth = 0.0  # Σ p (⟨s, v⟩ + c) of the present point at its own scores v
        self.curvature = 0.0
        self.size = 1
        self.unsettled: list[Tensor] | None = None  # η delta of the newest point, of which G x is not known yet

    def scores(self) -> Any:
        """v = v₀ − G x of the present point."""
        if self.unsettled is None:
            return self.v0
        self.gx[self.size - 1] = _flat(self.problem.linearization.jvp(self.unsettled))
        return _unflat(self.flat_v0 - self._combined(self.gx), self.v0)

    def _combined(self, rows: Tensor) -> Tensor:
        return self.weights @ rows[: self.size]

    def add(self, atom: Atom) -> None:
        """See a point, and move to the best one of the hull."""
        if self.size == len(self.s):
            self._forget()
        problem, k = self.problem, self.size
        self.s[k], self.offset[k] = _flat(atom.s), atom.offset
        x = self.p * self.s[k]
        delta = problem.linearization.vjp(_unflat(x, self.v0), True)
        self.unsettled = [g.eta * delta[i] for g in problem.groups for i in g.at]
        own = [
            torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in zip(delta, self.unsettled, strict=True)
        ]  # ‖delta‖²_η
        change = x - self.p * self.now
        linear = torch.dot(x, self.flat_v0), torch.dot(self.weight, self.offset[k])
        numbers = torch.cat([self.gx[:k] @ x, torch.stack([torch.dot(change, change), *linear, *own])]).tolist()
        norm, self.lin[k] = numbers[k], numbers[k + 1] + numbers[k + 2]
        self.Q[k, : k + 1] = self.Q[: k + 1, k] = [*numbers[:k], sum(numbers[k + 3 :])]
        self.size = k + 1
        Q, lin, a = self.Q[: k + 1, : k + 1], self.lin[: k + 1], self.a[: k + 1]
        a[k] = 0.0
        toward = -a
        toward[k] = 1.0
        self.curvature = max(float(toward @ Q @ toward), 0.0) / norm if norm > 0 else 0.0
        a[:] = simplex_qp(Q, lin, a)
        along, curved = float(a @ lin), float(a @ Q @ a)
        self.dual, self.worth = self.dual_of_start + along - curved / 2, along - curved
        self.weights = torch.as_tensor(a).to(self.p)
        self.now = self._combined(self.s)

    def _forget(self) -> None:
        """Make room: forget the oldest point without weight or, if all have some, keep their combination instead."""
        idle = np.flatnonzero(self.a[1:] == 0) + 1
        if not len(idle):
            for rows in (self.s, self.gx, self.offset):
                rows[0] = self._combined(rows)
            Qa = self.Q @ self.a
            self.Q[0], self.Q[:, 0] = Qa, Qa
            self.Q[0, 0] = self.a @ Qa
            self.lin[0], self.mass[0] = self.a @ self.lin, self.a @ self.mass
            self.a[:] = 0.0
            self.a[0] = 1.0
            idle = np.array([1])
        kept = np.delete(np.arange(self.size), idle[0])
        self.size -= 1
        for rows in (self.s, self.gx, self.offset):
            rows[: self.size] = rows[torch.as_tensor(kept, device=rows.device)]
        self.Q[: self.size, : self.size] = self.Q[np.ix_(kept, kept)]
        self.lin[: self.size], self.a[: self.size] = self.lin[kept], self.a[kept]

    def point(self, steps: int, gap: float | None) -> DualPoint:
        """The present point with its delta, at the cost of a vjp."""
        certified = None if gap is None else torch.full_like(self.p[0], gap)
        if steps == 0:
            return replace(self.problem.start(), gap=certified)
        now = Atom(_unflat(self.now, self.v0), self._combined(self.offset))
        gamma = torch.full_like(self.p[0], min(1.0, float(self.a[: self.size] @ self.mass[: self.size])))
        found = replace(self.problem.vertex(now), gamma=gamma, steps=steps, gap=certified)
        return replace(found, dual=self.problem.dual(found))


def _by_sample(p: Tensor, u: Tensor) -> Tensor:
    return p.reshape(-1, *[1] * (u.dim() - 1))


def _flat(scores: Scores) -> Tensor:
    if isinstance(scores, Tensor):
        return scores.detach().reshape(-1)
    return torch.cat([u.detach().reshape(-1) for u in scores])


def _unflat(flat: Tensor, scores: Scores) -> Scores:
    if isinstance(scores, Tensor):
        return flat.reshape(scores.shape)
    sizes = [u.numel() for u in parts(scores)]
    return like(scores, tuple(x.reshape(u.shape) for x, u in zip(torch.split(flat, sizes), parts(scores), strict=True)))
