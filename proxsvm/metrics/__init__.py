"""Metrics: the inner product of the dual, and the only part that knows η."""

from proxsvm.metrics.base import Metric
from proxsvm.metrics.diagonal import Diagonal
from proxsvm.metrics.euclidean import Euclidean

__all__ = ["Diagonal", "Euclidean", "Metric"]
