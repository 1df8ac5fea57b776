"""Hulls with a closed form: the simplex and the box. A loss that has one names it, and every solver gains from it.

The solvers ask a hull for its nearest atom, the Frank-Wolfe vertex with a quadratic around it:

    argmax over (s, c) in the hull of  ⟨s, v⟩ + c − (h/2) ‖s‖²

As h → 0 it becomes the oracle's vertex.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm.losses.base import Atom


@dataclass(frozen=True)
class Simplex:
    """s = α − e_y, c = ⟨cost, α⟩ over α ≥ 0, Σ_k α_k = 1. ``target`` is y, ``[n]``; ``cost`` is ``[n, K]``.

    >>> hull = Simplex(torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    >>> hull.nearest(torch.tensor([[0.5, 0.0]]), torch.tensor(1.0)).s     # α = e_y + (v + cost)/h = [1.5, 1], projected
    tensor([[-0.2500,  0.2500]])
    """

    target: Tensor
    cost: Tensor

    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The projection of e_y + (v + cost)/h onto the simplex, by sorting; ``h`` broadcasts to ``[n, 1]``."""
        e_y = torch.zeros_like(v).scatter_(1, self.target[:, None], 1)
        alpha = project_on_simplex(e_y + (v + self.cost) / h)
        return Atom(alpha - e_y, (alpha * self.cost).sum(1))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """``rows``, ``[k, n, K]``, projected on the directions in which a nearest point s moves within its face."""
        free = (s.scatter_add(1, self.target[:, None], torch.ones_like(s[:, :1])) > 0).to(s)  # α > 0
        inside = free * rows
        return inside - free * (inside.sum(2, keepdim=True) / free.sum(1, keepdim=True))


@dataclass(frozen=True)
class Box:
    """low ≤ s ≤ high, c = −⟨s, center⟩ − band ‖s‖₁, with low ≤ 0 ≤ high; all of the scores' shape.

    >>> hull = Box(torch.tensor([-1.0]), torch.tensor([1.0]), center=torch.tensor([2.0]), band=0.5)
    >>> hull.nearest(torch.tensor([3.0]), torch.tensor(1.0))
    Atom(s=tensor([0.5000]), offset=tensor([-1.2500]))
    """

    low: Tensor
    high: Tensor
    center: Tensor
    band: float = 0.0

    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The residual v − center, shrunk by the band, divided by h and clipped."""
        residual = v - self.center
        shrunk = residual.sign() * (residual.abs() - self.band).clamp(min=0)
        s = torch.minimum(torch.maximum(shrunk / h, self.low), self.high)
        return Atom(s, -(s * self.center + self.band * s.abs()).reshape(len(s), -1).sum(1))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """``rows``, ``[k, *s.shape]``, where a nearest point s is free to move: between its bounds, off the band."""
        free = (s > self.low) & (s < self.high)
        return (free & (s != 0) if self.band else free).to(s) * rows


def project_on_simplex(z: Tensor) -> Tensor:
    """The nearest point of the unit simplex to each row: (z − θ)₊ with θ such that it sums to 1.

    >>> project_on_simplex(torch.tensor([[2.0, 0.0], [0.6, 0.4]]))
    tensor([[1.0000, 0.0000],
            [0.6000, 0.4000]])
    """
    z = z - z.amax(1, keepdim=True)  # so that large entries do not cost digits
    ordered = z.sort(1, descending=True).values
    excess = ordered.cumsum(1) - 1
    k = torch.arange(1, z.shape[1] + 1, device=z.device)
    support = (ordered * k > excess).sum(1, keepdim=True)
    return (z - excess.gather(1, support - 1) / support).clamp(min=0)
