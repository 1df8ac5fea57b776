"""The metric of Adam: a diagonal of second moments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from proxsvm._kernels.passes import Moments, Sums, Tensors, Update
from proxsvm._kernels.scalars import bias_correction
from proxsvm._numbers import Number
from proxsvm.metrics.base import Metric

if TYPE_CHECKING:
    from proxsvm.metrics._cell import Cell


class Diagonal(Metric):
    """M = √v̂ + eps, with v̂ the bias-corrected running mean of the squared gradients, this step's included.

    The single step in it is Adam's direction with a step-size from the loss: γ is exact in this metric, and D ≤ P* ≤ P
    holds as in any other. The gradient is the first direction of the step, whatever the solver does after it.

    Args:
        beta2: the decay of the running mean, in [0, 1).
        eps: keeps M away from 0; above 0.

    Reference: Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015.

    >>> from proxsvm import ProxProblem
    >>> from proxsvm.losses import L1Regression
    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> scores = w * torch.tensor([1.0, 100.0])                        # two scales; at first M = |g|
    >>> problem = ProxProblem.from_scores(L1Regression(), scores, torch.zeros(2), [w], lr=0.1, metric=Diagonal())
    >>> problem.displacement(problem.first())                          # both coordinates move equally far
    [tensor([-0.1000, -0.1000])]
    """

    state, elementwise = ("v",), True

    def __init__(self, beta2: float = 0.999, eps: float = 1e-8) -> None:
        if not 0 <= beta2 < 1:
            raise ValueError(f"beta2 is {beta2}; expected a number in [0, 1)")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps is {eps}; expected a number above 0")
        self.beta2, self.eps = beta2, eps

    def observe(self, cell: Cell, x: Tensors, scale: Number) -> None:
        """Fix M by v' = β₂ v + (1 − β₂) (scale · x)²."""
        correction = bias_correction(self.beta2, cell.steps, cell.w[0].dtype)
        cell.observe(x, Moments(cell.state("v"), self.beta2, correction, self.eps, scale))

    def _seen(self, cell: Cell) -> tuple[Tensors, Moments]:
        assert cell.observed is not None, "the geometry must observe the first direction before it is used"
        return cell.observed

    def _moved(self, cell: Cell) -> Iterator[Tensor]:
        """v' = β₂ v + (1 − β₂) (scale · x)²."""
        x, (v, beta2, _, _, scale) = self._seen(cell)
        for a, g in zip(v, x, strict=True):
            yield beta2 * a + (1 - beta2) * (scale * g.detach().to(a.dtype)).square()

    def _M(self, cell: Cell) -> list[Tensor]:
        """The diagonal of M, computed once per step where a solver needs more than the first direction."""
        if cell.fixed is None:
            correction = self._seen(cell)[1].correction
            cell.fixed = [(correction * a).sqrt() + self.eps for a in self._moved(cell)]
        diagonal: list[Tensor] = cell.fixed
        return diagonal

    def solve(self, cell: Cell, x: Sequence[Tensor]) -> Sequence[Tensor]:
        """x / M."""
        return [a / m for a, m in zip(x, self._M(cell), strict=True)]

    def times(self, cell: Cell, x: Sequence[Tensor]) -> Sequence[Tensor]:
        """M x."""
        return [a.detach() * m for a, m in zip(x, self._M(cell), strict=True)]

    def root(self, cell: Cell, rows: Tensor) -> Tensor:
        """rows / √M."""
        return rows / torch.cat([m.reshape(-1) for m in self._M(cell)]).sqrt().to(rows)

    def products(self, cell: Cell, x: Sequence[Tensor], with_w: bool, start: Tensors | None = None) -> Sums:
        """In one pass over memory for the first direction."""
        if x is self._seen(cell)[0]:
            return cell.passes(x).products(with_w, start)
        return super().products(cell, x, with_w, start)

    def advance(
        self, cell: Cell, x: Sequence[Tensor], z: Tensors | None, average: Tensors | None, update: Update
    ) -> None:
        """In one pass over memory for the first direction, v included."""
        if x is self._seen(cell)[0]:
            cell.passes(x).advance(z, average, update)
        else:
            super().advance(cell, x, z, average, update)

    def commit(self, cell: Cell, skip: bool | Tensor) -> None:
        """v ← v'."""
        v = self._seen(cell)[1].v
        stay = torch.as_tensor(skip, device=v[0].device)
        for a, new in zip(v, self._moved(cell), strict=True):
            a.copy_(torch.where(stay, a, new))
