"""Multi-label hinges against enumeration and against the tree that they are."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxsvm import ProxProblem
from proxsvm.losses import MultiLabelHinge
from proxsvm.solvers import ExactQP, MultiStepFW
from proxsvm.verification import check_loss, verify


@given(B=st.integers(1, 5), L=st.integers(1, 5), seed=st.integers(0, 10**6), tree=st.booleans(), own=st.booleans())
def test_it_is_its_enumeration(B, L, seed, tree, own):
    torch.manual_seed(seed)
    u, target = torch.randn(B, L), torch.randint(2, (B, L))
    parents = [-1, *(int(torch.randint(-1, v, ())) for v in range(1, L))]
    pairwise = torch.randn(*((B, L, 2, 2) if own else (L, 2, 2)))
    loss = MultiLabelHinge(parents if tree else None, reduction="none")
    scores = (u, pairwise) if tree else u
    value, predicted = loss(scores, target), loss.decode(scores)
    every = torch.tensor(list(itertools.product([0, 1], repeat=L)))
    for i in range(B):

        def score(z):
            total = (z * u[i]).sum(1)
            for v, parent in enumerate(parents):
                if tree and parent >= 0:
                    total = total + (pairwise[i] if own else pairwise)[v, z[:, parent], z[:, v]]
            return total

        best = (score(every) + (every != target[i]).sum(1)).max() - score(target[i : i + 1])
        assert value[i] == pytest.approx(float(best), abs=1e-9)
        assert score(predicted[i : i + 1]) == pytest.approx(float(score(every).max()), abs=1e-9)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("smooth", [False, True])
def test_independent_labels_are_a_tree_without_scores(smooth, normalize):
    u, target = torch.randn(4, 5), torch.randint(2, (4, 5))
    alone = MultiLabelHinge(smooth=smooth, normalize=normalize)
    tied = MultiLabelHinge([-1, 0, 0, 1, 1], smooth=smooth, normalize=normalize)
    check_loss(alone, u, target)
    check_loss(tied, (u, torch.randn(5, 2, 2)), target)
    torch.testing.assert_close(alone(u, target), tied((u, torch.zeros(5, 2, 2)), target))


def test_it_is_a_sum_of_binary_hinges():
    u, target = torch.randn(4, 5), torch.randint(2, (4, 5), dtype=torch.bool)
    expected = (1 - (2 * target - 1.0) * u).clamp(min=0).sum(1).mean()
    torch.testing.assert_close(MultiLabelHinge()(u, target), expected)


@pytest.mark.parametrize("parents", [None, [-1, 0, 0]])
def test_the_exact_qp(parents):
    w, A = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, 2, requires_grad=True)
    u = torch.randn(5, 4) @ w
    scores, params = (u, [w]) if parents is None else ((u, A), [w, A])
    problem = ProxProblem.from_scores(MultiLabelHinge(parents), scores, torch.randint(2, (5, 3)), params, lr=1.0)
    assert problem.gap(ExactQP().solve(problem)) == pytest.approx(0, abs=1e-6)
    assert verify(problem, MultiStepFW(100)).ok


U, P, Y = torch.zeros(2, 3), torch.zeros(3, 2, 2), torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("parents", "scores", "target", "message"),
    [
        (None, U, Y + 2, "not 0 or 1"),
        (None, U, Y[:, :2], "target of shape"),
        (None, U, Y.double(), "neither integer nor bool"),
        (None, (U, P), Y, "no tuple without a tree"),
        ([-1, 0, 0], U, Y, "needs the scores"),
        ([-1, 0], (U, P), Y, "tree of"),
        ([-1, 0, 0], (U, P[:2]), Y, "pairwise scores of shape"),
        ([-1, 2, 1], (U, P), Y, "cycle"),
    ],
)
def test_bad_input_is_refused(parents, scores, target, message):
    with pytest.raises((ValueError, TypeError), match=message):
        MultiLabelHinge(parents)(scores, target)
