"""For a loss whose hull has a closed form: a model of the curvature, learned from the moves so far."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import Atom, detached, parts
from proxsvm.losses.hulls import ClosedHull
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem, best_gamma
from proxsvm.solvers._corrective.base import ScoreSpacePoint

MISSED = 0.5  # the fraction of the curvature missed in the last move that the model expects in the next
SOLVED = 1e-2  # the model is solved once its gradient is this fraction of the first one
LEAST = 1e-4  # of the largest curvature: with less the model would be too steep to solve
TRIES = 100  # ... or after this many evaluations of it


class CurvatureModel(ScoreSpacePoint):
    """The current point, and a model of the curvature G around it.

    Each move d of x = p·s reveals G d. The rows of L are these, minus what earlier rows explain, as in Cholesky's
    factorisation: B = LᵀL equals G on all moves so far, and is nowhere above it. The next point is the best one of

        max over s in the hull of  Σ_i p_i (⟨s_i, v_i⟩ + c_i) − ½ ⟨d, (B + h) d⟩,    d = p·s − x,

    with h of the size of what B missed in the last move, and the step towards it is exact: D never decreases.
    """

    def __init__(self, problem: ProxProblem, hull: ClosedHull, memory: int) -> None:
        super().__init__(problem)
        self.hull = hull
        self.v0 = parts(problem.linearised_scores(self.start))[0]
        self.p = self.weight.reshape(-1, *[1] * (self.v0.dim() - 1))
        self.largest = float(problem.mean(self.weight.max()))
        self.s, self.offset = torch.zeros_like(self.v0), self.bounds
        self.gx = torch.zeros_like(self.v0)
        self.delta: list[Tensor] = []
        self.L = self.v0.new_empty(memory, self.v0.numel())
        self.size, self.mass = 0, 0.0
        self.h, self.top = 0.0, 0.0  # the model's h, and the largest curvature seen
        self.rounding = max(1e-9, 100 * torch.finfo(self.v0.dtype).eps)
        # H⁻¹ delta, γ, L d and pivot of the last move, of which G d is not known yet
        self.unsettled: tuple[list[Tensor], float, Array, float] | None = None

    def scores(self) -> Tensor:
        """v = v₀ − G x; the model learns G d of the last move."""
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
        """Σ p (⟨s, v⟩ + c) of the atom, minus that of the current point."""
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
        delta, move, own = self._push(d)
        x = d.reshape(-1)
        *numbers, norm = self.problem.mean(torch.cat([self.L[: self.size] @ x, torch.dot(x, x)[None]])).tolist()
        known, curved = np.array(numbers), float(own)
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
        center, root = v + near * self.s, (self.p / near).sqrt()

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

    def _moved(self, steps: int) -> DualPoint:
        """The current point; its delta was updated along the way."""
        atom = Atom(self.s, self.offset)
        lam = self.problem.expect(atom.b(detached(self.problem.origin.scores)))
        return DualPoint(self.delta, lam, torch.full_like(lam, self.mass), steps, atom=atom)
