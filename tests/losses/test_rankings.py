"""The average-precision hinge against the enumeration of all rankings."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxsvm.losses import AveragePrecisionHinge


def average_precision(ranking: list[int], y: Tensor) -> float:
    """The mean, over the relevant items, of the precision of the list down to that item."""
    hits, precisions = 0, []
    for position, item in enumerate(ranking, 1):
        if y[item]:
            hits += 1
            precisions.append(hits / position)
    return sum(precisions) / len(precisions)


def ranking_score(ranking: list[int], u: Tensor, y: Tensor) -> float:
    """(1/|P||N|) Σ ± (u_i − u_j), + where the positive i is ranked above the negative j."""
    at = {item: position for position, item in enumerate(ranking)}
    positives, negatives = (y == 1).nonzero()[:, 0].tolist(), (y == 0).nonzero()[:, 0].tolist()
    total = sum((1 if at[i] < at[j] else -1) * float(u[i] - u[j]) for i in positives for j in negatives)
    return total / (len(positives) * len(negatives))


@settings(max_examples=150)
@given(m=st.integers(1, 6), seed=st.integers(0, 10**6), ties=st.booleans(), ignored=st.booleans())
def test_it_is_the_enumeration_of_all_rankings(m, seed, ties, ignored):
    torch.manual_seed(seed)
    n = 4
    u = torch.randint(-1, 2, (n, m)).double() if ties else 0.5 * torch.randn(n, m)
    y = torch.randint(2, (n, m))
    if ignored:
        y = y.masked_fill(torch.rand(n, m) < 0.3, -100)
    value = AveragePrecisionHinge(reduction="none")(u.masked_fill(y == -100, torch.nan), y)
    for i in range(n):
        kept = y[i] >= 0
        scores, labels = u[i, kept], y[i, kept]
        if not 0 < labels.sum() < len(labels):
            assert value[i] == 0
            continue
        truth = ranking_score(labels.argsort(descending=True).tolist(), scores, labels)
        best = max(
            1 - average_precision(list(r), labels) + ranking_score(list(r), scores, labels) - truth
            for r in itertools.permutations(range(len(labels)))
        )
        assert value[i] == pytest.approx(best, abs=1e-12)


@given(seed=st.integers(0, 10**6))
def test_it_bounds_one_minus_the_average_precision(seed):
    torch.manual_seed(seed)
    u, y = torch.randn(5, 12), torch.randint(2, (5, 12))
    y[:, :2] = torch.tensor([0, 1])
    value = AveragePrecisionHinge(reduction="none")(u, y)
    for i in range(5):
        assert value[i] >= 1 - average_precision(u[i].argsort(descending=True).tolist(), y[i]) - 1e-12


U, Y = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("scores", "target", "message"),
    [
        (U, Y + 2, "not 0, 1"),
        (U, Y[:, :2], "target of shape"),
        (U, Y.double(), "neither integer nor bool"),
        (U[0], Y[0], "expected \\[n, m\\]"),
        (U[:0], Y[:0], "at least one sample"),
    ],
)
def test_bad_input_is_refused(scores, target, message):
    with pytest.raises((ValueError, TypeError), match=message):
        AveragePrecisionHinge()(scores, target)
