"""The stopping rule and the option checks that all iterative solvers share."""

import math

import pytest
import torch

from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, Trace
from proxsvm.solvers.base import Progress

COUNTS = [(MultiStepFW, "max_steps"), (CorrectiveFW, "max_steps"), (CorrectiveFW, "memory"), (BlockFW, "max_passes")]
COUNTS += [(BlockFW, "max_entries"), (ExactQP, "max_entries"), (ExactQP, "max_rounds")]


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
def test_it_stops_at_the_relative_gap_or_at_the_fraction_of_the_first(number):
    by_tol = Progress(number(-1.0), tol=0.1)
    assert not by_tol.stop(0, number(0.0), number(1.0))  # 1 of P − D₀ = 2
    assert not by_tol.stop(1, number(0.7), number(0.2))  # 0.2 of 1.9
    assert by_tol.stop(2, number(0.8), number(0.1))
    by_fraction = Progress(number(-1.0), tol=0.0, fraction=0.5)
    assert not by_fraction.stop(0, number(0.0), number(1.0))
    assert not by_fraction.stop(1, number(0.0), number(0.51))
    assert by_fraction.stop(2, number(0.0), number(0.5))


@pytest.mark.parametrize("gap", [0.0, -1e-18, math.nan])
def test_no_gap_and_nan_stop(gap):
    assert Progress(0.0, tol=0.0).stop(0, 1.0, gap)


def test_the_callback_hears_of_every_step_the_last_included():
    heard: list[Trace] = []
    progress = Progress(0.0, tol=0.5, callback=heard.append)
    assert [progress.stop(t, 1.0, gap) for t, gap in enumerate((2.0, 1.0))] == [False, True]
    assert [(t.step, t.primal, t.dual, t.gap) for t in heard] == [(0, 3.0, 1.0, 2.0), (1, 2.0, 1.0, 1.0)]


@pytest.mark.parametrize(("solver", "name"), COUNTS)
@pytest.mark.parametrize("value", [0, -3, 2.5, math.nan, math.inf])
def test_counts_are_whole_numbers_from_1(solver, name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}; expected a whole number"):
        solver(**{name: value})


@pytest.mark.parametrize("solver", [MultiStepFW, CorrectiveFW, BlockFW, ExactQP])
@pytest.mark.parametrize("tol", [-1.0, math.nan])
def test_tol_is_at_least_0(solver, tol):
    with pytest.raises(ValueError, match=f"tol is {tol}"):
        solver(tol=tol)


@pytest.mark.parametrize("solver", [MultiStepFW, CorrectiveFW])
@pytest.mark.parametrize("fraction", [-0.1, 1.0, math.nan])
def test_fraction_is_below_1(solver, fraction):
    with pytest.raises(ValueError, match=f"fraction is {fraction}"):
        solver(fraction=fraction)
