"""Seconds to a relative gap of 1e-3 on tables of every kind, certified by ours, beside scikit-learn's solvers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes, load_digits, load_wine, make_classification, make_regression
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR as SklearnSVR
from tqdm import tqdm

from benchmarks import against_liblinear, against_logistic
from benchmarks.common import Options, write
from benchmarks.linear import WITHIN, text_like
from proxsvm.estimators import LinearSVM, LinearSVR

LIMIT = 5.0  # seconds for a fit of scikit-learn's
COMMON = {"fit_intercept": False, "max_iter": 10_000}


def absolute(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The loss of support vector regression without a band."""
    return np.asarray(np.abs(scores - y[:, None]))


CLASSES = {
    "crammer_singer": (
        against_liblinear.losses,
        {"liblinear": partial(LinearSVC, multi_class="crammer_singer", random_state=0, **COMMON)},
    ),
    "log_loss": (
        against_logistic.losses,
        {name: partial(LogisticRegression, solver=name, **COMMON) for name in against_logistic.THEIRS},
    ),
}
REAL = {"epsilon_insensitive": (absolute, {"liblinear": partial(SklearnSVR, random_state=0, **COMMON)})}


def tables(options: Options) -> dict[str, tuple[Any, np.ndarray, bool]]:
    """Title → X, y and whether y is real."""
    n = 2000 if options.quick else 20_000
    X, y = make_classification(n, 20, n_informative=10, n_classes=3, random_state=0)
    wide = make_classification(200, 1000, n_informative=30, n_classes=3, random_state=0)
    digits, wine = load_digits(return_X_y=True), load_wine(return_X_y=True)
    found = {
        "tall": (scale(X), y, False),
        "wide": (scale(wide[0]), wide[1], False),
        "dense (digits)": (scale(digits[0]), digits[1], False),
        "dense (wine)": (scale(wine[0]), wine[1], False),
        "sparse (text-like)": (*text_like(n // 4), False),
        "unscaled (wine)": (*wine, False),
        "tall, real y": (*make_regression(n, 20, noise=10.0, random_state=0), True),
        "unscaled, real y (diabetes)": (*load_diabetes(return_X_y=True, scaled=False), True),
    }
    housing = options.data / "cal_housing.data"
    if housing.exists():
        rows = np.loadtxt(housing, delimiter=",")
        found["unscaled, real y (California)"] = rows[:, :8], rows[:, 8] / 1e5, True
    return found


def timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    model = fit()
    return model, time.perf_counter() - began


def main(options: Options) -> None:
    warnings.simplefilter("ignore")
    rows = []
    for title, (X, y, real) in tqdm(tables(options).items(), desc="which_estimator"):
        make: Any = LinearSVR if real else LinearSVM
        for loss, (losses, theirs) in (REAL if real else CLASSES).items():
            for C in (0.01, 1.0, 100.0):
                ours = partial(make, C=C, loss=loss, tol=WITHIN, **COMMON)
                ours(max_iter=2).fit(X, y)  # loads the compiled loops
                model, seconds = min(
                    (timed(lambda f=ours, X=X, y=y: f().fit(X, y)) for _ in range(3)), key=lambda r: r[1]
                )
                row = {"data": title, "rows × features": f"{X.shape[0]:,} × {X.shape[1]:,}", "loss": loss, "C": C}
                row |= {"ours, s": seconds, "certified gap": float(model.dual_gap_ / model.objective_)}
                for name, other in theirs.items():
                    row["the other"], row["its s"] = fastest(other, C, X, y, losses, model.objective_, row, name)
                rows.append(row)
    note = (
        f"Seconds until the objective is within {WITHIN:g} of the best: ours at that certified relative gap, "
        f"scikit-learn's at the loosest tolerance (a grid of decades) that reaches the same objective; inf where no "
        f"fit within {LIMIT:g} s does. No intercept."
    )
    write(options, "which_estimator", rows, note)


def fastest(
    make: Any, C: float, X: Any, y: np.ndarray, losses: Any, goal: float, row: dict[str, Any], name: str
) -> tuple[str, float]:
    """The faster of the solver that ``row`` has already and of this one, to the objective ``goal``."""
    best = row.get("the other", name), row.get("its s", float("inf"))
    for tol in 10.0 ** -np.arange(7):
        model, seconds = timed(lambda tol=tol: make(C=C, tol=tol).fit(X, y))
        w = np.atleast_2d(model.coef_)
        reached = np.sum(w**2) / 2 + C * losses(np.asarray(X @ w.T), y).sum() <= goal * (1 + WITHIN)
        if reached and seconds < best[1]:
            best = name, seconds
        if reached or seconds > LIMIT:
            break
    return best
