"""LinearSVM against liblinear's Crammer-Singer solver: seconds until the primal is within 1e-3 of the best known."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.svm import LinearSVC
from tqdm import tqdm

from benchmarks.common import Options, figure, interleaved, write
from benchmarks.linear import cases, draw_bars, loosest, note
from proxsvm.estimators import LinearSVM
from proxsvm.solvers import BlockFW


def objective(model: Any, X: Any, y: np.ndarray, C: float) -> float:
    """½‖w‖² + C Σ hinge, in float64."""
    w = model.coef_.astype(np.float64)
    scores = np.asarray(X @ w.T)
    correct = scores[np.arange(len(y)), y]
    hinge = (scores + (np.arange(len(w)) != y[:, None])).max(1) - correct
    return float(np.sum(w**2) / 2 + C * hinge.sum())


def liblinear(C: float, tol: float) -> Any:
    return LinearSVC(multi_class="crammer_singer", C=C, tol=tol, fit_intercept=False, max_iter=10_000, random_state=0)


def ours(C: float, tol: float) -> Any:
    return LinearSVM(C=C, tol=tol, fit_intercept=False, max_iter=10_000)


def compile_loops(found: list[Any]) -> None:
    """Outside the timing."""
    compiled = BlockFW(compiled=True)
    for data in (found[0][1][:200], found[2][1][:200], found[0][1][:200].astype(np.float32)):
        LinearSVM(C=10.0, tol=1e-9, max_iter=50, solver=compiled).fit(data, np.arange(200) % 10)


def main(options: Options) -> None:
    warnings.simplefilter("ignore")
    found, missing = cases(options)
    compile_loops(found)
    rows = []
    for title, X, y, C in tqdm(found, desc="against liblinear"):

        def fit(make: Any, tol: float, data: Any = X, y: Any = y, C: float = C) -> Any:
            return make(C, tol).fit(data, y)

        def reached(*given: Any, X: Any = X, y: Any = y, C: float = C, fit: Any = fit) -> float:
            return objective(fit(*given), X, y, C)

        best = min(reached(ours, 1e-6), reached(liblinear, 1e-4))
        theirs_tol, our_tol = (loosest(partial(reached, make), best) for make in (liblinear, ours))
        small = X.astype(np.float32)
        seconds = interleaved(
            {
                "liblinear": partial(fit, liblinear, theirs_tol),
                "LinearSVM": partial(fit, ours, our_tol),
                "float32": partial(fit, ours, our_tol, small),
            },
            max(3, options.repeats),
        )
        rows.append(
            {
                "data": title,
                "C": C,
                "liblinear, s": seconds["liblinear"],
                "LinearSVM, s": seconds["LinearSVM"],
                "ratio": seconds["LinearSVM"] / seconds["liblinear"],
                "LinearSVM float32, s": seconds["float32"],
                "its ratio": seconds["float32"] / seconds["liblinear"],
                "tol of liblinear": theirs_tol,
                "tol of LinearSVM": our_tol,
                "above the best": reached(ours, our_tol) / best - 1,
                "float32 above": reached(ours, our_tol, small) / best - 1,
                "liblinear above": reached(liblinear, theirs_tol) / best - 1,
            }
        )
    write(options, "against_liblinear", rows, note(missing))
    columns = ("liblinear, s", "LinearSVM, s", "LinearSVM float32, s")
    labels = dict(zip(columns, ("liblinear", "LinearSVM", "LinearSVM, float32"), strict=True))
    figure(options, "against_liblinear", lambda fig, ax: draw_bars(ax, rows, labels), figsize=(15, 5))
