"""A box under a paraboloid: the squared error and Huber's loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from proxsvm.losses._hulls.base import Hull, Polytope, cvxpy, flat
from proxsvm.losses.base import Atom


@dataclass(frozen=True)
class QuadraticBox(Hull):
    """|s_j| ≤ bound, c ≤ −⟨s, center⟩ − (ridge/2) ‖s‖²; ``center`` has the scores' shape.

    >>> import torch
    >>> QuadraticBox(torch.tensor([1.0]), ridge=1.0, bound=2.0).best(torch.tensor([2.5]))
    Atom(s=tensor([1.5000]), offset=tensor([-2.6250]))
    """

    center: Tensor
    ridge: float
    bound: float = float("inf")

    def best(self, v: Tensor) -> Atom:
        """(v − center)/ridge, clipped."""
        s = ((v - self.center) / self.ridge).clamp(-self.bound, self.bound)
        return Atom(s, self.lift(s))

    def lift(self, s: Tensor) -> Tensor:
        """−⟨s, center⟩ − (ridge/2) ‖s‖²."""
        return -(s * (self.center + self.ridge / 2 * s)).reshape(len(s), -1).sum(1)

    def express(self) -> Polytope:
        """s itself as the variable."""
        cp, center = cvxpy(), flat(self.center)
        s = cp.Variable(center.shape)
        offset = -cp.sum(cp.multiply(center, s) + self.ridge / 2 * cp.square(s), axis=1)
        return Polytope((s,), offset, [cp.abs(s) <= self.bound] if self.bound < float("inf") else [])
