"""Structures: each is one recursion over its labellings."""

from proxsvm.structures.alignment import Alignment
from proxsvm.structures.base import Marginals, Structure
from proxsvm.structures.chain import Chain
from proxsvm.structures.combinatorial import maxflow_cut, scipy_cut
from proxsvm.structures.dependencies import Dependencies
from proxsvm.structures.grid import Grid
from proxsvm.structures.label_tree import LabelTree
from proxsvm.structures.matching import Matching
from proxsvm.structures.projective_tree import ProjectiveTree
from proxsvm.structures.segments import Segments
from proxsvm.structures.semirings import KBest, Sampled, log_sum_exp, maximum
from proxsvm.structures.spanning_tree import SpanningTree
from proxsvm.structures.spans import Spans
from proxsvm.structures.tree import Tree

__all__ = [
    "Alignment",
    "Chain",
    "Dependencies",
    "Grid",
    "KBest",
    "LabelTree",
    "Marginals",
    "Matching",
    "ProjectiveTree",
    "Sampled",
    "Segments",
    "SpanningTree",
    "Spans",
    "Structure",
    "Tree",
    "log_sum_exp",
    "maxflow_cut",
    "maximum",
    "scipy_cut",
]
