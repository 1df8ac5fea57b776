"""The Lovász and the average-precision hinge against their definitions over all orders of the pixels, or items."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxsvm.losses import AveragePrecisionHinge, LovaszHinge


def jaccard_loss(wrong: set[int], y: Tensor) -> float:
    """1 − IoU of the labelling that is wrong at exactly these pixels; 0 where both masks are empty."""
    truth = {i for i in range(len(y)) if y[i] == 1}
    predicted = truth ^ wrong
    return 1 - len(truth & predicted) / len(truth | predicted) if truth | predicted else 0.0


def lovasz(order: Sequence[int], u: Tensor, y: Tensor) -> float:
    """The errors in this order, each times what its pixel adds to the Jaccard loss."""
    error = (1 - (2 * y - 1) * u).clamp(min=0)
    losses = [jaccard_loss({*order[:k]}, y) for k in range(len(order) + 1)]
    return sum(
        float(error[i]) * (after - before) for i, (before, after) in zip(order, itertools.pairwise(losses), strict=True)
    )


def average_precision(ranking: Sequence[int], y: Tensor) -> float:
    """The mean, over the relevant items, of the precision of the list down to that item."""
    hits, precisions = 0, []
    for position, item in enumerate(ranking, 1):
        if y[item]:
            hits += 1
            precisions.append(hits / position)
    return sum(precisions) / len(precisions)


def ranking_score(ranking: Sequence[int], u: Tensor, y: Tensor) -> float:
    """(1/|P||N|) Σ ± (u_i − u_j), + where the positive i is ranked above the negative j."""
    at = {item: position for position, item in enumerate(ranking)}
    positives, negatives = (y == 1).nonzero()[:, 0].tolist(), (y == 0).nonzero()[:, 0].tolist()
    total = sum((1 if at[i] < at[j] else -1) * float(u[i] - u[j]) for i in positives for j in negatives)
    return total / (len(positives) * len(negatives))


def ranking(order: Sequence[int], u: Tensor, y: Tensor) -> float:
    """1 − AP, and how much higher its score is than the truth's; 0 where there is nothing to rank."""
    if not 0 < y.sum() < len(y):
        return 0.0
    truth = y.argsort(descending=True).tolist()
    return 1 - average_precision(order, y) + ranking_score(order, u, y) - ranking_score(truth, u, y)


@pytest.mark.parametrize(("kind", "value_of"), [(LovaszHinge, lovasz), (AveragePrecisionHinge, ranking)])
@settings(max_examples=150)
@given(m=st.integers(1, 5), seed=st.integers(0, 10**6), ties=st.booleans(), ignored=st.booleans())
def test_it_is_the_largest_over_all_orders(kind, value_of, m, seed, ties, ignored):
    torch.manual_seed(seed)
    u = torch.randint(-2, 3, (4, m)).double() if ties else torch.randn(4, m)
    y = torch.randint(2, (4, m))
    if ignored:
        y = y.masked_fill(torch.rand(4, m) < 0.3, -100)
    value = kind(reduction="none")(u.masked_fill(y == -100, torch.nan), y)
    for i in range(4):
        kept = y[i] >= 0
        orders = itertools.permutations(range(int(kept.sum())))
        assert value[i] == pytest.approx(max(value_of(order, u[i, kept], y[i, kept]) for order in orders), abs=1e-12)


@given(P=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_on_margins_of_zero_and_one_lovasz_is_one_minus_the_iou(P, seed):
    """An extension: where every error is 0 or 1 it is Δ itself."""
    torch.manual_seed(seed)
    y, wrong = torch.randint(2, (3, P)), torch.rand(3, P) < 0.4
    u = torch.where(wrong, 0.0, 2.0 * y - 1)
    value = LovaszHinge(reduction="none")(u, y)
    for i in range(3):
        assert value[i] == pytest.approx(jaccard_loss(set(wrong[i].nonzero()[:, 0].tolist()), y[i]), abs=1e-12)


def test_a_batch_may_be_one_sample():
    u, y = torch.randn(3, 4, 5), torch.randint(2, (3, 4, 5))
    each = LovaszHinge(reduction="none")(u, y)
    torch.testing.assert_close(LovaszHinge()(u, y), each.mean())
    torch.testing.assert_close(LovaszHinge(per_image=False)(u, y), LovaszHinge()(u.reshape(1, -1), y.reshape(1, -1)))
    torch.testing.assert_close(LovaszHinge(ignore_index=7)(u, y.clone().fill_(7)), torch.tensor(0.0))


@pytest.mark.parametrize("rare", [0.5, 1e-3])
def test_the_increments_of_a_large_image_do_not_cancel_in_float32(rare):
    """Differences of Δ would: their relative error was 0.5 % at this size, and 31 % at 16 million pixels."""
    u, y = torch.randn(1, 2**18).float(), (torch.rand(1, 2**18) < rare).long()
    found, exact = (LovaszHinge().oracle(v, y).s for v in (u, u.double()))
    assert (found - exact).abs().sum() <= 1e-5 * exact.abs().sum()  # errors that tie in float32 may be swapped
