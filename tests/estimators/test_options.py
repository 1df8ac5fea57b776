"""What users of scikit-learn expect: losses by name, class weights, probabilities, labels, a progress line."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR as SklearnSVR
from threadpoolctl import threadpool_info, threadpool_limits

from proxsvm.estimators import LinearSVM, LinearSVR, primal
from proxsvm.losses import BinaryCrossEntropy, CrossEntropy, MultiClassHinge
from proxsvm.solvers import BlockFW
from proxsvm.solvers.base import Progress

X, y = load_wine(return_X_y=True)
X = scale(X)
NO_INTERCEPT = {"fit_intercept": False, "C": 0.1}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_loss_of_labels_is_linear_svc(loss, classes):
    rows = y < classes
    ours = LinearSVM(loss=loss, tol=1e-9, C=0.1).fit(X[rows], y[rows])
    theirs = LinearSVC(loss=loss, tol=1e-9, C=0.1, max_iter=1_000_000).fit(X[rows], y[rows])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-3)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_log_loss_is_logistic_regression_with_its_probabilities(classes, layout):
    rows = y < classes
    ours = LinearSVM(loss="log_loss", tol=1e-10, **NO_INTERCEPT).fit(layout(X[rows]), y[rows])
    C = 0.1 if classes > 2 else 0.2  # ½‖w₀‖² + ½‖w₁‖² is ¼‖w₁ − w₀‖²
    theirs = LogisticRegression(C=C, tol=1e-10, fit_intercept=False, max_iter=1000).fit(X[rows], y[rows])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), atol=1e-4)


def test_probabilities_of_one_class_against_the_rest_sum_to_1_and_a_hinge_has_none():
    model = LinearSVM(loss=BinaryCrossEntropy(), C=0.1).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X).argmax(1))
    assert not hasattr(LinearSVM().fit(X, y), "predict_proba")
    assert not hasattr(LinearSVM(loss="hinge"), "predict_log_proba")


def test_hubers_loss_by_name():
    target = X[:, 0] + np.random.default_rng(0).standard_normal(len(X))
    huber = LinearSVR(loss="huber", tol=1e-13, **NO_INTERCEPT).fit(X[:, 1:], target)
    slopes = np.clip(huber.predict(X[:, 1:]) - target, -1, 1)
    np.testing.assert_allclose(huber.coef_, -0.1 * X[:, 1:].T @ slopes, atol=1e-5)  # the gradient is 0


@pytest.mark.parametrize("weights", [{0: 1.0, 1: 5.0, 2: 0.2}, "balanced"])
def test_class_weights_are_those_of_scikit_learn(weights):
    options = {"C": 0.05, "tol": 1e-8}
    ours = LinearSVM(class_weight=weights, **options).fit(X, y)
    theirs = LinearSVC(multi_class="crammer_singer", class_weight=weights, C=0.05, tol=1e-8, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)
    each = {k: len(y) / (3 * np.sum(y == k)) for k in range(3)} if weights == "balanced" else weights
    same = LinearSVM(**options).fit(X, y, sample_weight=np.array([each[k] for k in y]))
    assert same.objective_ == pytest.approx(ours.objective_, rel=1e-6)
    twice = LinearSVM(class_weight=weights, **options).fit(X, y, sample_weight=np.full(len(y), 2.0))
    assert twice.objective_ > ours.objective_


@pytest.mark.parametrize("loss", [None, "hinge", "squared_hinge", "log_loss"])
def test_each_label_is_a_problem_of_its_own(loss):
    Y = np.stack([y == 0, y != 1, X[:, 0] > 0], 1).astype(int)
    model = LinearSVM(loss=loss, tol=1e-9, **NO_INTERCEPT).fit(X, Y)
    assert model.coef_.shape == (3, 13)
    assert model.predict(X).shape == model.decision_function(X).shape == (178, 3)
    for k in range(3):
        name = loss or "hinge"
        if name == "log_loss":
            alone = LogisticRegression(C=0.1, tol=1e-10, fit_intercept=False, max_iter=1000).fit(X, Y[:, k])
            np.testing.assert_allclose(model.predict_proba(X)[:, k], alone.predict_proba(X)[:, 1], atol=1e-4)
        else:
            alone = LinearSVM(loss=name, tol=1e-9, **NO_INTERCEPT).fit(X, Y[:, k])
        np.testing.assert_allclose(model.coef_[k], alone.coef_[0], atol=1e-4)
    for wrong in ("crammer_singer", MultiClassHinge()):
        with pytest.raises(ValueError, match="y is an indicator matrix"):
            LinearSVM(loss=wrong).fit(X, Y)


def test_a_name_that_no_loss_has():
    with pytest.raises(ValueError, match=r"loss is 'hinges'; expected .*'squared_hinge'"):
        LinearSVM(loss="hinges").fit(X, y)
    with pytest.raises(ValueError, match="epsilon_insensitive"):
        LinearSVR(loss="hinge").fit(X, y)


def test_a_progress_line_for_each_pass(capsys):
    model = LinearSVM(C=0.1, verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_ + 1
    assert lines[-1].startswith(f"[LinearSVM] iteration {model.n_iter_}: objective {model.objective_:.6g}, gap ")
    LinearSVM(C=0.1).fit(X, y)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("loss", LinearSVM.losses)
def test_float32_is_kept_by_every_loss(loss):
    Z, t = load_iris(return_X_y=True)
    model = LinearSVM(loss=loss, C=0.1, tol=1e-3).fit(Z.astype(np.float32), t)
    assert model.coef_.dtype == model.decision_function(Z.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_the_squared_band_is_that_of_scikit_learn(epsilon):
    target = X[:, 0] + np.random.default_rng(0).standard_normal(len(X))
    options = {"loss": "squared_epsilon_insensitive", "epsilon": epsilon, "tol": 1e-10, **NO_INTERCEPT}
    ours = LinearSVR(**options).fit(X[:, 1:], target)
    theirs = SklearnSVR(max_iter=100_000, **options).fit(X[:, 1:], target)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


@pytest.mark.parametrize("loss", ["crammer_singer", "log_loss"])
def test_float32_on_columns_of_very_different_scales(loss):
    Z = (X * np.logspace(-3, 3, 13)).astype(np.float32)
    model = LinearSVM(loss=loss, tol=1e-3).fit(Z, y)  # a warning is an error
    assert model.dual_gap_ <= 1e-3 * model.objective_
    assert model.coef_.dtype == np.float32


def test_pandas_in_and_a_pipeline_with_set_output():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=[f"column {k}" for k in range(13)])
    pipeline = make_pipeline(StandardScaler(), LinearSVM(C=0.1)).set_output(transform="pandas").fit(table, y)
    assert list(pipeline[-1].feature_names_in_) == list(table.columns)
    np.testing.assert_array_equal(pipeline.predict(table), LinearSVM(C=0.1).fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        pipeline[-1].predict(table[table.columns[::-1]])


LIKELIHOODS = {
    "classes": (CrossEntropy(), y),
    "two classes": (CrossEntropy(), y > 0),
    "smoothed": (CrossEntropy(label_smoothing=0.1), y),
    "weighted classes": (CrossEntropy(weight=torch.tensor([1.0, 2.0, 0.5])), y),
    "labels": (BinaryCrossEntropy(pos_weight=2.0), np.stack([y > 0, y == 1], 1).astype(int)),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("C", [1e-3, 1.0, 1e3])
def test_likelihoods_in_the_primal_and_in_the_dual_agree(name, C):
    loss, target = LIKELIHOODS[name]
    weight = np.random.default_rng(0).integers(0, 3, len(X))
    primal, dual = (
        LinearSVM(loss=loss, C=C, tol=1e-6, max_iter=20_000, solver=solver).fit(X, target, weight)
        for solver in (None, BlockFW())
    )
    low, high = dual.objective_ - dual.dual_gap_, dual.objective_
    assert 0 <= primal.dual_gap_ <= 1e-6 * primal.objective_
    assert low <= primal.objective_ * (1 + 1e-9)
    assert primal.objective_ - primal.dual_gap_ <= high * (1 + 1e-9)


@pytest.mark.parametrize("C", [1.0, 1e6])
def test_a_hessian_that_is_too_large_is_not_factorised(C, monkeypatch):
    """Newton's method by conjugate gradients, after a few steps of L-BFGS."""
    monkeypatch.setattr(primal, "MAX_SIDE", 1)
    monkeypatch.setattr(primal, "PATIENCE", 5)
    Z = X @ np.random.default_rng(0).standard_normal((13, 13))
    for rows in (Z, sparse.csr_matrix(Z)):
        model = LinearSVM(loss=BinaryCrossEntropy(), C=C, tol=1e-6).fit(rows, y)
        assert model.dual_gap_ <= 1e-6 * model.objective_


