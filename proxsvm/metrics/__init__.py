"""Metrics: M of the proximal term ½⟨d, M d⟩/η."""

from proxsvm.metrics.base import FixedMetric, Matrix, Metric
from proxsvm.metrics.diagonal import Diagonal
from proxsvm.metrics.euclidean import Euclidean
from proxsvm.metrics.kronecker import Kronecker

__all__ = ["Diagonal", "Euclidean", "FixedMetric", "Kronecker", "Matrix", "Metric"]
