"""Losses: each is one oracle."""

from proxsvm.losses.average_precision_hinge import AveragePrecisionHinge
from proxsvm.losses.base import Atom, ConvexLoss, PiecewiseLinearLoss
from proxsvm.losses.binary_cross_entropy import BinaryCrossEntropy
from proxsvm.losses.crf import CRF
from proxsvm.losses.cross_entropy import CrossEntropy
from proxsvm.losses.huber import Huber
from proxsvm.losses.hulls import Box, ClosedHull, Hull, Listed, Polytope, Simplex
from proxsvm.losses.l1_regression import L1Regression
from proxsvm.losses.lovasz_hinge import LovaszHinge
from proxsvm.losses.multi_class_hinge import MultiClassHinge
from proxsvm.losses.named import ChainCRF, ChainHinge, GridHinge, MultiLabelHinge, TreeCRF, TreeHinge
from proxsvm.losses.quantile_regression import QuantileRegression
from proxsvm.losses.smooth_loss import SmoothLoss
from proxsvm.losses.squared_error import SquaredError
from proxsvm.losses.squared_hinge import SquaredHinge
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.losses.top_k_hinge import TopKHinge
from proxsvm.losses.weston_watkins_hinge import WestonWatkinsHinge

__all__ = [
    "CRF",
    "Atom",
    "AveragePrecisionHinge",
    "BinaryCrossEntropy",
    "Box",
    "ChainCRF",
    "ChainHinge",
    "ClosedHull",
    "ConvexLoss",
    "CrossEntropy",
    "GridHinge",
    "Huber",
    "Hull",
    "L1Regression",
    "Listed",
    "LovaszHinge",
    "MultiClassHinge",
    "MultiLabelHinge",
    "PiecewiseLinearLoss",
    "Polytope",
    "QuantileRegression",
    "Simplex",
    "SmoothLoss",
    "SquaredError",
    "SquaredHinge",
    "StructuredHinge",
    "TopKHinge",
    "TreeCRF",
    "TreeHinge",
    "WestonWatkinsHinge",
]
