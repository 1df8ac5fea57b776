"""LinearSVM and LinearSVR: scikit-learn's contract, its objective, and its errors."""

import unittest
import warnings
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR as SklearnSVR
from sklearn.utils.estimator_checks import estimator_checks_generator

from proxsvm import ProxProblem
from proxsvm.estimators import LinearSVM, LinearSVR
from proxsvm.losses import MultiClassHinge, QuantileRegression, TopKHinge, WestonWatkinsHinge
from proxsvm.solvers import BlockFW, ExactQP

DATA = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "digits": lambda: tuple(a[:300] for a in load_digits(return_X_y=True)),
}


def hinge_objective(w, b, X, y, C):
    scores = X @ w.T + b
    correct = scores[np.arange(len(y)), y]
    loss = (scores + 1 - np.eye(len(w))[y]).max(1) - correct
    return (np.sum(w**2) + np.sum(b**2)) / 2 + C * loss.sum()


CHECKED = LinearSVM(), LinearSVM(loss="log_loss"), LinearSVM(loss="squared_hinge"), LinearSVR()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", CHECKED)
def test_check_estimator(estimator):
    """Each of scikit-learn's checks; those that need pandas or the array API say so by skipping."""
    ran = 0
    for instance, check in estimator_checks_generator(estimator):
        with suppress(pytest.skip.Exception, unittest.SkipTest):
            check(instance)
            ran += 1
    assert ran > 40


@pytest.mark.parametrize("loss", ["crammer_singer", "squared_hinge", "log_loss"])
def test_a_tiny_problem_is_solved_to_the_last_digit_and_no_further(loss):
    random = np.random.RandomState(0)
    X, y = random.uniform(size=(20, 2)), (4 * random.uniform(size=20)).astype(int)
    model = LinearSVM(loss=loss).fit(sparse.csr_matrix(X), y)
    assert model.dual_gap_ <= 1e-12 * model.objective_
    assert model.n_iter_ < 150


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("C", [1e-2, 0.3])
def test_the_classifier_has_scikit_learns_objective(name, C):
    X, y = DATA[name]()
    X = scale(X)
    ours = LinearSVM(C=C, tol=1e-6, max_iter=5000).fit(X, y)
    theirs = LinearSVC(multi_class="crammer_singer", C=C, tol=1e-6, max_iter=100_000).fit(X, y)
    a, b = (hinge_objective(model.coef_, model.intercept_, X, y, C) for model in (ours, theirs))
    assert a == pytest.approx(b, rel=1e-4)
    assert ours.objective_ == pytest.approx(a, rel=1e-9)
    assert 0 <= ours.dual_gap_ <= 1e-6 * a * (1 + 1e-6)
    assert a - ours.dual_gap_ <= b + 1e-9  # the certificate: nobody's objective is below the dual
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=0.02)


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
@pytest.mark.parametrize("data", ["diabetes", "line", "wide"])
def test_the_regression_has_scikit_learns_objective(data, epsilon):
    rng = np.random.default_rng(0)
    X, y = {
        "diabetes": lambda: tuple(map(scale, load_diabetes(return_X_y=True))),
        "line": lambda: ((x := rng.standard_normal((80, 1))), 3 * x[:, 0] + 1 + 0.1 * rng.standard_normal(80)),
        "wide": lambda: (rng.standard_normal((20, 40)), rng.standard_normal(20)),
    }[data]()

    def objective(model):
        error = np.abs(X @ model.coef_.ravel() + model.intercept_ - y)
        return (np.sum(model.coef_**2) + np.sum(model.intercept_**2)) / 2 + np.maximum(0, error - epsilon).sum() * 0.1

    ours = LinearSVR(C=0.1, epsilon=epsilon, tol=1e-6, max_iter=5000).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs = SklearnSVR(C=0.1, epsilon=epsilon, tol=1e-8, max_iter=200_000).fit(X, y)
    assert objective(ours) == pytest.approx(objective(theirs), rel=1e-4)
    assert ours.coef_.shape == (X.shape[1],)
    assert ours.objective_ == pytest.approx(objective(ours), rel=1e-9)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_sparse_equals_dense(fit_intercept):
    X, y = DATA["digits"]()
    options = {"C": 0.01, "tol": 1e-5, "fit_intercept": fit_intercept}
    dense = LinearSVM(**options).fit(X / 16, y)
    same = LinearSVM(**options).fit(sparse.csr_matrix(X / 16), y)
    assert dense.objective_ == pytest.approx(same.objective_, rel=1e-5)
    np.testing.assert_allclose(dense.decision_function(X / 16), same.decision_function(X / 16), atol=1e-2)
    np.testing.assert_array_equal(dense.predict(X / 16), same.predict(sparse.csr_matrix(X / 16)))


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("make", [LinearSVM, LinearSVR])
def test_a_weight_is_a_number_of_copies(make, layout):
    X, y = DATA["wine"]()
    X, omega = scale(X), np.arange(len(y)) % 4
    options = {"C": 0.05, "tol": 1e-9, "max_iter": 20_000}
    weighted = make(**options).fit(layout(X), y, sample_weight=omega)
    repeated = make(**options).fit(layout(X.repeat(omega, 0)), y.repeat(omega))
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-7)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-4)
    doubled = make(**{**options, "C": 0.025}).fit(layout(X), y, sample_weight=np.full(len(y), 2.0))
    assert doubled.objective_ == pytest.approx(make(**options).fit(layout(X), y).objective_, rel=1e-7)
    with pytest.raises(ValueError, match="zero"):
        make().fit(X, y, sample_weight=np.zeros(len(y)))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        make().fit(X, y, sample_weight=-np.ones(len(y)))


