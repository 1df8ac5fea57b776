"""The metric of Adam: a diagonal of second moments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from proxsvm._kernels.tensors import accumulator
from proxsvm.metrics.base import Matrix, Metric, State, Tensors


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

    def start(self, w: Tensor) -> State:
        return {"v": torch.zeros_like(w, dtype=accumulator(w.dtype))}

    def observe(self, gradients: Tensors, state: list[State], steps: Tensor) -> tuple[Matrix, list[State]]:
        """v' = β₂ v + (1 − β₂) g² and M = √(v' / (1 − β₂^(t + 1))) + eps."""
        v = [torch.lerp(g.square(), own["v"], self.beta2) for g, own in zip(gradients, state, strict=True)]
        correction = bias_correction(self.beta2, steps)
        return DiagonalMatrix([(a * correction).sqrt_().add_(self.eps) for a in v]), [{"v": a} for a in v]


class DiagonalMatrix(Matrix):
    """M as one tensor of its entries per parameter."""

    def __init__(self, entries: Tensors) -> None:
        self.entries = entries

    def solve(self, x: Tensors) -> Tensors:
        return [a / m for a, m in zip(x, self.entries, strict=True)]

    def times(self, x: Tensors) -> Tensors:
        return [a * m for a, m in zip(x, self.entries, strict=True)]

    def root(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        """rows / √M."""
        return rows / torch.cat([m.reshape(-1) for m in self.entries]).sqrt().to(rows)


def bias_correction(beta2: float, steps: Tensor) -> Tensor:
    """1 / (1 − β₂^(t + 1)) after t steps, without the cancellation of 1 − β₂^(t + 1).

    >>> bias_correction(0.75, torch.tensor(0.0))
    tensor(4.)
    """
    return torch.expm1((steps + 1) * (math.log(beta2) if beta2 else -math.inf)).reciprocal().neg()
