"""CPU time to a relative gap of 1e-3 on tables of every kind, certified by ours, beside scikit-learn's solvers.

Each table with every loss and C from 1e-3 to 1e3. Others run in a process of their own, which is ended after 5 s.
What was measured is kept in --out: a run that was interrupted continues.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import time
import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from sklearn.svm import LinearSVC
from sklearn.svm import LinearSVR as SklearnSVR
from tqdm import tqdm

from benchmarks import against_liblinear, against_logistic
from benchmarks.common import Options, write
from benchmarks.linear import WITHIN, text_like
from proxsvm.estimators import LinearSVM, LinearSVR
from proxsvm.estimators.linear_svm import OF_CLASSES

LIMIT = 5  # CPU seconds for a fit of scikit-learn's
COMMON = {"fit_intercept": False, "max_iter": 100_000}
SVC, SVR = partial(LinearSVC, random_state=0, **COMMON), partial(SklearnSVR, random_state=0, **COMMON)


def of_labels(power: int, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The hinge, or its square, of each class against the rest."""
    K = scores.shape[1]
    signs = 2 * (y[:, None] == (np.arange(K) if K > 1 else 1)) - 1
    return np.asarray(np.maximum(0, 1 - signs * scores) ** power)


def regression(power: int, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Without a band."""
    return np.asarray(np.abs(scores - y[:, None]) ** power)


# Loss → that of each sample, and the others' estimators, called with C and tol.
LOSSES: dict[str, Any] = {
    "log_loss": (
        against_logistic.losses,
        {name: partial(LogisticRegression, solver=name, **COMMON) for name in against_logistic.THEIRS},
    ),
    "crammer_singer": (against_liblinear.losses, {"liblinear": partial(SVC, multi_class="crammer_singer")}),
    "epsilon_insensitive": (partial(regression, 1), {"liblinear": SVR}),
    "hinge": (partial(of_labels, 1), {"liblinear": partial(SVC, loss="hinge")}),
    "squared_hinge": (partial(of_labels, 2), {"liblinear": partial(SVC, loss="squared_hinge")}),
    "weston_watkins": (None, {}),
    "squared_epsilon_insensitive": (
        partial(regression, 2),
        {"liblinear": partial(SVR, loss="squared_epsilon_insensitive")},
    ),
}


def mixed_scales(real: bool) -> tuple[np.ndarray, np.ndarray]:
    """Columns of the scales 1e-4 to 1e4."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((400, 12))
    scores = Z @ rng.standard_normal((12, 3)) + rng.standard_normal((400, 3))
    return Z * np.logspace(-4, 4, 12), scores[:, 0] if real else scores.argmax(1)


def tables(options: Options) -> dict[str, tuple[Any, np.ndarray, bool]]:
    """Title → X, y and whether y is real."""
    n = 2000 if options.quick else 20_000
    X, y = make_classification(n, 20, n_informative=10, n_classes=3, random_state=0)
    ten = make_classification(n // 4, 100, n_informative=30, n_classes=10, random_state=0)
    wide = make_classification(200, 1000, n_informative=30, n_classes=3, random_state=0)
    digits, wine, cancer, iris = (
        getattr(datasets, f"load_{name}")(return_X_y=True) for name in ("digits", "wine", "breast_cancer", "iris")
    )
    found = {
        "unscaled (breast cancer)": (*cancer, False),
        "unscaled (wine)": (*wine, False),
        "unscaled (synthetic)": (*mixed_scales(False), False),
        "unscaled, real y (diabetes)": (*datasets.load_diabetes(return_X_y=True, scaled=False), True),
        "unscaled, real y (synthetic)": (*mixed_scales(True), True),
        "dense (iris)": (scale(iris[0]), iris[1], False),
        "dense (wine)": (scale(wine[0]), wine[1], False),
        "dense (breast cancer)": (scale(cancer[0]), cancer[1], False),
        "dense (digits)": (scale(digits[0]), digits[1], False),
        "dense, ten classes": (scale(ten[0]), ten[1], False),
        "tall": (scale(X), y, False),
        "wide": (scale(wide[0]), wide[1], False),
        "sparse (text-like)": (*text_like(n // 4), False),
        "tall, real y": (*make_regression(n, 20, noise=10.0, random_state=0), True),
    }
    housing = options.data / "cal_housing.data"
    if housing.exists():
        rows = np.loadtxt(housing, delimiter=",")
        found["unscaled, real y (California)"] = rows[:, :8], rows[:, 8] / 1e5, True
    return found


def timed(make: Any, X: Any, y: np.ndarray) -> tuple[Any, float]:
    """A fitted model, and the CPU seconds of the fastest of up to twenty fits, which take 0.5 s together."""
    times: list[float] = []
    while not times or (sum(times) < 0.5 and len(times) < 20):
        began = time.thread_time()
        model = make().fit(X, y)
        times.append(time.thread_time() - began)
    return model, min(times)


def main(options: Options) -> None:
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / f"which_estimator_parts{'_quick' * options.quick}.json"
    rows: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    grid = 10.0 ** np.arange(-3, 4, 3 if options.quick else 1)
    cases = [
        (loss, title, X, y, real, C)
        for loss in LOSSES
        for title, (X, y, real) in tables(options).items()
        for C in grid
        if real == (loss in LinearSVR.losses)
    ]
    for loss, title, X, y, real, C in tqdm(cases, desc="which_estimator"):
        key = f"{title}|{loss}|{C:g}"
        if key not in rows:
            rows[key] = cell(X, y, real, loss, C)
            kept.write_text(json.dumps(rows))
    report(options, rows)


def report(options: Options, rows: dict[str, dict[str, float]]) -> None:
    """A row for each loss and table, a column for each C."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for key, x in rows.items():
        title, loss, C = key.split("|")
        line = lines.setdefault((title, loss), {"loss": loss, "data": title, "largest gap": 0.0})
        line["largest gap"] = max(line["largest gap"], x["gap"])
        line[f"C = {C}"] = milliseconds(x["ours"]) + (f" / {milliseconds(x['theirs'])}" if LOSSES[loss][1] else "")
    note = (
        f"Milliseconds of CPU time until the objective is within {WITHIN:g} of the best: ours at that certified "
        "relative gap / scikit-learn's faster solver, at the loosest tolerance (half decades) whose objective is "
        f"within {WITHIN:g} of ours; – where none is in {LIMIT} s. No intercept."
    )
    write(options, "which_estimator", list(lines.values()), note)


def milliseconds(seconds: float) -> str:
    """Two digits, or a whole number.

    >>> milliseconds(0.00123), milliseconds(0.123), milliseconds(float("inf"))
    ('1.2', '123', '–')
    """
    if seconds == float("inf"):
        return "–"
    return f"{1e3 * seconds:.2g}" if seconds < 0.01 else f"{1e3 * seconds:.0f}"


def cell(X: Any, y: np.ndarray, real: bool, loss: str, C: float) -> dict[str, float]:
    """Our seconds and gap, and the seconds of the fastest of the others."""
    losses, theirs = LOSSES[loss]
    ours = partial(LinearSVR if real else LinearSVM, C=C, loss=loss, tol=WITHIN, fit_intercept=False, max_iter=10_000)
    ours(max_iter=2).fit(X, y)  # loads the compiled loops
    model, seconds = timed(ours, X, y)
    pair = not real and loss in OF_CLASSES and len(np.unique(y)) == 2  # w = w₁ − w₀
    double = 2 if pair and loss == "log_loss" else 1  # LogisticRegression has ½‖w‖², ours ½‖w₀‖² + ½‖w₁‖² = ¼‖w‖²
    best = float("inf")
    for make in theirs.values():
        for tol in 10.0 ** (-np.arange(0, 15) / 2):
            w, its = within_limit(partial(make, C=double * C, tol=tol), X, y)
            if w is None:
                break
            w = np.vstack([-w / 2, w / 2]) if pair else w
            value = np.sum(w**2) / 2 + C * losses(np.asarray(X @ w.T), y).sum()
            if value <= model.objective_ * (1 + WITHIN):
                best = min(best, its)
                break
    return {"ours": seconds, "theirs": best, "gap": float(model.dual_gap_ / model.objective_)}


def within_limit(make: Any, X: Any, y: np.ndarray) -> tuple[Any, float]:
    """The weights and CPU seconds of a fit; None where it takes longer than the limit."""
    here, there = multiprocessing.Pipe(duplex=False)

    def fit() -> None:
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))  # the kernel ends it then
        model, seconds = timed(make, X, y)
        there.send((np.atleast_2d(model.coef_), seconds))

    process = multiprocessing.get_context("fork").Process(target=fit)
    process.start()
    there.close()
    try:
        found: tuple[Any, float] = here.recv()
    except EOFError:
        found = None, float("inf")
    process.join()
    return found
