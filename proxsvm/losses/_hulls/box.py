"""The box: every output has bounds of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm.losses._hulls.base import ClosedHull, Polytope, cvxpy, flat
from proxsvm.losses.base import Atom


@dataclass(frozen=True)
class Box(ClosedHull):
    """low ≤ s ≤ high, c = −⟨s, center⟩ − band ‖s‖₁, with low ≤ 0 ≤ high; all of the scores' shape.

    >>> hull = Box(torch.tensor([-1.0]), torch.tensor([1.0]), center=torch.tensor([2.0]), band=0.5)
    >>> hull.best(torch.tensor([3.0]))
    Atom(s=tensor([1.]), offset=tensor([-2.5000]))
    >>> hull.nearest(torch.tensor([3.0]), torch.tensor(1.0))
    Atom(s=tensor([0.5000]), offset=tensor([-1.2500]))
    >>> hull.contains(torch.tensor([0.5]), 1e-6), hull.contains(torch.tensor([1.5]), 1e-6)
    (True, False)
    """

    low: Tensor
    high: Tensor
    center: Tensor
    band: float = 0.0

    def _atom(self, s: Tensor) -> Atom:
        return Atom(s, self.lift(s))

    def lift(self, s: Tensor) -> Tensor:
        """−⟨s, center⟩ − band ‖s‖₁."""
        return -self._paid(s, self.center)

    def _paid(self, s: Tensor, x: Tensor) -> Tensor:
        """⟨s, x⟩ + band ‖s‖₁, ``[n]``."""
        paid = s * x + self.band * s.abs() if self.band else s * x
        return paid.reshape(len(s), -1).sum(1)

    def best(self, v: Tensor) -> Atom:
        """high above the band, low below it, 0 inside."""
        residual, inside = v - self.center, torch.zeros_like(v)
        below = torch.where(residual < -self.band, self.low, inside)
        s = torch.where(residual > self.band, self.high, below)
        return Atom(s, self.lift(s), -self._paid(s, -residual))

    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The residual v − center, shrunk by the band, divided by h and clipped."""
        residual = v - self.center
        shrunk = residual.sign() * (residual.abs() - self.band).clamp(min=0)
        return self._atom(torch.minimum(torch.maximum(shrunk / h, self.low), self.high))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """The outputs that are free to move: between their bounds, off the band."""
        free = (s > self.low) & (s < self.high)
        return (free & (s != 0) if self.band else free).to(s) * rows

    def contains(self, s: Tensor, slack: float) -> bool:
        """low ≤ s ≤ high."""
        if s.shape != self.center.shape:
            return False
        return bool((s >= self.low - slack).all() and (s <= self.high + slack).all())

    def express(self) -> Polytope:
        """s = a − b with 0 ≤ a ≤ high and 0 ≤ b ≤ −low; c = −⟨s, center⟩ − band Σ (a + b)."""
        cp, low, high, center = cvxpy(), flat(self.low), flat(self.high), flat(self.center)
        if not self.band:
            s = cp.Variable(center.shape)
            return Polytope((s,), -cp.sum(cp.multiply(center, s), axis=1), [s >= low, s <= high])
        a, b = cp.Variable(center.shape, nonneg=True), cp.Variable(center.shape, nonneg=True)
        offset = -cp.sum(cp.multiply(center, a - b) + self.band * (a + b), axis=1)
        return Polytope((a - b,), offset, [a <= high, b <= -low])
