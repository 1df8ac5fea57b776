"""What CorrectiveFW keeps between its steps: a dual point, and what is known of v = v₀ − G x, its scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.tensors import Array
from proxsvm._scores import as_column, inner
from proxsvm.losses.base import Atom, Scores, detached, like, parts
from proxsvm.losses.hulls import ClosedHull
from proxsvm.metrics.base import dots
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem, best_gamma

MISSED = 0.5  # the fraction of the curvature missed in the last move that the model expects in the next
SOLVED = 1e-2  # the model is solved once its gradient is this fraction of the first one
LEAST = 1e-4  # of the largest curvature: with less the model would be too steep to solve
TRIES = 100  # ... or after this many evaluations of it


class State:
    """The current dual point of a solve, and what its steps have revealed of G. ``dual`` is D there. A subclass has

    ``scores()``: v = v₀ − G x. What the last step reveals of G is evaluated here, at the cost of a jvp.
    ``ascent(v, atom)``: the slope of D towards an atom, its Σ p (⟨s, v⟩ + c) minus that of the point; of the oracle's,
    the gap.
    ``step(v, vertex)``: improves the point, given the oracle's atom at v, at the cost of a vjp.
    ``point()``: the point after at least one step.
    """

    def __init__(self, problem: ProxProblem) -> None:
        self.problem, self.start = problem, problem.start()
        assert self.start.dual is not None
        self.dual = self.dual_of_start = float(self.start.dual)
        self.weight = problem.origin.coefficients  # p, [n]
        known = problem.origin.lower_bounds()
        self.bounds = torch.zeros_like(self.weight) if known is None else known  # c of the start, [n]


class CurvatureModel(State):
    """For a loss whose hull has a closed form: the current point, and a model of the curvature G around it.

    Each move d of x = p·s reveals G d. The rows of L are these, minus what earlier rows explain, as in Cholesky's
    factorisation: B = LᵀL equals G on all moves so far, and is nowhere above it. The next point is the best one of

        max over s in the hull of  Σ_i p_i (⟨s_i, v_i⟩ + c_i) − ½ ⟨d, (B + h) d⟩,    d = p·s − x,

    with h of the size of what B missed in the last move, and the step towards it is exact: D never decreases.
    """

    def __init__(self, problem: ProxProblem, hull: ClosedHull, memory: int) -> None:
        super().__init__(problem)
        self.hull = hull
        self.v0 = parts(problem.linearised_scores(self.start))[0]
        self.p = as_column(self.weight, self.v0)
        self.largest = float(problem.mean(self.weight.max()))
        self.s, self.offset = torch.zeros_like(self.v0), self.bounds
        self.gx = torch.zeros_like(self.v0)
        self.delta: list[Tensor] = []
        self.L = self.v0.new_empty(memory, self.v0.numel())
        self.size, self.mass, self.h, self.top = 0, 0.0, 0.0, 0.0  # h is the model's, top the largest curvature seen
        self.rounding = max(1e-9, 100 * torch.finfo(self.v0.dtype).eps)
        # H⁻¹ delta, γ, L d and pivot of the last move, of which G d is not known yet
        self.unsettled: tuple[list[Tensor], float, Array, float] | None = None

    def scores(self) -> Tensor:
        """The model learns G d of the last move."""
        if self.unsettled is None:
            return self.v0
        move, gamma, known, pivot = self.unsettled
        gd = parts(self.problem.linearization.jvp(move))[0]
        self.gx.add_(gd, alpha=gamma)
        if pivot > 0:
            L, at = self.L[: self.size], self.size
            if at == len(self.L):  # the smallest row is replaced
                at = int(self.problem.mean(L.square().sum(1)).argmin())
                pivot, known[at] = pivot + float(known[at]) ** 2, 0.0
            else:
                self.size += 1
            self.L[at] = torch.addmv(gd.reshape(-1), L.t(), self._tensor(known), alpha=-1).div_(pivot**0.5)
        return self.v0 - self.gx

    def ascent(self, v: Tensor, atom: Atom) -> float:
        slope = torch.dot((self.p * self._change(atom)).reshape(-1), v.reshape(-1))
        return float(self.problem.mean(slope + torch.dot(self.weight, atom.offset - self.offset)))

    def _change(self, atom: Atom) -> Tensor:
        return parts(atom.s)[0] - self.s

    def step(self, v: Tensor, vertex: Atom) -> None:
        """Move towards the model's best point, or the first time towards ``vertex``, as far as D rises."""
        atom = vertex if not self.delta else self._best(v, self.h)
        slope = self.ascent(v, atom)
        if not slope > 0:  # rounding, at the best point of the model
            atom, slope = vertex, self.ascent(v, vertex)
        change = self._change(atom)
        d = self.p * change
        delta = self.problem.linearization.vjp(d, True)
        move = self.problem.geometry.solve(delta)
        x = d.reshape(-1)
        *numbers, norm = self.problem.mean(torch.cat([self.L[: self.size] @ x, torch.dot(x, x)[None]])).tolist()
        known, curved = np.array(numbers), float(dots(delta, move))
        gamma = float(best_gamma(self._tensor(slope), self._tensor(curved)))
        self.dual += gamma * slope - gamma**2 * curved / 2
        self.mass += gamma * (1 - self.mass)
        self.s, self.offset = self.s + gamma * change, torch.lerp(self.offset, atom.offset, gamma)
        if self.delta:
            torch._foreach_add_(self.delta, delta, alpha=gamma)
        else:
            self.delta = [gamma * x for x in delta]
        missed = curved - float(known @ known)
        if norm > 0:
            self.top = max(self.top, curved / norm)
            self.h = max(MISSED * missed / norm, LEAST * self.top)
        self.unsettled = move, gamma, known, missed if missed > self.rounding * curved else 0.0

    def _best(self, v: Tensor, h: float) -> Atom:
        """The model's best point, by Newton's method on its dual in y = L d,

            min over y of  ½‖y‖² + max over s of Σ_i p_i (⟨s_i, v_i − (Lᵀy)_i⟩ + c_i) − (h/2)‖d‖²,

        which is smooth, with the gradient y − L d(y), and each sample's maximum is a nearest point of its hull.
        """
        L = self.L[: self.size]
        near = (h * self.p).clamp(min=max(1e-9 * h * self.largest, 1e-30))
        center, root = v + near * self.s, (self.p / (near + self.hull.ridge)).sqrt()

        def evaluate(y: Array) -> tuple[Atom, Array]:
            atom = self.hull.nearest(center - (self._tensor(y) @ L).reshape(v.shape), near)
            return atom, y - self.problem.mean(L @ (self.p * self._change(atom)).reshape(-1)).tolist()

        y = np.zeros(self.size)
        atom, gradient = evaluate(y)
        enough, tries = SOLVED * float(np.linalg.norm(gradient)), 0
        while np.linalg.norm(gradient) > enough and tries < TRIES:
            Z = (root * self.hull.tangent(parts(atom.s)[0], L.reshape(-1, *v.shape))).reshape(L.shape)
            hessian = np.array(self.problem.mean(Z @ Z.t()).tolist()) + np.eye(self.size)
            toward = -np.linalg.solve(hessian, gradient)
            slope, t = float(gradient @ toward), 1.0
            while tries < TRIES:
                atom, gradient = evaluate(y + t * toward)
                tries += 1
                ahead = float(gradient @ toward)
                if ahead <= -0.9 * slope:
                    break
                t *= max(slope / (slope - ahead), 0.1)  # the gradient has kinks, where Newton's step may overshoot
            y = y + t * toward
        return atom

    def _tensor(self, x: Array | float) -> Tensor:
        return torch.as_tensor(x, dtype=self.v0.dtype, device=self.v0.device)

    def point(self) -> DualPoint:
        atom = Atom(self.s, self.offset)
        lam = self.problem.expect(atom.b(detached(self.problem.origin.scores)))
        return DualPoint(self.delta, lam, torch.full_like(lam, self.mass), 1, atom=atom)


