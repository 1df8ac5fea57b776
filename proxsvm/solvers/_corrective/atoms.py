"""For a loss with only an oracle: the hull of the atoms that the oracle has found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm.losses.base import Atom, Scores
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._arrays import flatten, unflatten
from proxsvm.solvers._corrective.base import ScoreSpacePoint
from proxsvm.solvers._corrective.simplex_qp import simplex_qp


class AtomHull(ScoreSpacePoint):
    """The atoms found so far and their weights ``a``: the current point is their combination.

    A row of ``s`` is an atom's flattened s, with ``offset`` its c and ``gx`` its G x; ``lin`` is its Σ p (⟨s, v₀⟩ + c).
    The dual of a combination a of the rows is −½‖r‖² + ⟨lin, a⟩ − ½ ⟨a, Q a⟩ with Q = ⟨x, G x⟩. Row 0 is the start,
    s = 0 and c the loss's lower bound; once the memory is full, it becomes the current point of that moment.
    """

    def __init__(self, problem: ProxProblem, memory: int) -> None:
        super().__init__(problem)
        self.v0 = problem.linearised_scores(self.start)
        self.flat_v0 = flatten(self.v0).reshape(-1)
        self.p = self.weight.repeat_interleave(len(self.flat_v0) // len(self.weight)).to(self.flat_v0)
        rows = memory + 2
        self.s, self.gx = (self.p.new_zeros(rows, len(self.p)) for _ in range(2))
        self.offset = self.p.new_zeros(rows, len(self.weight))
        self.Q, self.lin, self.a = np.zeros((rows, rows)), np.zeros(rows), np.zeros(rows)
        self.mass = np.ones(rows)  # the fraction of a row that is not the start
        self.a[0], self.mass[0] = 1.0, 0.0
        self.weights = torch.as_tensor(self.a[:1]).to(self.p)  # a as a tensor
        self.offset[0], self.lin[0] = self.bounds, float(self.start.lam)
        self.worth = float(self.start.lam)  # Σ p (⟨s, v⟩ + c) of the current point at its own scores v
        self.size = 1
        self.unsettled: list[Tensor] | None = None  # H⁻¹ delta of the newest row, whose G x is not known yet

    def scores(self) -> Any:
        """v = v₀ − G x."""
        if self.unsettled is None:
            return self.v0
        self.gx[self.size - 1] = flatten(self.problem.linearization.jvp(self.unsettled)).reshape(-1)
        return self._scores(self.flat_v0 - self._combined(self.gx))

    def _combined(self, rows: Tensor) -> Tensor:
        return self.weights @ rows[: self.size]

    def ascent(self, v: Scores, atom: Atom) -> float:
        """Σ p (⟨s, v⟩ + c) of the atom, minus that of the current point."""
        return float(self.problem.expect(atom.value_at(v))) - self.worth

    def step(self, v: Scores, vertex: Atom) -> None:
        """Add the atom, and move to the best point of the hull."""
        if self.size == len(self.s):
            self._forget()
        k = self.size
        self.s[k], self.offset[k] = flatten(vertex.s).reshape(-1), vertex.offset
        x = self.p * self.s[k]
        _, self.unsettled, own = self._push(self._scores(x))
        linear = torch.dot(x, self.flat_v0), torch.dot(self.weight, self.offset[k])
        products = self.problem.mean(torch.cat([self.gx[:k] @ x, torch.stack(linear)]))
        numbers = [*products.tolist(), float(own)]
        self.lin[k] = numbers[k] + numbers[k + 1]
        self.Q[k, : k + 1] = self.Q[: k + 1, k] = [*numbers[:k], numbers[k + 2]]
        self.size = k + 1
        Q, lin, a = self.Q[: k + 1, : k + 1], self.lin[: k + 1], self.a[: k + 1]
        a[k] = 0.0
        a[:] = simplex_qp(Q, lin, a)
        along, curved = float(a @ lin), float(a @ Q @ a)
        self.dual, self.worth = self.dual_of_start - float(self.start.lam) + along - curved / 2, along - curved
        self.weights = torch.as_tensor(a).to(self.p)

    def _forget(self) -> None:
        """Free rows: keep the current point as row 0, and the newest half of the others."""
        for rows in (self.s, self.gx, self.offset):
            rows[0] = self._combined(rows)
        Qa = self.Q @ self.a
        self.Q[0], self.Q[:, 0] = Qa, Qa
        self.Q[0, 0], self.lin[0], self.mass[0] = self.a @ Qa, self.a @ self.lin, self.a @ self.mass
        kept = np.r_[0, 1 + self.size // 2 : self.size]
        self.size = len(kept)
        for rows in (self.s, self.gx, self.offset):
            rows[: self.size] = rows[torch.as_tensor(kept, device=rows.device)]
        self.Q[: self.size, : self.size] = self.Q[np.ix_(kept, kept)]
        self.lin[: self.size], self.mass[: self.size] = self.lin[kept], self.mass[kept]
        self.a[:] = 0.0
        self.a[0] = 1.0

    def _moved(self, steps: int) -> DualPoint:
        """The combination, at the cost of a vjp."""
        now = Atom(self._scores(self._combined(self.s)), self._combined(self.offset))
        gamma = torch.full_like(self.p[0], min(1.0, float(self.a[: self.size] @ self.mass[: self.size])))
        return replace(self.problem.vertex(now), gamma=gamma, steps=steps)

    def _scores(self, flat: Tensor) -> Scores:
        return unflatten(flat.reshape(len(self.weight), -1), self.v0)
