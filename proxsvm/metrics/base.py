"""A metric is one linear map: M of the proximal term ½⟨d, M d⟩/η."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from proxsvm._kernels.tensors import accumulator

Tensors: TypeAlias = Sequence[Tensor]
State: TypeAlias = dict[str, Any]  # tensors, and plain numbers that need not wait for the device


class Matrix(ABC):
    """M, symmetric and positive definite, on the parameters of a group: lists with one tensor per parameter.

    M may be simpler in other coordinates: M = Q ``inside`` Qᵀ with an orthogonal Q. Inner products are the same in
    both, so that a step needs one rotation there and one back.
    """

    observed: Tensor | None = None
    """The coordinates of the gradients that the metric has observed, as one vector, where it knows them."""

    @abstractmethod
    def solve(self, x: Tensors) -> Tensors:
        """M⁻¹ x."""

    @abstractmethod
    def times(self, x: Tensors) -> Tensors:
        """M x."""

    @property
    def inside(self) -> Matrix:
        """M in its own coordinates, all of them as one vector; here Q = 1."""
        return self

    def rotate(self, x: Tensors) -> Tensors:
        """Qᵀ x: the coordinates of a vector."""
        return x

    def rotate_back(self, x: Tensors) -> Tensors:
        """Q x."""
        return x

    def carry(self, x: Tensors) -> Tensors:
        """The coordinates of a vector that had the coordinates ``x`` in the step before."""
        return x

    def root(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        """``rows`` · M^(−1/2), for a dense ``[k, P]`` matrix over the flattened parameters of these shapes."""
        raise TypeError(f"{type(self).__name__} has no root(), which this solver needs: define it, or use MultiStepFW")


def dots(a: Tensors, b: Tensors) -> Tensor:
    """Σ_i ⟨a_i, b_i⟩, accumulated in float32 or better.

    >>> dots([torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])])
    tensor(11.)
    """
    wide = accumulator(a[0].dtype)
    rows = [[x.detach().to(wide).reshape(-1) for x in pair] for pair in zip(a, b, strict=True)]
    found = [torch.dot(x, y) for x, y in rows]
    return found[0] if len(found) == 1 else torch.stack(found).sum()


class Metric(ABC):
    """Base of all metrics. A metric holds options, no training state, and is a pure function of the gradients.

    ``identity`` declares that M = 1, for solvers that require it; ``elementwise`` that M is diagonal, so that
    several parameters can be processed as one vector, and any part of one separately, as on the shards of FSDP2.
    """

    identity: bool = False
    elementwise: bool = False
    state: tuple[str, ...] = ()
    """The names of what is kept for a parameter; :meth:`start` may leave some out."""

    @abstractmethod
    def observe(self, gradients: Tensors, state: list[State], steps: Tensor) -> tuple[Matrix, list[State]]:
        """M of the next step, and the state after it; nothing is changed in place.

        Args:
            gradients: the first direction of the step, in float32 or better.
            state: for each parameter what :meth:`start` returned, or an earlier call.
            steps: how many steps these parameters have taken, a 0-dim tensor on their device.
        """

    def start(self, w: Tensor) -> State:
        """The state of a parameter before its first step, in float32 or better."""
        return {}

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in vars(self).items())
        return f"{type(self).__name__}({options})"


class FixedMetric(Metric, Matrix):
    """A metric that learns nothing: it is its own M. A subclass defines ``solve`` and ``times``."""

    def observe(self, gradients: Tensors, state: list[State], steps: Tensor) -> tuple[Matrix, list[State]]:
        return self, state
