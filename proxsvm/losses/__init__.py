"""Losses: each is one oracle over a polytope."""

from proxsvm.losses.base import Atom, PiecewiseLinearLoss, Polytope
from proxsvm.losses.chain_hinge import ChainHinge
from proxsvm.losses.grid_hinge import GridHinge
from proxsvm.losses.hulls import Box, Simplex
from proxsvm.losses.l1_regression import L1Regression
from proxsvm.losses.multi_class_hinge import MultiClassHinge
from proxsvm.losses.multi_label_hinge import MultiLabelHinge
from proxsvm.losses.quantile_regression import QuantileRegression
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.losses.top_k_hinge import TopKHinge
from proxsvm.losses.tree_hinge import TreeHinge
from proxsvm.losses.weston_watkins_hinge import WestonWatkinsHinge

__all__ = [
    "Atom",
    "Box",
    "ChainHinge",
    "GridHinge",
    "L1Regression",
    "MultiClassHinge",
    "MultiLabelHinge",
    "PiecewiseLinearLoss",
    "Polytope",
    "QuantileRegression",
    "Simplex",
    "StructuredHinge",
    "TopKHinge",
    "TreeHinge",
    "WestonWatkinsHinge",
]
