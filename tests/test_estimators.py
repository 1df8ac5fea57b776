"""LinearSVM and LinearSVR: scikit-learn's contract, its objective, and its errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR as SklearnSVR
from sklearn.utils.estimator_checks import estimator_checks_generator

from proxsvm.estimators import LinearSVM, LinearSVR
from proxsvm.losses import MultiClassHinge, QuantileRegression, WestonWatkinsHinge
from proxsvm.solvers import BlockFW

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


@pytest.mark.parametrize("estimator", [LinearSVM(), LinearSVR()], ids=["LinearSVM", "LinearSVR"])
def test_check_estimator(estimator):
    """Each of scikit-learn's checks; those that need pandas or the array API say so by skipping."""
    ran = 0
    for instance, check in estimator_checks_generator(estimator):
        if "sample_weight_equivalence" in str(check):  # compares seven digits
            instance.set_params(tol=1e-14)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check(instance)
            except pytest.skip.Exception:
                continue
            except Exception as error:
                if type(error).__name__ == "SkipTest":
                    continue
                raise
        ran += 1
    assert ran > 40


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("C", [1e-2, 0.3])
def test_the_classifier_has_scikit_learns_objective(name, C):
    X, y = DATA[name]()
    X = scale(X)
    ours = LinearSVM(C=C, tol=1e-6, max_iter=5000).fit(X, y)
    theirs = LinearSVC(multi_class="crammer_singer", C=C, tol=1e-6, max_iter=100_000).fit(X, y)
    a = hinge_objective(ours.coef_, ours.intercept_, X, y, C)
    b = hinge_objective(theirs.coef_, theirs.intercept_, X, y, C)
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


def test_two_classes_have_one_vector():
    X, y = load_iris(return_X_y=True)
    X, y = X[:100], np.array(["no", "yes"])[y[:100]]
    model = LinearSVM(C=0.1).fit(X, y)
    assert model.coef_.shape == (1, 4)
    assert model.decision_function(X).shape == (100,)
    assert set(model.predict(X)) == {"no", "yes"}
    assert model.score(X, y) == 1.0


def test_other_losses():
    X, y = DATA["iris"]()
    assert LinearSVM(loss=WestonWatkinsHinge(), C=0.1).fit(X, y).score(X, y) > 0.9
    cost = 1.0 - np.eye(3)
    same = LinearSVM(loss=MultiClassHinge(cost), C=0.1, tol=1e-6).fit(X, y)
    assert same.objective_ == pytest.approx(LinearSVM(C=0.1, tol=1e-6).fit(X, y).objective_, rel=1e-5)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 1))
    noisy = x[:, 0] + rng.standard_normal(400)
    upper = LinearSVR(loss=QuantileRegression(0.9), C=10.0).fit(x, noisy)
    assert np.mean(noisy < upper.predict(x)) == pytest.approx(0.9, abs=0.02)


def test_float32_is_kept():
    X, y = DATA["iris"]()
    assert LinearSVM(C=0.1).fit(X.astype(np.float32), y).coef_.dtype == np.float32


def test_a_fit_that_does_not_converge_warns():
    X, y = DATA["wine"]()
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        LinearSVM(C=100.0, max_iter=1, tol=1e-9, solver=BlockFW(inner=0)).fit(scale(X), y)


@pytest.mark.parametrize("estimator", [LinearSVM, LinearSVR])
def test_bad_input_gets_the_usual_errors(estimator):
    X, y = np.eye(4), np.array([0, 1, 0, 1])
    for options, message in (({"C": 0}, "C is 0"), ({"tol": -1}, "tol is -1"), ({"max_iter": 0}, "max_iter is 0")):
        with pytest.raises(ValueError, match=message):
            estimator(**options).fit(X, y)
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


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="only one class"):
        LinearSVM().fit(np.eye(3), [1, 1, 1])
