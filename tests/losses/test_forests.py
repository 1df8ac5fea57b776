"""Chains and trees against enumeration: values, ties, marginals, padding; and the errors that bad input gets."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from proxsvm import ProxProblem, losses
from proxsvm.losses import Atom, ChainCRF, ChainHinge, TreeHinge
from proxsvm.losses.base import parts
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import check_loss, verify


def every_labelling(V: int, K: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(K), repeat=V)))


def tree_score(labels: Tensor, unary: Tensor, pairwise: Tensor, parents: list[int]) -> Tensor:
    """The definition, for one sample and many labellings ``[N, V]``: unary [V, K], pairwise [V, K, K]."""
    total = torch.zeros(len(labels))
    for v, parent in enumerate(parents):
        total = total + unary[v, labels[:, v]]
        if parent >= 0:
            total = total + pairwise[v, labels[:, parent], labels[:, v]]
    return total


def draw_values(seed: int, ties: bool, *shape: int) -> Tensor:
    """Gaussian scores, or small integers, which tie."""
    torch.manual_seed(seed)
    return torch.randint(-1, 2, shape).to(torch.get_default_dtype()) if ties else torch.randn(shape)


def random_parents(size: int, roots: bool) -> list[int]:
    """A random tree (or forest) with its nodes in random order."""
    name = torch.randperm(size).tolist()
    parents = [-1] * size
    for v in range(1, size):
        if not (roots and torch.rand(()) < 0.2):
            parents[name[v]] = name[int(torch.randint(v, ()))]
    return parents


shapes = {
    "B": st.integers(1, 6),
    "V": st.integers(1, 5),
    "K": st.integers(1, 3),
    "seed": st.integers(0, 10**6),
    "ties": st.booleans(),
}


@settings(max_examples=300)
@given(**shapes, own=st.booleans(), ends=st.booleans(), normalize=st.booleans(), weighted=st.booleans())
def test_a_chain_is_its_enumeration(B, V, K, seed, ties, own, ends, normalize, weighted):
    unary = draw_values(seed, ties, B, V, K)
    pairwise = draw_values(seed + 1, ties, *((B, V - 1, K, K) if own else (K, K)))
    start, end = (draw_values(seed + 2, ties, K), draw_values(seed + 3, ties, B, K)) if ends else (None, None)
    labels, lengths = torch.randint(K, (B, V)), torch.randint(1, V + 1, (B,))
    cost = torch.rand(K, K).fill_diagonal_(0) if weighted else 1 - torch.eye(K)
    loss = ChainHinge(cost if weighted else None, normalize=normalize, reduction="none")
    scores = (unary, pairwise, start, end) if ends else (unary, pairwise)
    value = loss(scores, (labels, lengths))
    predicted = loss.decode(scores, lengths=lengths)
    augmented = loss.decode(scores, (labels, lengths))
    node, _ = ChainCRF().marginals(scores, lengths=lengths)
    for i, T in enumerate(lengths.tolist()):
        u = unary[i, :T].clone()
        if ends:
            u[0] += start
            u[-1] += end[i]
        p = torch.zeros(T, K, K)
        p[1:] = pairwise[i, : T - 1] if own else pairwise
        every = every_labelling(T, K)
        score = tree_score(every, u, p, list(range(-1, T - 1)))
        y = labels[i, :T]
        delta = cost[every, y].sum(1) / (T if normalize else 1)
        truth = tree_score(y[None], u, p, list(range(-1, T - 1)))
        assert value[i] == pytest.approx(float((score + delta).max() - truth), abs=1e-9)
        at = every.eq(predicted[i, :T]).all(1)
        assert score[at] == pytest.approx(float(score.max()), abs=1e-9)
        at = every.eq(augmented[i, :T]).all(1)
        assert (score + delta)[at] == pytest.approx(float((score + delta).max()), abs=1e-9)
        assert not predicted[i, T:].any()
        probability = score.softmax(0)
        for t in range(T):
            expected = torch.zeros(K).index_add_(0, every[:, t], probability)
            torch.testing.assert_close(node[i, t], expected)


@settings(max_examples=300)
@given(**shapes, shared=st.booleans(), roots=st.booleans())
def test_a_tree_is_its_enumeration(B, V, K, seed, ties, shared, roots):
    unary = draw_values(seed, ties, B, V, K)
    pairwise = draw_values(seed + 1, ties, *((K, K) if shared else (B, V, K, K)))
    labels, sizes = torch.randint(K, (B, V)), torch.randint(1, V + 1, (B,))
    trees = [random_parents(size, roots) for size in sizes.tolist()]
    parents = torch.tensor([tree + [-1] * (V - len(tree)) for tree in trees])
    loss = TreeHinge(reduction="none")
    value = loss((unary, pairwise), (labels, parents, sizes))
    predicted = loss.decode((unary, pairwise), parents=parents, sizes=sizes)
    for i, tree in enumerate(trees):
        T = len(tree)
        every, y = every_labelling(T, K), labels[i, :T]
        p = pairwise.expand(V, K, K) if shared else pairwise[i]
        score = tree_score(every, unary[i], p, tree)
        best = float((score + (every != y).sum(1)).max() - tree_score(y[None], unary[i], p, tree))
        assert value[i] == pytest.approx(best, abs=1e-9)
        assert score[every.eq(predicted[i, :T]).all(1)] == pytest.approx(float(score.max()), abs=1e-9)


@given(seed=st.integers(0, 10**6), more=st.integers(1, 4), smooth=st.booleans(), normalize=st.booleans())
def test_padding_never_changes_a_result(seed, more, smooth, normalize):
    torch.manual_seed(seed)
    B, T, K = 3, 4, 3
    lengths, labels = torch.randint(1, T + 1, (B,)), torch.randint(K, (B, T))
    results = []
    for extra in (0, more):
        unary = torch.full((B, T + extra, K), torch.nan)  # not even NaN on padding may matter
        own = torch.full((B, T + extra - 1, K, K), torch.nan)
        torch.manual_seed(seed + 1)
        for i, length in enumerate(lengths.tolist()):
            unary[i, :length], own[i, : length - 1] = torch.randn(length, K), torch.randn(length - 1, K, K)
        unary.requires_grad_()
        own.requires_grad_()
        padded = torch.cat([labels, torch.full((B, extra), -100)], 1)
        loss = ChainHinge(smooth=smooth, normalize=normalize)
        value = loss((unary, own), (padded, lengths))
        g_unary, g_own = torch.autograd.grad(value, (unary, own))
        assert not g_unary[~(torch.arange(T + extra) < lengths[:, None])].any()
        predicted = loss.decode((unary, own), lengths=lengths)
        results.append((value, g_unary[:, :T], g_own[:, : T - 1], predicted[:, :T]))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("smooth", [False, True])
def test_they_are_support_functions(smooth):
    B, T, K = 4, 5, 3
    scores, labels = (torch.randn(B, T, K), torch.randn(K, K)), torch.randint(K, (B, T))
    check_loss(ChainHinge(smooth=smooth), scores, (labels, torch.tensor([5, 3, 1, 4])))
    check_loss(
        TreeHinge(smooth=smooth, normalize=True), scores, (labels, torch.tensor([[1, 2, -1, 2, 0]]).expand(B, -1))
    )


def test_a_chain_is_a_tree():
    B, T, K = 4, 5, 3
    unary, pairwise, labels = torch.randn(B, T, K), torch.randn(K, K), torch.randint(K, (B, T))
    parents, lengths = torch.arange(-1, T - 1).expand(B, T), torch.tensor([5, 2, 1, 3])
    chain, tree = ChainHinge(smooth=True), TreeHinge(smooth=True)
    torch.testing.assert_close(
        chain((unary, pairwise), (labels, lengths)), tree((unary, pairwise), (labels, parents, lengths))
    )


class Listed(ChainHinge):
    """The same chain by its list of labellings instead of the flow polytope."""

    def hull(self, scores: Any, target: Any) -> losses.Listed:
        B, V, K = scores[0].shape
        truth, delta = self.structure.features(target, scores), self._part_costs(target, scores)[0]
        atoms = []
        for z in every_labelling(V, K):
            phi = self.structure.features(target._replace(labels=z.expand(B, V)), scores)
            s = tuple(a - b for a, b in zip(phi, truth, strict=True))
            atoms.append(Atom(s, (s[0] * delta).sum((1, 2))))
        return losses.Listed(atoms)


def chain_problem(loss: ChainHinge, lr: float, seed: int = 0) -> ProxProblem:
    torch.manual_seed(seed)
    B, T, K = 4, 4, 3
    model, A = nn.Linear(5, K), torch.randn(K, K, requires_grad=True)
    target = (torch.randint(K, (B, T)), torch.tensor([4, 1, 3, 2]))
    params = [*model.parameters(), A]
    return ProxProblem.from_scores(loss, (model(torch.randn(B, T, 5)), A), target, params, lr=lr, weight_decay=0.1)


@pytest.mark.parametrize("lr", [0.1, 1.0, 20.0])
def test_the_flow_polytope_is_the_hull_of_the_labellings(lr):
    compact, listed = chain_problem(ChainHinge(), lr), chain_problem(Listed(), lr)
    a, b = ExactQP().solve(compact), ExactQP().solve(listed)
    assert compact.dual(a) == pytest.approx(float(listed.dual(b)), rel=1e-7, abs=1e-8)
    for x, y in zip(compact.displacement(a), listed.displacement(b), strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)


def test_the_trees_polytope_is_exact():
    B, V, K = 3, 4, 2
    w = torch.randn(K, 3, requires_grad=True)
    A = torch.randn(B, V, K, K, requires_grad=True)
    parents = torch.tensor([[1, -1, 1, 2], [-1, 0, 0, 0], [-1, 0, -1, -1]])
    target = (torch.randint(K, (B, V)), parents, torch.tensor([4, 4, 3]))
    problem = ProxProblem.from_scores(TreeHinge(), (torch.randn(B, V, 3) @ w.T, A), target, [w, A], lr=2.0)
    best = ExactQP().solve(problem)
    assert problem.gap(best) == pytest.approx(0, abs=1e-7)
    assert verify(problem, MultiStepFW(50)).ok


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("lr", [0.05, 0.3])  # at 0.3 it takes hundreds of steps
def test_solvers_stay_below_the_exact_value_and_reach_it(lr, smooth):
    problem = chain_problem(ChainHinge(smooth=smooth), lr)
    for solver in (SingleStepFW(), MultiStepFW(10)):
        assert verify(problem, solver).ok
    report = verify(problem, MultiStepFW(max_steps=20_000, tol=1e-6))
    assert report.optimal, report
    assert report.dual == pytest.approx(report.exact, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("lr", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(
    "solver", [CorrectiveFW(max_steps=300, tol=1e-6), BlockFW(tol=1e-6, compiled=False)], ids=lambda s: type(s).__name__
)
def test_corrective_and_block_solvers_reach_the_exact_value(solver, lr):
    report = verify(chain_problem(ChainHinge(), lr), solver)
    assert report.optimal, report


def test_gradients_flow_to_shared_scores():
    B, T, K = 3, 4, 3
    leaves = [torch.randn(s, requires_grad=True) for s in ((B, T, K), (K, K), (K,), (K,))]
    labels, lengths = torch.randint(K, (B, T)), torch.tensor([4, 2, 3])
    assert torch.autograd.gradcheck(lambda *u: ChainHinge()(u, (labels, lengths)), leaves)


U, P, Y = torch.zeros(2, 3, 4), torch.zeros(4, 4), torch.zeros(2, 3, dtype=torch.long)
BAD_CHAINS = {
    "label outside K": ((U, P), Y + 4, "label outside"),
    "negative label": ((U, P), Y - 1, "label outside"),
    "length of zero": ((U, P), (Y, torch.tensor([0, 3])), "length outside"),
    "length too long": ((U, P), (Y, torch.tensor([4, 3])), "length outside"),
    "lengths of another batch": ((U, P), (Y, torch.tensor([3])), "expected B = 2"),
    "mask of another shape": ((U, P), (Y, torch.ones(2, 4, dtype=torch.bool)), "got a mask of shape"),
    "empty mask": ((U, P), (Y, torch.zeros(2, 3, dtype=torch.bool)), "empty sample"),
    "labels of another shape": ((U, P), Y[:, :2], "got labels of shape"),
    "float labels": ((U, P), Y.double(), "expected a tensor of label indices"),
    "pairwise of another K": ((U, P[:3, :3]), Y, "pairwise scores of shape"),
    "no pairwise": (U, Y, "expected a tuple"),
    "unary without time": ((U[0], P), Y, "unary scores of"),
    "start of another K": ((U, P, torch.zeros(3), None), Y, "start scores"),
    "too many": ((U, P, None, None, None), Y, "got 5 scores"),
}


@pytest.mark.parametrize("case", BAD_CHAINS)
def test_bad_chains_are_refused(case):
    scores, target, message = BAD_CHAINS[case]
    leaf = [u.clone().requires_grad_() for u in parts(scores) if u is not None]
    with pytest.raises((ValueError, TypeError), match=message):
        ChainHinge()(scores, target)
    assert all(u.grad is None for u in leaf)


BAD_TREES = {
    "a cycle": (Y, torch.tensor([[-1, 2, 1]] * 2), "cycle"),
    "its own parent": (Y, torch.tensor([[-1, 1, 0]] * 2), "cycle"),
    "no node": (Y, torch.tensor([[-1, 3, 0]] * 2), "not a node"),
    "a parent in the padding": (Y, torch.tensor([[-1, 2, 0]] * 2), torch.tensor([2, 2]), "not a node"),
    "parents of another shape": (Y, torch.tensor([-1, 0, 0]), "parents of shape"),
    "no parents": (Y, "not \\(labels, parents\\)"),
}


@pytest.mark.parametrize("case", BAD_TREES)
def test_bad_trees_are_refused(case):
    *target, message = BAD_TREES[case]
    with pytest.raises((ValueError, TypeError), match=message):
        TreeHinge()((U, P), tuple(target) if len(target) > 1 else target[0])


@pytest.mark.parametrize("cost", [torch.zeros(2, 3), torch.eye(3), -torch.ones(3, 3)])
def test_bad_costs_are_refused(cost):
    with pytest.raises(ValueError, match="cost"):
        ChainHinge(cost)


def test_a_mask_is_as_good_as_lengths():
    scores, labels, lengths = (torch.randn(2, 3, 4), torch.randn(4, 4)), torch.randint(4, (2, 3)), torch.tensor([3, 1])
    mask = torch.arange(3) < lengths[:, None]
    assert ChainHinge()(scores, (labels, lengths)) == ChainHinge()(scores, (labels, mask))
