"""LinearSVM(loss="log_loss") against scikit-learn's LogisticRegression: the same objective, to within 1e-3."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from benchmarks.common import Options
from benchmarks.linear import race
from proxsvm.estimators import LinearSVM

THEIRS = ("lbfgs", "newton-cg")  # newton-cholesky needs a matrix of all weights, sag and saga many more passes


def losses(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The cross-entropy of each sample."""
    return np.asarray(logsumexp(scores, axis=1) - scores[np.arange(len(y)), y])


def theirs(solver: str, C: float, tol: float) -> Any:
    return LogisticRegression(C=C, tol=tol, solver=solver, fit_intercept=False, max_iter=10_000)


def ours(C: float, tol: float) -> Any:
    return LinearSVM(C=C, loss="log_loss", tol=tol, fit_intercept=False, max_iter=10_000)


def main(options: Options) -> None:
    makes = {name: partial(theirs, name) for name in THEIRS} | {"LinearSVM": ours}
    race(options, "against_logistic", losses, makes)
