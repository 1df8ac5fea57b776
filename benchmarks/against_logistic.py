"""LinearSVM(loss=CrossEntropy()) against scikit-learn's LogisticRegression: the same objective, to within 1e-3."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from tqdm import tqdm

from benchmarks.common import Options, figure, interleaved, write
from benchmarks.linear import cases, draw_bars, loosest, note
from proxsvm.estimators import LinearSVM
from proxsvm.losses import CrossEntropy
from proxsvm.solvers import BlockFW

THEIRS = ("lbfgs", "newton-cg")  # newton-cholesky needs a matrix of all weights, sag and saga many more passes


def objective(model: Any, X: Any, y: np.ndarray, C: float) -> float:
    """½‖w‖² + C Σ cross-entropy, in float64."""
    w = model.coef_.astype(np.float64)
    scores = np.asarray(X @ w.T)
    return float(np.sum(w**2) / 2 + C * (logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]).sum())


def theirs(solver: str, C: float, tol: float) -> Any:
    return LogisticRegression(C=C, tol=tol, solver=solver, fit_intercept=False, max_iter=10_000)


def ours(C: float, tol: float) -> Any:
    """Compiled from the first pass: small problems would be interpreted, to save compilation time."""
    solver = BlockFW(compiled=True)
    return LinearSVM(C=C, loss=CrossEntropy(), tol=tol, fit_intercept=False, max_iter=10_000, solver=solver)


def compile_loops(found: list[Any]) -> None:
    """Outside the timing."""
    for data in (found[0][1][:200], found[2][1][:200]):
        model = LinearSVM(C=10.0, loss=CrossEntropy(), tol=1e-9, max_iter=50, solver=BlockFW(compiled=True))
        model.fit(data, np.arange(200) % 10)


def main(options: Options) -> None:
    warnings.simplefilter("ignore")
    found, missing = cases(options)
    compile_loops(found)
    rows = []
    makes = {name: partial(theirs, name) for name in THEIRS} | {"LinearSVM": ours}
    for title, X, y, C in tqdm(found, desc="against LogisticRegression"):

        def fit(name: str, tol: float, X: Any = X, y: Any = y, C: float = C) -> Any:
            return makes[name](C, tol).fit(X, y)

        def reached(name: str, tol: float, X: Any = X, y: Any = y, C: float = C, fit: Any = fit) -> float:
            return objective(fit(name, tol), X, y, C)

        best = min(reached("LinearSVM", 1e-6), reached("lbfgs", 1e-6))
        tols = {name: loosest(partial(reached, name), best) for name in makes}
        seconds = interleaved({name: partial(fit, name, tol) for name, tol in tols.items()}, max(3, options.repeats))
        certified = fit("LinearSVM", tols["LinearSVM"])
        rows.append(
            {"data": title, "C": C}
            | {f"{name}, s": seconds[name] for name in makes}
            | {"ratio to the faster": seconds["LinearSVM"] / min(seconds[name] for name in THEIRS)}
            | {f"tol of {name}": tol for name, tol in tols.items()}
            | {f"{name} above the best": reached(name, tol) / best - 1 for name, tol in tols.items()}
            | {"certified gap of LinearSVM": float(certified.dual_gap_ / certified.objective_)}
        )
    about = " Only LinearSVM knows how far it is from the optimum: its certified gap P − D is given relative to P."
    write(options, "against_logistic", rows, note(missing) + about)
    labels = {f"{name}, s": name if name == "LinearSVM" else f"LogisticRegression, {name}" for name in makes}
    figure(options, "against_logistic", lambda fig, ax: draw_bars(ax, rows, labels), figsize=(15, 5))
