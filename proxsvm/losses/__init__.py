"""Losses: each is one oracle over a polytope."""

from proxsvm.losses.base import Atom, PiecewiseLinearLoss, Polytope
from proxsvm.losses.hulls import Box, Simplex
from proxsvm.losses.l1_regression import L1Regression
from proxsvm.losses.multi_class_hinge import MultiClassHinge
from proxsvm.losses.quantile_regression import QuantileRegression
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.losses.top_k_hinge import TopKHinge
from proxsvm.losses.weston_watkins_hinge import WestonWatkinsHinge

__all__ = [
    "Atom",
    "Box",
    "L1Regression",
    "MultiClassHinge",
    "PiecewiseLinearLoss",
    "Polytope",
    "QuantileRegression",
    "Simplex",
    "StructuredHinge",
    "TopKHinge",
    "WestonWatkinsHinge",
]
