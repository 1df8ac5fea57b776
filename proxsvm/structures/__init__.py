"""Structures: each is one recursion over its labellings."""

from proxsvm.structures.base import Marginals, Structure, log_sum_exp, maximum
from proxsvm.structures.chain import Chain
from proxsvm.structures.grid import Grid, maxflow_cut, scipy_cut
from proxsvm.structures.label_tree import LabelTree
from proxsvm.structures.tree import Tree

__all__ = [
    "Chain",
    "Grid",
    "LabelTree",
    "Marginals",
    "Structure",
    "Tree",
    "log_sum_exp",
    "maxflow_cut",
    "maximum",
    "scipy_cut",
]