def test_a_class_without_weight_is_still_a_class():
    X, y = DATA["iris"]()
    model = LinearSVM(C=0.1).fit(X, y, sample_weight=(y != 2).astype(float))
    assert model.classes_.tolist() == [0, 1, 2]
    assert set(model.predict(X[y != 2])) == {0, 1}


def test_a_warm_start_saves_passes_and_ends_at_the_same_objective():
    X, y = DATA["wine"]()
    X = scale(X)
    model = LinearSVM(C=0.1, tol=1e-5, warm_start=True).fit(X, y)
    assert model.fit(X, y).n_iter_ == 1  # nothing is left to do
    warm = model.set_params(C=0.11).fit(X, y)
    cold = LinearSVM(C=0.11, tol=1e-5).fit(X, y)
    assert warm.n_iter_ <= cold.n_iter_
    assert warm.objective_ == pytest.approx(cold.objective_, rel=2e-5)
    assert model.fit(X[:100], y[:100]).coef_.shape == (1, 13)  # other targets: a cold start, and two classes are left


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.1), (0.1, 0.9), (0.5, 0.3), (0.3, 0.3)])
def test_a_warm_start_after_another_loss_is_dropped_unless_feasible(before, after):
    """Issue 17.4: the quantile's box depends on τ."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((80, 3)), rng.standard_normal(80) * 3
    model = LinearSVR(loss=QuantileRegression(before), C=1.0, tol=1e-6, warm_start=True).fit(X, y)
    warm = model.set_params(loss=QuantileRegression(after)).fit(X, y)
    cold = LinearSVR(loss=QuantileRegression(after), C=1.0, tol=1e-6).fit(X, y)
    assert warm.objective_ == pytest.approx(cold.objective_, rel=2e-6)
    assert 0 <= warm.dual_gap_ <= 1e-6 * warm.objective_
    assert (warm.n_iter_ == 1) == (before == after)


def test_a_warm_start_of_a_loss_without_a_closed_hull_needs_the_same_loss():
    X, y = DATA["iris"]()
    X = scale(X)
    for first, second, same in (
        (WestonWatkinsHinge(), WestonWatkinsHinge(), True),
        (TopKHinge(2), WestonWatkinsHinge(), False),
        (TopKHinge(2), TopKHinge(1), False),
        (WestonWatkinsHinge(), MultiClassHinge(), False),
    ):
        model = LinearSVM(loss=first, C=0.01, tol=1e-3, warm_start=True).fit(X, y)
        warm = model.set_params(loss=second).fit(X, y)
        cold = LinearSVM(loss=second, C=0.01, tol=1e-3).fit(X, y)
        assert warm.objective_ == pytest.approx(cold.objective_, rel=2e-3)
        assert 0 <= warm.dual_gap_ <= 1e-3 * warm.objective_
        assert (warm.n_iter_ == 1) == same


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("C", [1e2, 1e16, 1e25])
def test_a_huge_c_gives_the_hard_margin(C, layout, classes):
    """Issue 17.22: α is of the size 1/(C‖x‖²), which no absolute threshold may swallow."""
    y = np.arange(20) % classes
    X = 3.0 * np.eye(classes)[y]  # so that W = (1 − mean)/3, of the length √(K − 1)/3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a margin's rounding times C is no small gap
        model = LinearSVM(C=C, tol=1e-6, max_iter=100, fit_intercept=False).fit(layout(X), y)
    W = (np.eye(classes) - 1 / classes) / 3
    np.testing.assert_allclose(model.coef_, W[1:] - W[:1] if classes == 2 else W, atol=1e-3)
    dual, exact = model.objective_ - model.dual_gap_, (classes - 1) / 18
    assert (1 - 1e-3) * exact <= dual <= (1 + 1e-6) * exact
    assert model.dual_gap_ <= max(1e-6, 1e-14 * C)


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("size", [1e5, 1e9, 1e16])
@pytest.mark.parametrize("estimator", [LinearSVM, LinearSVR, partial(LinearSVM, loss=WestonWatkinsHinge())])
def test_scaled_features_are_the_same_problem(estimator, size, layout):
    """X·2^k with C/4^k has the solution w/2^k, to the last bit. ``size`` is C‖x‖²; what gap is left is told."""
    X, y = load_iris(return_X_y=True)
    X, C = X[::10], size / np.square(X).sum(1).max()
    found = []
    for by in (1.0, 2.0**-20, 2.0**30):
        model = estimator(C=C / by**2, fit_intercept=False, max_iter=5, tol=1e-3)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            model.fit(layout(by * X), y[::10])
        found.append((by * model.coef_, by**2 * model.objective_, by**2 * model.dual_gap_, model.n_iter_))
        relative = model.dual_gap_ / model.objective_
        said = [str(w.message) for w in seen if w.category is ConvergenceWarning]
        assert bool(said) == (relative > 1e-3)
        assert all(f"a relative gap of {relative:.1e}" in text for text in said)
    (coef, objective, gap, steps), *others = found
    for other in others:
        np.testing.assert_array_equal(other[0], coef)
        assert other[1:] == (objective, gap, steps)
    assert np.abs(coef).max() > 0
    if isinstance(model, LinearSVR):
        exact = np.square(coef).sum() / 2 + C * np.abs(X @ coef - y[::10]).sum()
        assert objective == pytest.approx(exact, rel=1e-9)
    elif model.loss is None:
        assert objective == pytest.approx(hinge_objective(coef, 0, X, y[::10], C), rel=1e-9)


def test_the_users_sparse_matrix_is_left_alone():
    """Issue 17.17: duplicates are summed in a copy."""
    data, columns, starts = np.array([1.0, 2.0, 5.0, 4.0]), np.array([1, 1, 2, 0]), np.array([0, 2, 3, 4])
    mine = sparse.csr_matrix((data, columns, starts), shape=(3, 3))
    same = sparse.csr_matrix(mine.toarray())
    problem, expected = (
        ProxProblem.from_features(MultiClassHinge(), X, np.array([0, 1, 0]), lr=1.0) for X in (mine, same)
    )
    LinearSVM(fit_intercept=False).fit(mine, [0, 1, 0])
    assert mine.data.tolist() == [1.0, 2.0, 5.0, 4.0]
    assert mine.indices.tolist() == [1, 1, 2, 0]
    torch.testing.assert_close(problem.linearization.jacobian(), expected.linearization.jacobian())


def test_other_losses():
    X, y = DATA["iris"]()
    cost = 1.0 - np.eye(3)
    same = LinearSVM(loss=MultiClassHinge(cost), C=0.1, tol=1e-6).fit(X, y)
    assert same.objective_ == pytest.approx(LinearSVM(C=0.1, tol=1e-6).fit(X, y).objective_, rel=1e-5)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 1))
    noisy = x[:, 0] + rng.standard_normal(400)
    upper = LinearSVR(loss=QuantileRegression(0.9), C=10.0).fit(x, noisy)
    assert np.mean(noisy < upper.predict(x)) == pytest.approx(0.9, abs=0.02)


def test_a_fit_that_does_not_converge_warns():
    X, y = DATA["wine"]()
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        LinearSVM(C=100.0, max_iter=1, tol=1e-9, solver=BlockFW(inner=0)).fit(scale(X), y)


@pytest.mark.parametrize("estimator", [LinearSVM, LinearSVR])
def test_bad_input_gets_the_usual_errors(estimator):
    X, y = np.eye(4), np.array([0, 1, 0, 1])
    wrong = {
        "C": (0, np.inf, np.nan),
        "tol": (-1, np.nan),
        "max_iter": (0, 2.5, np.nan),
        "intercept_scaling": (np.nan,),
    }
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            estimator(**{name: value}).fit(X, y)
    with pytest.raises(ValueError, match="is inf; expected a finite number above 0: C is 1e"):
        estimator(C=1e308).fit(X, y)
    for reduction in ("sum", "none"):
        with pytest.raises(ValueError, match=f"reduction='{reduction}'; expected 'mean'"):
            estimator(loss=MultiClassHinge(reduction=reduction)).fit(X, y)
    with pytest.raises(TypeError, match=r"solver is ExactQP.*expected a proxsvm.solvers.BlockFW"):
        estimator(solver=ExactQP()).fit(X, y)
    with pytest.raises(TypeError, match=r"loss is a CrossEntropyLoss; expected a loss of proxsvm.losses"):
        estimator(loss=torch.nn.CrossEntropyLoss()).fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        estimator().fit(np.full((4, 4), np.nan), y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator().fit(X, y[:3])
    with pytest.raises(ValueError, match="Expected 2D array"):
        estimator().fit(X[0], y)
    with pytest.raises(NotFittedError):
        estimator().predict(X)
    with pytest.raises(ValueError, match="features"):
        estimator().fit(X, y).predict(X[:, :2])
    if estimator is LinearSVM:
        with pytest.raises(ValueError, match="only one class"):
            LinearSVM().fit(np.eye(3), [1, 1, 1])
