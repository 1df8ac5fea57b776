"""Descriptions of S(y): from one hull follow the oracle, the nearest point, the tangent and cvxpy's constraints.

The only part of the losses that needs cvxpy (the extra ``qp``), and only to :meth:`express` a hull.
"""

from proxsvm.losses._hulls.base import ClosedHull, Hull, Polytope
from proxsvm.losses._hulls.box import Box
from proxsvm.losses._hulls.entropy import EntropyBox, EntropySimplex
from proxsvm.losses._hulls.flow import Flow, entropy
from proxsvm.losses._hulls.listed import Listed
from proxsvm.losses._hulls.quadratic_box import QuadraticBox
from proxsvm.losses._hulls.rivals import Rivals
from proxsvm.losses._hulls.simplex import Simplex, project_on_simplex
from proxsvm.losses._hulls.top_k_simplex import TopKSimplex

__all__ = [
    "Box",
    "ClosedHull",
    "EntropyBox",
    "EntropySimplex",
    "Flow",
    "Hull",
    "Listed",
    "Polytope",
    "QuadraticBox",
    "Rivals",
    "Simplex",
    "TopKSimplex",
    "entropy",
    "project_on_simplex",
]