def test_more_weights_than_a_hessian_may_have_are_left_to_l_bfgs(monkeypatch):
    exact = LinearSVM(loss="log_loss", tol=1e-6).fit(X, y)
    monkeypatch.setattr(primal, "MAX_SIDE", 1)
    found = LinearSVM(loss="log_loss", tol=1e-6).fit(X, y)
    assert found.n_iter_ > exact.n_iter_
    assert found.objective_ == pytest.approx(exact.objective_, rel=1e-6)
    again = LinearSVM(loss="log_loss", tol=1e-6, warm_start=True).fit(X, y).fit(X, y)
    assert again.n_iter_ < found.n_iter_


@pytest.mark.parametrize("loss", LinearSVR.losses)
def test_a_regression_continues_from_the_last_solution(loss):
    target = X[:, 0] + np.random.default_rng(0).standard_normal(len(X))
    model = LinearSVR(loss=loss, warm_start=True, tol=1e-6).fit(X[:, 1:], target)
    first, objective = model.n_iter_, model.objective_
    model.fit(X[:, 1:], target)
    assert model.n_iter_ <= min(first, 2)
    assert model.objective_ == pytest.approx(objective, rel=1e-6)


@pytest.mark.parametrize("options", [{"C": "1"}, {"C": None}, {"tol": None}, {"intercept_scaling": "1"}, {"C": 1e300}])
def test_a_number_that_is_none(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=rf"{name} is {value!r}.*|C is 1e\+300"):
        LinearSVM(**options).fit(X, y)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_what_overflows_is_an_error_and_no_nan():
    with pytest.raises(ValueError, match="too large; scale them"):
        LinearSVM(loss="hinge").fit(X * 1e200, y)
    with pytest.raises(ValueError, match="too large; scale them"):
        LinearSVR(loss="squared_error").fit(X, y * 1e200)


