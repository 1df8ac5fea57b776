"""The metric of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from proxsvm._kernels.passes import Sums, Tensors, Update
from proxsvm.metrics.base import Metric

if TYPE_CHECKING:
    from proxsvm.metrics._cell import Cell


class Euclidean(Metric):
    """M = 1: the proximal term is ‖d‖²/(2η).

    >>> Euclidean()
    Euclidean()
    """

    identity = elementwise = True

    def solve(self, cell: Cell, x: Sequence[Tensor]) -> Sequence[Tensor]:
        """x itself."""
        return x

    def times(self, cell: Cell, x: Sequence[Tensor]) -> Sequence[Tensor]:
        """x itself."""
        return x

    def root(self, cell: Cell, rows: Tensor) -> Tensor:
        """The rows themselves."""
        return rows

    def products(self, cell: Cell, x: Sequence[Tensor], with_w: bool, start: Tensors | None = None) -> Sums:
        """The inner products in one pass over memory."""
        return cell.passes(x).products(with_w, start)

    def advance(
        self, cell: Cell, x: Sequence[Tensor], z: Tensors | None, average: Tensors | None, update: Update
    ) -> None:
        """The update in one pass over memory."""
        cell.passes(x).advance(z, average, update)