class AtomHull(State):
    """For a loss with only an oracle: its atoms so far and their weights ``a``; the current point is their combination.

    An atom is kept as the tensors of its s and c; ``gx`` is its G x, and ``lin`` its Σ p (⟨s, v₀⟩ + c). The dual of a
    combination a is −½‖r‖² + ⟨lin, a⟩ − ½ ⟨a, Q a⟩ with Q = ⟨x, G x⟩. Atom 0 is the start, s = 0 and c the loss's lower
    bound; once the memory is full, it becomes the current point of that moment.
    """

    def __init__(self, problem: ProxProblem, memory: int) -> None:
        super().__init__(problem)
        self.v0, self.limit = problem.linearised_scores(self.start), memory + 2
        zero = tuple(torch.zeros_like(u) for u in parts(self.v0))
        self.gx, self.atoms = [zero], [(*zero, self.bounds)]
        self.Q, self.lin, self.a = np.zeros((1, 1)), np.array([float(self.start.lam)]), np.ones(1)
        self.mass = np.zeros(1)  # the fraction of an atom that is not the start
        self.unsettled: list[Tensor] | None = None  # H⁻¹ delta of the newest atom, whose G x is not known yet

    def _combined(self, rows: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        found = tuple(torch.zeros_like(x) for x in rows[0])
        for weight, row in zip(self.a.tolist(), rows, strict=True):
            torch._foreach_add_(found, row, alpha=weight)
        return found

    def scores(self) -> Any:
        if self.unsettled is not None:
            self.gx.append(parts(self.problem.linearization.jvp(self.unsettled)))
            self.unsettled = None
        return like(self.v0, tuple(torch._foreach_sub(parts(self.v0), self._combined(self.gx))))

    def ascent(self, v: Scores, atom: Atom) -> float:
        return float(self.problem.expect(atom.value_at(v))) - float(self.a @ (self.lin - self.Q @ self.a))

    def step(self, v: Scores, vertex: Atom) -> None:
        """Add the atom, and move to the best point of the hull."""
        if len(self.atoms) == self.limit:  # keep the current point and the newest half of the others
            newest = 1 + self.limit // 2
            self.atoms, self.gx = ([self._combined(rows), *rows[newest:]] for rows in (self.atoms, self.gx))
            W = np.vstack([self.a, np.eye(self.limit)[newest:]])
            self.Q, self.lin, self.mass = W @ self.Q @ W.T, W @ self.lin, W @ self.mass
            self.a = np.eye(1, len(W))[0]
        delta = self.problem.vertex(vertex, reuse=True).delta
        self.unsettled = self.problem.geometry.solve(delta)
        sums = [inner(vertex.s, like(self.v0, gx)) for gx in self.gx] + [vertex.b(self.v0)]
        *known, lin = self.problem.mean(torch.stack(sums) @ self.weight).tolist()
        products = np.array([*known, float(dots(delta, self.unsettled))])
        self.Q = np.block([[self.Q, products[:-1, None]], [products]])
        self.lin, self.mass = np.append(self.lin, lin), np.append(self.mass, 1.0)
        self.atoms.append((*parts(vertex.s), vertex.offset))
        self.a = simplex_qp(self.Q, self.lin, np.append(self.a, 0.0))
        self.dual = self.dual_of_start - float(self.start.lam) + float(self.a @ (self.lin - self.Q @ self.a / 2))

    def point(self) -> DualPoint:
        """At the cost of a vjp."""
        *s, offset = self._combined(self.atoms)
        found = self.problem.vertex(Atom(like(self.v0, tuple(s)), offset))
        return replace(found, gamma=torch.full_like(found.lam, min(1.0, float(self.a @ self.mass))))


def simplex_qp(Q: Array, b: Array, start: Array | None = None) -> Array:
    """argmax over a ≥ 0, Σa = 1 of ⟨b, a⟩ − ½ ⟨a, Q a⟩, for Q positive semi-definite, by an active-set method.

    From ``start``, or the first vertex, it adds the entry with the largest slope to the support, solves on the support
    exactly, and drops entries that reach zero on the way. The objective never decreases. For a few dozen entries.

    >>> simplex_qp(np.eye(2), np.array([1.0, 0.5])).round(6)
    array([0.75, 0.25])
    """
    size = len(b)
    a = np.eye(1, size)[0] if start is None else start
    # The equations of the optimum on a support, [[Q, 1], [1, 0]], with a small ridge where Q is singular.
    system = np.ones((size + 1, size + 1))
    system[:size, :size] = Q
    system.flat[:: size + 2] += 1e-13 * float(Q.trace()) / size + 1e-200
    system[size, size] = 0.0
    right = np.append(b, 1.0)
    little = 1e-13 * max(float(np.abs(Q).max()), float(np.abs(b).max()), 1e-300)
    value = -np.inf
    for _ in range(10 * size):
        slope = b - Q @ a
        before, value = value, float((b + slope) @ a) / 2
        if slope.max() - slope @ a <= little or value <= before:  # Q may have few correct digits
            break
        support = a > 0
        support[slope.argmax()] = True
        while True:
            best, at = np.zeros(size), np.flatnonzero(np.append(support, True))
            best[support] = np.linalg.solve(system[at[:, None], at], right[at])[:-1]
            falling = np.flatnonzero(best < 0)
            if not len(falling):
                break
            reach = a[falling] / (a[falling] - best[falling])  # how far each can go before it reaches zero
            a = a + reach.min() * (best - a)
            support[falling[reach.argmin()]] = False
            a = np.where(support, a, 0.0)
        a = best / best.sum()
    return a