@pytest.mark.parametrize("loss", ["epsilon_insensitive", "squared_error"])
def test_read_only_arrays_as_pandas_has_them(loss):
    table, target, weight = X.copy(), X[:, 0].copy(), np.ones(len(X))
    for array in (table, target, weight):
        array.setflags(write=False)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        model = LinearSVR(loss=loss, C=0.1, fit_intercept=False).fit(table, target, weight)  # a warning is an error
    finally:
        torch.set_warn_always(before)
    again = LinearSVR(loss=loss, C=0.1, fit_intercept=False).fit(X, X[:, 0], np.ones(len(X)))
    np.testing.assert_array_equal(model.coef_, again.coef_)


@pytest.mark.parametrize("loss", ["crammer_singer", "log_loss"])
def test_small_fits_use_one_thread(loss, monkeypatch):
    def threads():
        return {torch.get_num_threads(), *(x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas")}

    def stop(progress, *values):
        seen.append(threads())
        return real(progress, *values)

    seen, real, before = [], Progress.stop, torch.get_num_threads()
    monkeypatch.setattr(Progress, "stop", stop)
    torch.set_num_threads(2)
    try:
        with threadpool_limits(2, user_api="blas"):
            allowed = threads()
            LinearSVM(loss=loss).fit(X, y)
            assert 2 in allowed
            assert seen[0] == {1}
            assert threads() == allowed
    finally:
        torch.set_num_threads(before)
