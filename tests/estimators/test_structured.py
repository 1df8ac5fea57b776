"""ChainSVM and ChainCRFClassifier: their objective, their certificate, scikit-learn's conventions, and their errors."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from proxsvm import ProxProblem
from proxsvm._kernels import chain_blocks
from proxsvm.estimators import ChainCRFClassifier, ChainSVM
from proxsvm.losses import ChainCRF, ChainHinge
from proxsvm.solvers import ExactQP

BOTH = {ChainSVM: ChainHinge, ChainCRFClassifier: ChainCRF}
both = pytest.mark.parametrize("estimator", BOTH)


def sequences(n=12, F=4, K=3, longest=5, seed=0):
    """Noisy observations of labels that tend to repeat."""
    rng = np.random.default_rng(seed)
    means, X, y = rng.standard_normal((K, F)), [], []
    for _ in range(n):
        labels = [int(rng.integers(K))]
        while len(labels) < longest and rng.random() < 0.8:
            labels.append(labels[-1] if rng.random() < 0.6 else int(rng.integers(K)))
        X.append(means[labels] + rng.standard_normal((len(labels), F)))
        y.append([f"label {k}" for k in labels])
    return X, y


def padded(model, X, y):
    """Scores of the fitted model and the target, as the losses want them."""
    lengths = torch.tensor([len(x) for x in X])
    features = torch.nn.utils.rnn.pad_sequence([torch.tensor(x) for x in X], batch_first=True)
    index = {label: k for k, label in enumerate(model.classes_)}
    labels = torch.nn.utils.rnn.pad_sequence([torch.tensor([index[k] for k in own]) for own in y], batch_first=True)
    return features, (labels, lengths)


def objective(model, X, y, C):
    features, target = padded(model, X, y)
    W, A = torch.tensor(model.coef_.T.copy()), torch.tensor(model.transitions_)
    loss = BOTH[type(model)](reduction="sum")((features @ W, A), target)
    return float((W**2).sum() + (A**2).sum()) / 2 + C * float(loss)


@both
@given(C=st.floats(1e-2, 30.0), seed=st.integers(0, 1000), K=st.integers(1, 4), longest=st.integers(1, 6))
def test_the_gap_is_certified(estimator, C, seed, K, longest):
    X, y = sequences(n=6, K=K, longest=longest, seed=seed)
    model = estimator(C, tol=1e-4, max_iter=3000).fit(X, y)
    assert 0 <= model.dual_gap_ <= 1e-4 * model.objective_ * (1 + 1e-9) + 1e-12
    assert model.objective_ == pytest.approx(objective(model, X, y, C), rel=1e-9, abs=1e-12)


@both
@pytest.mark.parametrize("C", [0.05, 2.0])
def test_the_optimum_is_that_of_the_exact_program(estimator, C):
    X, y = sequences(n=4, longest=3)
    model = estimator(C, tol=1e-6, max_iter=20_000).fit(X, y)
    features, target = padded(model, X, y)
    W, A = (torch.zeros(s, dtype=torch.double, requires_grad=True) for s in ((4, 3), (3, 3)))
    problem = ProxProblem.from_scores(BOTH[estimator](), (features @ W, A), target, [W, A], lr=len(X) * C)
    point = ExactQP().solve(problem)
    best = float(problem.dual(point)) * len(X) * C
    assert model.objective_ - model.dual_gap_ <= best * (1 + 1e-6)
    assert best <= model.objective_ * (1 + 1e-6)
    W, A = problem.displacement(point)
    np.testing.assert_allclose(model.coef_.T, W.detach(), atol=0.01)
    np.testing.assert_allclose(model.transitions_, A.detach(), atol=0.01)


@pytest.mark.parametrize("limit", [0.3, 1e3])
def test_an_exchange_is_the_step_between_two_labellings(limit):
    rng, T, K = np.random.default_rng(0), 7, 3
    X, v, A = rng.normal(size=(T, 4)), rng.normal(size=(T, K)), rng.normal(size=(K, K))
    up, down = rng.integers(K, size=(2, T))
    ds, de, G = np.eye(K)[up] - np.eye(K)[down], np.zeros((K, K)), X @ X.T
    np.add.at(de, (up[:-1], up[1:]), 1.0)
    np.add.at(de, (down[:-1], down[1:]), -1.0)
    dense, few = ((v.copy(), A.copy(), np.zeros((T, K))) for _ in range(2))
    expected = chain_blocks.step(G, ds, de, 2.0, 0.7, limit, *dense)
    buffer = np.zeros((K, K))
    found = chain_blocks.exchange(G, up, down, 2.0, 0.7, limit, *few[:2], buffer, few[2])
    assert found == pytest.approx(expected)
    assert not buffer.any()
    for a, b in zip(few, dense, strict=True):
        np.testing.assert_allclose(a, b)


def test_working_sets_keep_the_labellings_that_have_a_weight_and_grow_where_they_are_full():
    X, y = sequences(n=20, longest=8)
    model = ChainSVM(10.0, warm_start=True, tol=1e-2, max_iter=5000).fit(X, y)
    paths, weight = model._before[1]
    counts = (weight > 0).sum(1)
    np.testing.assert_allclose(weight.sum(1), 1.0)
    assert counts.max() > 1
    assert all((own[:n] > 0).all() for own, n in zip(weight, counts, strict=True))
    assert paths.shape[1] == weight.shape[1] > 8
    assert model.dual_gap_ <= 1e-2 * model.objective_


@given(T=st.integers(1, 6), K=st.integers(1, 4), scale=st.sampled_from([0.1, 1.0, 100.0]), seed=st.integers(0, 10_000))
def test_the_loops_agree_with_the_structure(T, K, scale, seed):
    rng = np.random.default_rng(seed)
    v, A = scale * rng.standard_normal((T, K)), scale * rng.standard_normal((K, K))
    scores, buffer, path = (torch.tensor(v)[None], torch.tensor(A)), np.empty((T, K)), np.empty(T, np.int64)
    truth = torch.zeros(1, T, dtype=torch.long)
    own = v[:, 0].sum() + (T - 1) * A[0, 0]
    chain_blocks.viterbi(v, A, buffer, path)
    assert path.tolist() == ChainHinge().decode(scores)[0].tolist()
    mu, pairs = np.empty((T, K)), np.empty((K, K))
    log_z = chain_blocks.marginals(v, A, buffer, mu, pairs)
    node, edge = ChainCRF().marginals(scores)
    np.testing.assert_allclose(mu, node[0], atol=1e-10)
    np.testing.assert_allclose(pairs, edge[0].sum(0), atol=1e-10)
    assert log_z - own == pytest.approx(float(ChainCRF()(scores, truth)), rel=1e-10, abs=1e-9)


@both
def test_dense_sparse_and_dicts_are_the_same(estimator):
    X, y = sequences()
    dicts = [[{f"f{j}": value for j, value in enumerate(row)} for row in x] for x in X]
    models = [estimator().fit(each, y) for each in (X, [sparse.csc_matrix(x) for x in X], dicts)]
    for model, data in zip(models[1:], ([sparse.coo_matrix(x) for x in X], dicts), strict=True):
        np.testing.assert_allclose(model.coef_, models[0].coef_, atol=1e-12)
        assert model.predict(data) == models[0].predict(X)
    np.testing.assert_allclose(estimator().fit([x.tolist() for x in X], y).coef_, models[0].coef_)


@both
def test_strings_booleans_and_numbers_are_features(estimator):
    X = [[{"word": "a", "title": True, "size": 1.5}, {"word": "dog", "title": False}], [{"word": "dogs"}]]
    y = [["DET", "NOUN"], ["NOUN"]]
    model = estimator().fit(X, y)
    assert model.vectorizer_.get_feature_names_out().tolist() == ["size", "title", "word=a", "word=dog", "word=dogs"]
    assert model.predict(X) == y
    assert model.predict([[{"word": "unknown"}]])[0][0] in model.classes_  # features that are new are ignored


@both
def test_it_learns_what_neighbours_say(estimator):
    X, y = sequences(n=80, longest=8)
    model = estimator(C=1.0).fit(X[:40], y[:40])
    assert model.score(X[40:], y[40:]) > 0.6
    assert np.trace(model.transitions_) > model.transitions_.sum() / 3
    for scores, labels in zip(model.decision_function(X), model.predict(X), strict=True):
        assert model.classes_[scores.argmax(1)].tolist() == labels
        np.testing.assert_allclose(scores.max(1), scores.max())  # each position's best is that of the best labelling
    assert model.score(X, model.predict(X)) == 1.0


def test_probabilities_are_the_marginals_of_the_structure():
    X, y = sequences()
    model = ChainCRFClassifier().fit(X, y)
    features, (_, lengths) = padded(model, X, y)
    scores = features @ torch.tensor(model.coef_.T.copy()), torch.tensor(model.transitions_)
    node, _ = ChainCRF().marginals(scores, lengths=lengths)
    for own, expected in zip(model.predict_proba(X), node, strict=True):
        np.testing.assert_allclose(own, expected[: len(own)], atol=1e-12)


@both
@pytest.mark.parametrize("change", ["nothing", "C", "labels", "features"])
def test_a_warm_start_saves_passes(estimator, change):
    X, y = sequences(n=30)
    model = estimator(C=1.0, warm_start=True, tol=1e-4).fit(X, y)
    if change == "C":
        model.set_params(C=1.05)
    if change == "labels":
        y = [y[0][::-1], *y[1:]]
    if change == "features":
        X = [1.01 * x for x in X]
    model.fit(X, y)
    cold = clone(model).fit(X, y)
    assert model.n_iter_ < cold.n_iter_ or change == "labels"
    assert model.objective_ == pytest.approx(cold.objective_, rel=2e-4)
    if change == "nothing":
        assert model.n_iter_ == 0
    model.fit(X[1:], y[1:])  # other sequences: a cold start
    assert model.dual_gap_ <= 1e-4 * model.objective_


@both
def test_it_is_an_estimator(estimator, capsys):
    X, y = sequences()
    model = estimator(C=0.3, verbose=1).fit(X, y)
    assert "gap=" in capsys.readouterr().err
    assert clone(model).get_params() == model.get_params()
    assert pickle.loads(pickle.dumps(model)).predict(X) == model.predict(X)
    np.testing.assert_array_equal(estimator(C=0.3).fit(X, y).coef_, model.coef_)  # the same order every time
    assert model.__sklearn_tags__().input_tags.sparse
    search = GridSearchCV(estimator(), {"C": [0.01, 1.0]}, cv=3).fit(X, y)
    assert search.best_score_ == pytest.approx(max(search.cv_results_["mean_test_score"]))
    assert len(cross_val_score(make_pipeline(estimator()), X, y, cv=3)) == 3


@both
@pytest.mark.parametrize("labels", [[(0, "a"), (1, "b"), (0, "c")], [1, None, "x"], np.array([3, 1, 2])], ids=str)
def test_labels_are_any_objects(estimator, labels):
    X = [np.eye(3)] * 2
    model = estimator(C=10.0).fit(X, [labels, labels])
    expected = labels.tolist() if isinstance(labels, np.ndarray) else labels
    assert model.predict(X) == [expected] * 2
    assert set(model.classes_) == set(expected)


@both
def test_a_gap_that_is_not_reached_is_said(estimator):
    X, y = sequences(n=40)
    with pytest.warns(ConvergenceWarning, match="stopped after 1 passes"):
        model = estimator(C=10.0, tol=1e-9, max_iter=1).fit(X, y)
    assert model.dual_gap_ > 0


WRONG = {
    "no sequences": (lambda X, y: ([], []), "no sequences"),
    "an empty sequence": (lambda X, y: ([X[0], X[1][:0], *X[2:]], y), "sequence 1 of X is empty"),
    "a sequence too few": (lambda X, y: (X[1:], y), "11 sequences, y has 12"),
    "a label too many": (lambda X, y: (X, [y[0], y[1] + ["label 0"], *y[2:]]), "sequence 1 has .* positions, but"),
    "NaN": (lambda X, y: ([np.nan * X[0], *X[1:]], y), "NaN"),
    "other features": (lambda X, y: ([*X[:-1], X[-1][:, 1:]], y), r"sequence 11 of X has shape .*expected \[T, F\]"),
    "a matrix": (lambda X, y: (X[0], y), r"sequence 0 of X has shape \(4,\)"),
    "NaN in a dict": (lambda X, y: ([[{"a": np.nan} for _ in x] for x in X], y), "NaN"),
}


@both
@pytest.mark.parametrize("name", WRONG)
def test_bad_data_are_an_error_before_anything_changes(estimator, name):
    change, message = WRONG[name]
    model, (X, y) = estimator().fit(*sequences(seed=1)), sequences()
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=message):
        model.fit(*change(X, y))
    assert pickle.dumps(model) == before


@both
def test_bad_options_and_labels_are_errors(estimator):
    X, y = sequences()
    for options, name in [({"C": 0.0}, "C"), ({"C": np.inf}, "C"), ({"tol": -1}, "tol"), ({"max_iter": 0}, "max_iter")]:
        with pytest.raises(ValueError, match=f"{name} is"):
            estimator(**options).fit(X, y)
    with pytest.raises(NotFittedError):
        estimator().predict(X)
    model, dicts = estimator().fit(X, y), [[{"a": 1.0} for _ in x] for x in X]
    with pytest.raises(ValueError, match="label 'unseen', which the fit has not seen"):
        model.score(X, [["unseen"] * len(own) for own in y])
    with pytest.raises(ValueError, match="has 3 features, but the fit had 4"):
        model.predict([x[:, 1:] for x in X])
    with pytest.raises(TypeError, match="X has dicts, but the fit had matrices"):
        model.predict(dicts)
    with pytest.raises(TypeError, match="X has matrices, but the fit had dicts"):
        estimator().fit(dicts, y).predict(X)
    with pytest.raises(TypeError, match="some positions of X are dicts"):
        estimator().fit([*dicts[:-1], X[-1]], y)


@both
def test_data_of_any_scale_are_solved_or_an_error(estimator):
    X, y = sequences()
    for scale in (1e-6, 3.0):
        model = estimator(tol=1e-2, max_iter=3000).fit([scale * x for x in X], y)
        assert model.dual_gap_ <= 1e-2 * model.objective_
    with pytest.raises((ValueError, ConvergenceWarning), match="scale the features"):
        estimator(max_iter=10).fit([1e200 * x for x in X], y)
