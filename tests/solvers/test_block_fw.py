"""BlockFW: exact block steps on the Gram matrix of a network and on the rows of features."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from proxsvm import ProxProblem
from proxsvm.losses import (
    Atom,
    CrossEntropy,
    Huber,
    L1Regression,
    MultiClassHinge,
    QuantileRegression,
    TopKHinge,
    WestonWatkinsHinge,
)
from proxsvm.metrics import FixedMetric
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, Trace
from proxsvm.solvers._block.rows import MANY_ROWS, shuffled
from tests.cases import LOSSES, MODELS, K, LossCase, setting

# scores in one tensor, as from_features makes them
FLAT = [case for case in LOSSES if isinstance(case.scores(torch.zeros(1, K)), torch.Tensor)]
each_flat_loss = pytest.mark.parametrize("loss", FLAT, ids=repr)
FAST = {  # one for each kind of block step
    "simplex": (MultiClassHinge(), 3),  # on sparse rows in closed form
    "simplex of five": (MultiClassHinge(), 5),
    "box": (L1Regression(0.1), None),
    "quantile": (QuantileRegression(0.7), None),
    "rivals": (WestonWatkinsHinge(), 3),
    "atoms": (TopKHinge(2), 3),
    "entropy": (CrossEntropy(), 3),
    "smoothed entropy": (CrossEntropy(label_smoothing=0.1, weight=torch.tensor([1.0, 2.0, 0.5])), 3),
    "box under a paraboloid": (Huber(0.5), None),
}


def linear_problem(case: LossCase, n: int = 12, lr: float = 8.0, layout=lambda x: x, **options) -> ProxProblem:
    torch.manual_seed(0)
    x, target = torch.randn(n, 3) * (torch.rand(n, 3) < 0.7), case.target(n)
    weight = options.pop("weight", torch.zeros(4, 3))
    return ProxProblem.from_features(case.loss(), layout(x), target, lr=lr, weight=weight, **options)


def kinds(name: str, n: int = 30, sparse_rows: bool = False, lr: float = 5.0) -> ProxProblem:
    torch.manual_seed(1)
    loss, target = FAST[name]
    x = torch.randn(n, 6) * (torch.rand(n, 6) < 0.6)
    y = torch.arange(n) % target if target else x.sum(1) + torch.randn(n)
    return ProxProblem.from_features(loss, x.to_sparse() if sparse_rows else x, y, lr=lr)


@each_flat_loss
@pytest.mark.parametrize("start", [0.0, 0.5], ids=["svm", "weights"])
def test_on_features_it_equals_the_exact_qp(loss, start):
    problem = linear_problem(loss, weight=start * torch.randn(4, 3), weight_decay=0.1)
    point, exact = BlockFW(tol=1e-8).solve(problem), ExactQP().solve(problem)
    assert problem.relative_gap(point) <= 1e-8 + 1e-12
    assert problem.dual(point) == pytest.approx(float(problem.dual(exact)), abs=1e-6)


@each_flat_loss
def test_sparse_equals_dense(loss):
    dense = linear_problem(loss)
    for layout in (sparse.coo_array, torch.Tensor.to_sparse, sparse.csr_matrix):
        same = linear_problem(loss, layout=layout)
        assert same.linearization.features.layout is torch.sparse_csr
        torch.testing.assert_close(same.linearization.jacobian(), dense.linearization.jacobian())
    one, other = (BlockFW(tol=1e-9).solve(problem) for problem in (same, dense))
    assert one.dual == pytest.approx(float(other.dual), rel=1e-9, abs=1e-9)  # each within tol of the best
    one, other = (CorrectiveFW(5, tol=0.0).solve(problem) for problem in (same, dense))
    assert one.lam == pytest.approx(float(other.lam), abs=1e-6)


def test_many_samples_are_shuffled_in_groups_that_change():
    rng, order = np.random.default_rng(0), np.arange(0, 4 * MANY_ROWS + 6, 2)
    for _ in range(3):
        order, before = shuffled(order, rng), order
        assert sorted(order) == sorted(before)
        together = set(itertools.pairwise(before)) & set(itertools.pairwise(order))
        assert 0.8 < len(together) / len(order) < 0.9  # 7 of 8 neighbours stay together, and the groups move
    few = shuffled(order[: MANY_ROWS - 1], rng)
    assert len(set(itertools.pairwise(order[: MANY_ROWS - 1])) & set(itertools.pairwise(few))) < 10


@pytest.mark.parametrize("classes", [3, 5])
def test_many_sparse_samples_sorted_by_class_reach_1e_6(classes):
    rng = np.random.default_rng(0)
    y = np.sort(rng.integers(classes, size=1500))
    x = sparse.hstack([0.3 * np.eye(classes)[y], sparse.random(1500, 60, 0.1, random_state=0)], format="csr")
    problem = ProxProblem.from_features(MultiClassHinge(), x, torch.as_tensor(y), lr=150.0)
    point = BlockFW(tol=1e-6, max_passes=100).solve(problem)
    assert problem.relative_gap(point) <= 1e-6 + 1e-12


@pytest.mark.parametrize("name", FAST)
def test_the_trace_tells_a_dual_that_never_decreases_and_a_true_gap(name):
    seen: list[Trace] = []
    problem = kinds(name)
    point = BlockFW(tol=1e-7, callback=seen.append).solve(problem)
    exact = float(problem.dual(ExactQP().solve(problem)))
    assert [t.step for t in seen] == list(range(point.steps + 1))  # the start, and every pass
    for before, after in itertools.pairwise(seen):
        assert after.dual >= before.dual - 1e-10
        assert after.seconds >= before.seconds
    for t in seen:
        assert t.gap == pytest.approx(t.primal - t.dual)
        assert t.dual - 1e-7 <= exact <= t.primal + 1e-7
    assert seen[-1].dual == pytest.approx(float(point.dual), abs=1e-9)
    assert seen[-1].gap == pytest.approx(float(point.gap), abs=1e-8)


@pytest.mark.parametrize("name", FAST)
def test_a_warm_start_is_where_it_was_left(name):
    problem = kinds(name)
    point = BlockFW(tol=1e-7).solve(problem)
    again = BlockFW(tol=1e-7).solve(problem, start=point.atom)
    assert again.steps == 1
    assert again.dual == pytest.approx(float(point.dual), abs=1e-9)
    assert again.gap == pytest.approx(float(point.gap), abs=1e-9)


def by_rows(loss, x, y, outputs=()):
    return ProxProblem.from_features(loss, x, y, lr=3.0)


def by_network(loss, x, y, outputs=()):
    w = torch.zeros(*outputs, x.shape[1], requires_grad=True)
    return ProxProblem.from_scores(loss, x @ w.mT if outputs else x @ w, y, [w], lr=3.0)


either_way = pytest.mark.parametrize("problem_of", [by_rows, by_network])


@either_way
def test_a_start_outside_the_hull_is_refused(problem_of):
    x, y = torch.randn(8, 3), torch.randn(8)
    other, problem = (problem_of(QuantileRegression(tau), x, y) for tau in (0.9, 0.1))
    old, atom = (BlockFW().solve(each).atom for each in (other, problem))
    with pytest.raises(ValueError, match="not a dual point of this QuantileRegression"):
        BlockFW().solve(problem, start=old)
    with pytest.raises(ValueError, match="same samples"):
        BlockFW().solve(problem, start=Atom(atom.s[:4], atom.offset[:4]))


@either_way
def test_a_negative_gap_is_never_reported(problem_of):
    """Of a loss without a closed hull it shows that the start is not feasible."""
    problem = problem_of(TopKHinge(2), torch.randn(8, 3), torch.arange(8) % 3, (3,))
    atom = BlockFW().solve(problem).atom
    with pytest.raises(RuntimeError, match=r"below 0.*or the start is not a point"):
        BlockFW().solve(problem, start=Atom(atom.s, atom.offset + 1.0))


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("sparse_rows", [False, True], ids=["dense", "sparse"])
def test_at_eta_0_the_best_atoms_of_the_start_are_the_solution(name, sparse_rows):
    problem = kinds(name, sparse_rows=sparse_rows, lr=0.0)
    point = BlockFW().solve(problem)
    assert point.gap == pytest.approx(0, abs=1e-12)
    assert problem.dual(point) == pytest.approx(float(problem.primal(problem.start())))
    assert not problem.displacement(point)[0].any()
    assert all(d.isfinite().all() for d in point.delta)


def test_indices_that_change_after_the_problem_was_made_do_not_matter():
    """A compiled loop would read beyond the weights; here it would read wrong ones, and not crash the tests."""
    x = sparse.random(50, 6, 0.5, format="csr", random_state=0)
    y = torch.arange(50) % 3
    expected = BlockFW().solve(ProxProblem.from_features(MultiClassHinge(), x.copy(), y, lr=5.0))
    problem = ProxProblem.from_features(MultiClassHinge(), x, y, lr=5.0)
    x.indices[:] = 0
    assert BlockFW().solve(problem).dual == pytest.approx(float(expected.dual), abs=1e-9)


def test_features_in_another_metric_are_refused():
    class Double(FixedMetric):
        """M = 2 on the first class, 1 on the others."""

        def times(self, x):
            return [torch.cat([2 * t[:1], t[1:]]) for t in x]

        def solve(self, x):
            return [torch.cat([t[:1] / 2, t[1:]]) for t in x]

    x, y = torch.randn(30, 6), torch.arange(30) % 3
    other = ProxProblem.from_features(MultiClassHinge(), x, y, lr=5.0, metric=Double())
    with pytest.raises(ValueError, match=r"one η and the Euclidean metric.*Double\(\).*Use CorrectiveFW"):
        BlockFW().solve(other)
    point = CorrectiveFW(max_steps=500, tol=1e-6).solve(other)
    assert other.relative_gap(point) <= 1e-6


def test_a_warm_start_on_a_network_and_one_that_is_too_large_for_its_gram_matrix():
    problem = setting(LOSSES[0], MODELS[1]).problem(5.0)
    point = BlockFW(tol=1e-7).solve(problem)
    assert BlockFW(tol=1e-7).solve(problem, start=point.atom).steps == 1
    with pytest.raises(ValueError, match="max_entries=100"):
        BlockFW(max_entries=100).solve(problem)


def test_samples_without_weight_or_features_do_no_harm():
    x, y = torch.randn(8, 3), torch.arange(8) % 3
    x[0] = 0
    weight = torch.tensor([1.0, 0.0] * 4)
    for loss in (MultiClassHinge(), TopKHinge(2)):
        problem = ProxProblem.from_features(loss, x, y, lr=3.0, sample_weight=weight)
        point = BlockFW(tol=1e-8).solve(problem)
        assert problem.relative_gap(point) <= 1e-8
        kept = weight > 0
        alone = ProxProblem.from_features(loss, x[kept], y[kept], lr=3.0, weight=torch.zeros(3, 3))
        assert alone.dual(BlockFW(tol=1e-8).solve(alone)) == pytest.approx(float(point.dual), abs=1e-6)


def test_float32_features_stay_float32():
    x, y = torch.randn(40, 5).float(), torch.arange(40) % 3
    problem = ProxProblem.from_features(MultiClassHinge(), x, y, lr=4.0)
    point = BlockFW(tol=1e-4).solve(problem)
    assert point.delta[0].dtype == torch.float32
    assert problem.relative_gap(point) <= 2e-4


def drawn(n, features, seed, lr):
    torch.manual_seed(seed)
    y, weight = torch.randint(3, (n,)), torch.zeros(3, features)
    return ProxProblem.from_features(MultiClassHinge(), torch.randn(n, features), y, lr=lr, weight=weight)


@settings(max_examples=25)
@given(n=st.integers(1, 15), features=st.integers(1, 5), seed=st.integers(0, 1000), lr=st.floats(1e-2, 1e3))
def test_drawn_linear_problems_are_certified(n, features, seed, lr):
    """Hypothesis draws constants of the modules that are loaded, too, so its draws differ from run to run."""
    problem = drawn(n, features, seed, lr)
    point = BlockFW(tol=1e-5).solve(problem)
    assert problem.relative_gap(point) <= 1.01e-5 or point.steps == 1000  # the last pass, with its honest gap
    assert -1e-12 <= float(problem.gap(point)) <= float(problem.primal(point)) - float(point.dual) + 1e-9


def test_where_coordinate_steps_zigzag_newtons_method_takes_over():
    """Separable with a small margin and a large η."""
    problem = drawn(12, 2, 182, 298.93338976594555)
    point = BlockFW(tol=1e-8).solve(problem)
    assert point.steps < 1000
    assert problem.relative_gap(point) <= 1.01e-8
    best = CorrectiveFW(max_steps=200, tol=1e-7).solve(problem)
    assert point.dual <= problem.primal(best)
    assert best.dual <= problem.primal(point)


@pytest.mark.parametrize("name", ["simplex", "box", "entropy"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("sparse_rows", [False, True], ids=["dense", "sparse"])
def test_newtons_method_starts_from_any_weights(name, weight_decay, sparse_rows):
    """Features of very different scales, at w_t ≠ 0 and with samples that have no weight."""
    torch.manual_seed(0)
    loss, K = FAST[name]
    x = torch.randn(60, 4) * torch.tensor([1e-3, 1.0, 30.0, 1e3])
    y = torch.randint(K, (60,)) if K else torch.randn(60)
    weight = 0.1 * torch.randn(*([K] if K else []), 4)
    features = sparse.csr_matrix(x.numpy()) if sparse_rows else x
    options = {"weight": weight, "weight_decay": weight_decay, "sample_weight": torch.arange(60.0) % 3}
    problem = ProxProblem.from_features(loss, features, y, lr=100.0, **options)
    point = BlockFW(tol=1e-6).solve(problem)
    assert problem.relative_gap(point) <= 1.01e-6
    assert point.steps < 1000


@pytest.mark.parametrize("loss", [MultiClassHinge(), CrossEntropy(), L1Regression()], ids=repr)
def test_newtons_method_works_on_the_smaller_side(loss):
    torch.manual_seed(0)
    x = 30 * torch.randn(1, 1500) + torch.randn(25, 1500)  # nearly parallel rows
    y = torch.arange(25) % 3
    problem = ProxProblem.from_features(loss, x, torch.randn(25) if isinstance(loss, L1Regression) else y, lr=1.0)
    point = BlockFW(tol=1e-4).solve(problem)
    assert problem.relative_gap(point) <= 1.01e-4
    assert point.steps < 200


@pytest.mark.parametrize("loss", [MultiClassHinge(), CrossEntropy(), WestonWatkinsHinge()], ids=repr)
def test_more_passes_never_make_it_worse(loss):
    """The gap of block descent jumps up and down; the best point is returned."""
    torch.manual_seed(0)
    x, y = torch.randn(50, 4) * torch.tensor([0.1, 1.0, 10.0, 100.0]), torch.arange(50) % 3
    problem = ProxProblem.from_features(loss, x, y, lr=100.0)
    gaps = [float(problem.gap(BlockFW(tol=0.0, max_passes=k).solve(problem))) for k in (1, 2, 3, 5, 8, 13, 21, 40, 80)]
    for before, after in itertools.pairwise(gaps):
        assert after <= before * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("features", "target", "options", "message"),
    [
        (torch.zeros(3), torch.zeros(3), {}, r"expected \[n, F\]"),
        (torch.zeros(3, 2), torch.zeros(2), {}, "3 rows, but there are 2 targets"),
        (torch.zeros(3, 2), torch.zeros(3), {"weight": torch.zeros(5)}, r"expected \[..., 2\]"),
    ],
)
def test_from_features_says_what_is_wrong(features, target, options, message):
    with pytest.raises(ValueError, match=message):
        ProxProblem.from_features(L1Regression(), features, target, lr=1.0, **options)
    with pytest.raises(ValueError, match="not 'none'"):
        ProxProblem.from_features(L1Regression(reduction="none"), torch.zeros(3, 2), torch.zeros(3), lr=1.0)
