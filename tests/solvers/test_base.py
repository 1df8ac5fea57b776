"""The stopping rule and the option checks that all iterative solvers share."""

import math
from dataclasses import replace

import pytest
import torch

from proxsvm import ProxProblem
from proxsvm.losses import Huber
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, Trace
from tests.cases import LOSSES, MODELS, setting

FRACTIONAL = (MultiStepFW, CorrectiveFW)
COUNTS = [(MultiStepFW, "max_steps"), (CorrectiveFW, "max_steps"), (CorrectiveFW, "memory"), (BlockFW, "max_passes")]
COUNTS += [(BlockFW, "max_entries"), (ExactQP, "max_entries"), (ExactQP, "max_rounds")]
RULES = {"tol": 0.05}, {"tol": 0.0, "fraction": 0.1}
STOPPING = [*(kind(max_steps=500, **rule) for kind in FRACTIONAL for rule in RULES), BlockFW(tol=1e-4)]


@pytest.mark.parametrize("solver", STOPPING, ids=repr)
def test_it_stops_at_the_first_gap_that_is_small_enough(solver):
    """Relative to P − D₀, or to the first gap; the callback hears of every step, the start and the last included."""
    heard: list[Trace] = []
    point = replace(solver, callback=heard.append).solve(setting(LOSSES[0], MODELS[1], n=20).problem(20.0, 0.2))
    fraction, first = getattr(solver, "fraction", 0.0), heard[0]
    done = [t.gap <= solver.tol * (t.primal - first.dual) or t.gap <= fraction * first.gap for t in heard]
    assert done == [False] * point.steps + [True]
    assert [t.step for t in heard] == list(range(point.steps + 1))
    assert point.steps > 2


@pytest.mark.parametrize("solver", [MultiStepFW(tol=0.0), CorrectiveFW(tol=0.0), BlockFW(tol=0.0)], ids=repr)
@pytest.mark.parametrize("factor", [0.0, math.nan], ids=["no gap", "nan"])
def test_no_gap_and_nan_stop(solver, factor):
    w = torch.ones(3, 2, requires_grad=True)
    problem = ProxProblem.from_scores(Huber(), factor * w, torch.zeros(3, 2), [w], lr=1.0)
    assert solver.solve(problem).steps <= 1


@pytest.mark.parametrize(
    ("solver", "name", "value", "expected"),
    [
        *((solver, name, x, "a whole number") for solver, name in COUNTS for x in (0, -3, 2.5, math.nan, math.inf)),
        *((solver, "tol", x, "") for solver in (*FRACTIONAL, BlockFW, ExactQP) for x in (-1.0, math.nan)),
        *((solver, "fraction", x, "") for solver in FRACTIONAL for x in (-0.1, 1.0, math.nan)),
        *((BlockFW, "inner", x, "") for x in (-1, 1.5)),
    ],
)
def test_options_that_are_nonsense_are_refused(solver, name, value, expected):
    with pytest.raises(ValueError, match=f"{name} is {value}; expected {expected}"):
        solver(**{name: value})
