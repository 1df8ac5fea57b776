"""A dual point in the space of scores, which is where CorrectiveFW works.

With x = p·s and G = J H⁻¹ Jᵀ the linearised scores are v = v₀ − G x. One vjp and one jvp evaluate G x, and every inner
product ⟨delta_a, delta_b⟩ is a product of score vectors, ⟨x_a, G x_b⟩.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.base import Atom, Scores
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem


class ScoreSpacePoint(ABC):
    """The current dual point, and what its steps have revealed of G. ``dual`` is D there."""

    def __init__(self, problem: ProxProblem) -> None:
        self.problem = problem
        self.start = problem.start()
        assert self.start.dual is not None
        self.dual = self.dual_of_start = float(self.start.dual)
        self.weight = problem.origin.coefficients  # p, [n]
        known = problem.origin.lower_bounds()
        self.bounds = torch.zeros_like(self.weight) if known is None else known  # c of the start, [n]

    @abstractmethod
    def scores(self) -> Any:
        """v of the current point. What the last step reveals of G is evaluated here, at the cost of a jvp."""

    @abstractmethod
    def ascent(self, v: Any, atom: Atom) -> float:
        """The slope of D towards ``atom``; towards the oracle's, that is the gap."""

    @abstractmethod
    def step(self, v: Any, vertex: Atom) -> None:
        """Improve the point, given the oracle's atom at v; at the cost of a vjp."""

    @abstractmethod
    def _moved(self, steps: int) -> DualPoint:
        """The point after at least one step, with its delta."""

    def point(self, steps: int, gap: float | None) -> DualPoint:
        """The current point with D and, where it is known, its gap."""
        found = self.start
        if steps:
            found = self._moved(steps)
            found = replace(found, dual=self.problem.dual(found))
        return found if gap is None else replace(found, gap=torch.full_like(self.weight[0], gap))

    def _push(self, x: Scores) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """delta = Jᵀx, H⁻¹ delta and ‖delta‖² = ⟨x, G x⟩."""
        delta = self.problem.linearization.vjp(x, True)
        move = self.problem.geometry.solve(delta)
        squares = [torch.sum(a * b, dtype=self.weight.dtype).to(self.weight) for a, b in zip(delta, move, strict=True)]
        return delta, move, torch.stack(squares).sum()
