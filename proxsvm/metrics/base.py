"""A metric is one linear map: M of the proximal term ½⟨d, M d⟩/η."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from proxsvm._kernels.passes import Sums, Tensors, Update
from proxsvm._kernels.tensors import accumulator
from proxsvm._numbers import Number, total

if TYPE_CHECKING:
    from proxsvm.metrics._cell import Cell


class Metric(ABC):
    """Base of all metrics: M, symmetric and positive definite, fixed before the problem of a step is built.

    A subclass defines :meth:`solve` and :meth:`times`; every inner product and the update follow. Tensors are passed as
    lists, one per parameter of a group. A metric holds options and no training state.
    ``identity`` declares that M = 1, for solvers that require it; ``elementwise`` that M is diagonal, so that
    any part of a parameter can be processed separately, as on the shards of FSDP2.
    """

    identity: bool = False
    elementwise: bool = False

    @abstractmethod
    def solve(self, cell: Cell, x: Sequence[Tensor]) -> Sequence[Tensor]:
        """M⁻¹ x."""

    @abstractmethod
    def times(self, cell: Cell, x: Sequence[Tensor]) -> Sequence[Tensor]:
        """M x."""

    def root(self, cell: Cell, rows: Tensor) -> Tensor:
        """``rows`` · M^(−1/2), for a dense ``[k, P]`` matrix over the flattened parameters of the cell."""
        raise TypeError(f"{type(self).__name__} has no root(), which this solver needs: define it, or use MultiStepFW")

    # A metric that learns from the gradients.

    state: tuple[str, ...] = ()
    """The names of the tensors that the optimizer keeps for each parameter: zeros at first, float32 or better."""

    def shape(self, name: str, w: Tensor) -> tuple[int, ...]:
        """The shape of the tensor ``name`` that is kept for a parameter; by default the parameter's."""
        return tuple(w.shape)

    def observe(self, cell: Cell, x: Tensors, scale: Number) -> None:  # noqa: B027 (most metrics learn nothing)
        """Receive the first direction, scale · x, of a step: fix M for the whole step, without changing any state.

        ``cell.state(name)`` is the state after earlier steps, ``cell.steps`` their number (None: a problem built by
        hand), and ``cell.fixed`` is free for what the metric needs again within the step.
        """

    def commit(self, cell: Cell, skip: bool | Tensor) -> None:  # noqa: B027
        """The step was taken, unless ``skip`` holds: update the state, in place."""

    # What follows; a metric with kernels of its own overrides these.

    def products(self, cell: Cell, x: Sequence[Tensor], with_w: bool, start: Tensors | None = None) -> Sums:
        """⟨x, M⁻¹x⟩, ⟨w, x⟩, ⟨w, M w⟩ and ⟨u, M u⟩ with u = w − start; those that were not requested are 0."""
        found = Sums(dots(x, self.solve(cell, x)))
        if with_w:
            found = found._replace(wx=dots(cell.w, x), ww=dots(cell.w, self.times(cell, cell.w)))
        if start is not None:
            u = [a.detach() - b for a, b in zip(cell.w, start, strict=True)]
            found = found._replace(uu=dots(u, self.times(cell, u)))
        return found

    def advance(
        self, cell: Cell, x: Sequence[Tensor], z: Tensors | None, average: Tensors | None, update: Update
    ) -> None:
        """The :class:`~proxsvm._kernels.passes.Update` in place, and the state of the metric with it."""
        cell.kernels.bind(cell.w, self.solve(cell, x)).advance(z, average, update)
        self.commit(cell, update.skip)

    def __repr__(self) -> str:
        options = ", ".join(f"{k}={v!r}" for k, v in vars(self).items())
        return f"{type(self).__name__}({options})"


def dots(a: Sequence[Tensor], b: Sequence[Tensor]) -> Number:
    """Σ_i ⟨a_i, b_i⟩, accumulated in float32 or better."""
    return total([_dot(x, y) for x, y in zip(a, b, strict=True)])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    wide = accumulator(a.dtype)
    return torch.dot(a.detach().to(wide).reshape(-1), b.detach().to(wide).reshape(-1))
