"""The simplex of the classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm.losses._hulls.base import ClosedHull, Polytope, cvxpy, flat
from proxsvm.losses.base import Atom


@dataclass(frozen=True)
class Simplex(ClosedHull):
    """s = α − e_y, c = ⟨cost, α⟩ over α ≥ 0, Σ_k α_k = 1. ``target`` is y, ``[n]``; ``cost`` is ``[n, K]``.

    >>> hull = Simplex(torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    >>> hull.best(torch.tensor([[0.5, 0.0]])).s                       # u + cost = [0.5, 1]
    tensor([[-1.,  1.]])
    >>> hull.nearest(torch.tensor([[0.5, 0.0]]), torch.tensor(1.0)).s     # α = e_y + (v + cost)/h = [1.5, 1], projected
    tensor([[-0.2500,  0.2500]])
    >>> hull.contains(torch.tensor([[-0.5, 0.5]]), 1e-6), hull.contains(torch.tensor([[0.5, -0.5]]), 1e-6)
    (True, False)
    """

    target: Tensor
    cost: Tensor

    def _e_y(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like).scatter_(1, self.target[:, None], 1)

    def _atom(self, alpha: Tensor) -> Atom:
        return Atom(alpha - self._e_y(alpha), (alpha * self.cost).sum(1))

    def lift(self, s: Tensor) -> Tensor:
        """⟨cost, s + e_y⟩."""
        return (s * self.cost).sum(1) + self.cost.gather(1, self.target[:, None]).squeeze(1)

    def best(self, v: Tensor) -> Atom:
        """The class with the largest v + cost."""
        return self._atom(torch.zeros_like(v).scatter_(1, (v + self.cost).argmax(1, keepdim=True), 1))

    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The projection of e_y + (v + cost)/h onto the simplex, by sorting; ``h`` broadcasts to ``[n, 1]``."""
        return self._atom(project_on_simplex(self._e_y(v) + (v + self.cost) / h))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """The directions that keep Σα and every α_k = 0."""
        free = (s.scatter_add(1, self.target[:, None], torch.ones_like(s[:, :1])) > 0).to(s)  # α > 0
        inside = free * rows
        return inside - free * (inside.sum(2, keepdim=True) / free.sum(1, keepdim=True))

    def contains(self, s: Tensor, slack: float) -> bool:
        """α ≥ 0 and Σ_k α_k = 1."""
        if s.shape != self.cost.shape:
            return False
        alpha = s + self._e_y(s)
        return bool((alpha >= -slack).all() and (s.sum(1).abs() <= slack * s.shape[1]).all())

    def express(self) -> Polytope:
        """α ≥ 0, Σ_k α_k = 1, s = α − e_y, c = ⟨cost, α⟩."""
        cp = cvxpy()
        alpha = cp.Variable(tuple(self.cost.shape), nonneg=True)
        offset = cp.sum(cp.multiply(flat(self.cost), alpha), axis=1)
        return Polytope((alpha - flat(self._e_y(self.cost)),), offset, [cp.sum(alpha, axis=1) == 1])


def project_on_simplex(z: Tensor) -> Tensor:
    """The nearest point of the unit simplex to each row: (z − θ)₊ with θ such that it sums to 1.

    >>> project_on_simplex(torch.tensor([[2.0, 0.0], [0.6, 0.4]]))
    tensor([[1.0000, 0.0000],
            [0.6000, 0.4000]])
    """
    z = z - z.amax(1, keepdim=True)  # large entries would cost digits
    ordered = z.sort(1, descending=True).values
    excess = ordered.cumsum(1) - 1
    k = torch.arange(1, z.shape[1] + 1, device=z.device)
    support = (ordered * k > excess).sum(1, keepdim=True).clamp(min=1)  # 0 where z contains a NaN
    return (z - excess.gather(1, support - 1) / support).clamp(min=0)
