"""The criterion's memory, counted: a few copies of the scores at most, however many classes there are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.allocations import Allocations
from proxsvm.losses import ConvexLoss, CrossEntropy, MultiClassHinge, WestonWatkinsHinge

SHAPE = (64, 100_000)


def copies(loss, backward=True):
    """The peak of forward (and backward), and what is held after it, in copies of the scores."""
    scores, target = torch.randn(SHAPE, requires_grad=True), torch.randint(SHAPE[1], (SHAPE[0],))
    with Allocations() as made:
        value = loss(scores, target)
        if backward:
            value.backward()
    size = scores.untyped_storage().nbytes()
    return made.peak / size, made.live / size


def test_the_hinge_makes_its_gradient_and_nothing_else():
    with torch.no_grad():
        peak, _ = copies(MultiClassHinge(), backward=False)
    assert peak < 0.05  # slices
    peak, _ = copies(MultiClassHinge())
    assert 1 <= peak <= 1.01


def test_smoothing_writes_on_one_copy():
    peak, kept = copies(MultiClassHinge(smooth=True), backward=False)
    assert 1 <= kept <= peak < 1.05
    peak, _ = copies(MultiClassHinge(smooth=True))
    assert 1 <= peak < 1.05  # which becomes the gradient


@pytest.mark.parametrize("smooth", [False, True])
def test_without_the_compiled_loops_it_is_another_copy(smooth):
    loss = MultiClassHinge(smooth=smooth)
    peak, _ = copies(lambda scores, target: ConvexLoss.forward(loss, scores, target))
    assert 1 <= peak < 2.05


def test_the_cross_entropy_makes_its_gradient_and_nothing_else():
    assert 1 <= copies(CrossEntropy())[0] < 1.05 < copies(nn.CrossEntropyLoss())[0]


@pytest.mark.parametrize("smooth", [False, True])
def test_torchs_cross_entropy_takes_more(smooth):
    assert copies(MultiClassHinge(smooth=smooth))[0] < copies(nn.CrossEntropyLoss())[0]


def test_the_count_of_these_tests_can_fail():
    assert copies(WestonWatkinsHinge(), backward=False)[0] >= 2  # which writes in place, but is not fused
    x = torch.zeros(1000)
    with Allocations() as made:
        y = x + 1
        x.add_(y)  # in place: nothing new
        x.view(10, 100)
        del y
        z = x * 2
    assert made.peak == made.live == z.untyped_storage().nbytes()
