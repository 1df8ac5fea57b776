"""The metric of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proxsvm.metrics.base import FixedMetric, Tensors


class Euclidean(FixedMetric):
    """M = 1: the proximal term is ‖d‖²/(2η).

    >>> Euclidean()
    Euclidean()
    """

    identity = elementwise = True

    def solve(self, x: Tensors) -> Tensors:
        return x

    def times(self, x: Tensors) -> Tensors:
        return x

    def root(self, rows: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        return rows
