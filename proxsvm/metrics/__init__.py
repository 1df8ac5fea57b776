"""Metrics: the inner product of the dual, and the only home of η."""

from proxsvm.metrics.base import Metric
from proxsvm.metrics.diagonal import Diagonal
from proxsvm.metrics.euclidean import Euclidean

__all__ = ["Diagonal", "Euclidean", "Metric"]
