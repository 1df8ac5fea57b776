"""Tables as they come: features of very different scales, and any C."""

import itertools

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

from proxsvm.estimators import LinearSVM, LinearSVR, primal
from tests.estimators.test_estimators import hinge_objective


def synthetic(regression: bool):
    """Columns of the scales 1e-4 to 1e4."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((400, 12))
    scores = Z @ rng.standard_normal((12, 3)) + rng.standard_normal((400, 3))
    return Z * np.logspace(-4, 4, 12), scores[:, 0] if regression else scores.argmax(1)


TABLES = {
    "breast cancer": lambda _: load_breast_cancer(return_X_y=True),
    "wine": lambda _: load_wine(return_X_y=True),
    "diabetes": lambda _: load_diabetes(return_X_y=True, scaled=False),
    "synthetic": synthetic,
}
CASES = [(name, loss) for name in ("breast cancer", "wine", "synthetic") for loss in LinearSVM.losses]
CASES += [(name, loss) for name in ("diabetes", "synthetic") for loss in LinearSVR.losses]


@pytest.mark.parametrize(("name", "loss"), CASES)
def test_every_table_is_solved_to_1e_3(name, loss):
    regression = loss in LinearSVR.losses
    X, y = TABLES[name](regression)
    for C in (1e-3, 1.0, 1e3):
        model = (LinearSVR if regression else LinearSVM)(C=C, loss=loss, tol=1e-3).fit(X, y)  # a warning is an error
        assert 0 <= model.dual_gap_ <= 1e-3 * model.objective_
        if loss == "crammer_singer" and len(model.classes_) > 2:
            objective = hinge_objective(model.coef_, model.intercept_, X, y, C)
            assert model.objective_ == pytest.approx(objective, rel=1e-6)


@pytest.mark.parametrize("loss", LinearSVR.losses)
def test_sums_of_large_features_that_lose_digits(loss):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((500, 4))
    X, y = Z * [1, 0.1, 1e5, 3e4] + [40, -120, 2e5, 3e5], Z.sum(1) + rng.standard_normal(500)
    model = LinearSVR(C=1e3, loss=loss, tol=1e-3, max_iter=60, fit_intercept=False).fit(X, y)
    assert 0 <= model.dual_gap_ <= 1e-3 * model.objective_


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("C", [1.0, 1e6])
@pytest.mark.parametrize("small", [0, primal.SMALL])  # L-BFGS at first, or Newton's method
def test_more_iterations_of_the_log_loss_never_make_it_worse_until_rounding(small, C, several, monkeypatch):
    monkeypatch.setattr(primal, "SMALL", small)
    X, y = load_wine(return_X_y=True)
    y = np.eye(3, dtype=int)[y] if several else y
    models = [LinearSVM(C=C, loss="log_loss", max_iter=k, tol=1e-11).fit(X, y) for k in (1, 5, 20, 30, 50, 100, 1000)]
    for before, after in itertools.pairwise(models):
        assert after.dual_gap_ <= before.dual_gap_ + 1e-14 * after.objective_
    assert models[-1].dual_gap_ <= 1e-11 * models[-1].objective_


def test_where_rounding_hides_the_decrease_the_gap_still_falls(monkeypatch):
    monkeypatch.setattr(primal, "SMALL", 0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 8))
    y = (X @ rng.standard_normal((8, 4)) + 3 * rng.standard_normal((1000, 4)) > 0).astype(int)
    model = LinearSVM(C=1e3, loss="log_loss", tol=1e-11).fit(X, y)
    assert model.dual_gap_ <= 1e-11 * model.objective_


def test_separable_unscaled_classes_with_a_large_C():
    X, y = load_digits(return_X_y=True)
    model = LinearSVM(C=1e3, loss="log_loss", tol=1e-3).fit(X, y)
    assert model.dual_gap_ <= 1e-3 * model.objective_


@pytest.mark.parametrize("C", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("small", [0, primal.SMALL])  # in single precision at first, or Newton's method
def test_the_gap_of_a_ridge_regression_holds_its_closed_form(small, C, monkeypatch):
    monkeypatch.setattr(primal, "SMALL", small)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6)) * np.logspace(-2, 2, 6)
    y = X @ np.logspace(2, -2, 6) + rng.standard_normal(400)
    w = np.linalg.solve(X.T @ X + np.eye(6) / (2 * C), X.T @ y)
    best = w @ w / 2 + C * ((X @ w - y) ** 2).sum()
    for tol in (0.3, 1e-3, 1e-8):
        model = LinearSVR(loss="squared_error", C=C, tol=tol, fit_intercept=False).fit(X, y)
        again = model.coef_ @ model.coef_ / 2 + C * ((X @ model.coef_ - y) ** 2).sum()
        assert model.objective_ == pytest.approx(again, rel=1e-10)
        assert 0 <= model.dual_gap_ <= tol * model.objective_
        assert model.objective_ - model.dual_gap_ <= best * (1 + 1e-9) <= again * (1 + 1e-8)


@pytest.mark.parametrize("loss", ["squared_hinge", "huber", "squared_epsilon_insensitive", "log_loss"])
def test_what_single_precision_finds_is_certified_in_double_precision(loss, monkeypatch):
    """The slopes at the weights are a dual point, whose gap is ‖∇P‖²/2; the fit may have found a better one."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 8)) + 1e3  # of which single precision keeps four digits
    target = X[:, 0] - X[:, 1] + rng.standard_normal(2000)
    fit = LinearSVM(loss=loss).fit if loss in LinearSVM.losses else LinearSVR(loss=loss).fit
    exact = fit(X, target > 0 if loss in LinearSVM.losses else target)
    monkeypatch.setattr(primal, "SMALL", 0)
    model = fit(X, target > 0 if loss in LinearSVM.losses else target)
    low, high = model.objective_ - model.dual_gap_, exact.objective_
    assert 0 <= model.dual_gap_ <= 1e-4 * model.objective_
    assert low <= high * (1 + 1e-10)
    assert exact.objective_ - exact.dual_gap_ <= model.objective_ * (1 + 1e-10)


@pytest.mark.parametrize("several", [False, True])
def test_a_raised_dual_stays_below_the_minimum(several, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 8))
    scores = X @ rng.standard_normal((8, 4)) + 3 * rng.standard_normal((1000, 4))
    y = (scores > 0).astype(int) if several else scores.argmax(1)
    best = LinearSVM(C=1e3, loss="log_loss", tol=1e-11).fit(X, y).objective_
    monkeypatch.setattr(primal, "SMALL", 0)  # L-BFGS, whatever the size
    for tol in (1e-2, 1e-3, 1e-5):
        model = LinearSVM(C=1e3, loss="log_loss", tol=tol).fit(X, y)
        assert model.objective_ - model.dual_gap_ <= best * (1 + 1e-12)
        assert 0 <= model.dual_gap_ <= tol * model.objective_
