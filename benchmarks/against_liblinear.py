"""LinearSVM against liblinear's Crammer-Singer solver: seconds until the primal is within 1e-3 of the best known."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.svm import LinearSVC

from benchmarks.common import Options
from benchmarks.linear import race
from proxsvm.estimators import LinearSVM


def losses(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The multi-class hinge of each sample."""
    margins = scores + (np.arange(scores.shape[1]) != y[:, None])
    return np.asarray(margins.max(1) - scores[np.arange(len(y)), y])


def liblinear(C: float, tol: float) -> Any:
    return LinearSVC(multi_class="crammer_singer", C=C, tol=tol, fit_intercept=False, max_iter=10_000, random_state=0)


def ours(kind: type[LinearSVM], C: float, tol: float) -> Any:
    return kind(C=C, tol=tol, fit_intercept=False, max_iter=10_000)


class Float32(LinearSVM):
    """Our estimator on float32 features, which liblinear does not have."""

    def fit(self, X: Any, y: Any) -> Any:
        return super().fit(X.astype(np.float32), y)


def main(options: Options) -> None:
    makes = {"liblinear": liblinear, "LinearSVM": partial(ours, LinearSVM), "LinearSVM float32": partial(ours, Float32)}
    race(options, "against_liblinear", losses, makes)
