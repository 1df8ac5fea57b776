"""The lists of the suite are complete: every public loss, solver and metric stands in tests/cases.py."""

import inspect

import pytest

from proxsvm import losses, metrics, solvers
from proxsvm.losses import ConvexLoss, PiecewiseLinearLoss
from proxsvm.metrics import FixedMetric, Metric
from proxsvm.solvers import DualSolver, ExactQP
from tests.cases import LOSSES, METRICS, SOLVERS

# Bases, and the reference that all other solvers are compared with.
NOT_LISTED = {ConvexLoss, PiecewiseLinearLoss, Metric, FixedMetric, DualSolver, ExactQP}


@pytest.mark.parametrize(
    ("module", "base", "listed"),
    [
        (losses, ConvexLoss, [case.loss() for case in LOSSES]),
        (solvers, DualSolver, SOLVERS),
        (metrics, Metric, METRICS),
    ],
    ids=["losses", "solvers", "metrics"],
)
def test_every_public_class_is_listed(module, base, listed):
    public = {getattr(module, name) for name in module.__all__}
    classes = {c for c in public if inspect.isclass(c) and issubclass(c, base)} - NOT_LISTED
    covered = {c for x in listed for c in type(x).__mro__}  # a structure of one's own covers StructuredHinge
    assert len(classes) > 1
    assert not classes - covered
