"""What a user of LinearSVM waits for beside the solver: imports, the first fit, parallel searches, other processes.

Every measurement is a process of its own, with as many threads as the libraries choose, and the compiled loops in
numba's cache. Beside it, where the table says so, a Python process that is always busy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.common import Options  # which imports torch

MODELS = ("LinearSVM", "LinearSVC")
SIZE = 1000  # rows of the first fit


def model(name: str, **options: Any) -> Any:
    """Crammer and Singer's hinge, of proxsvm or liblinear."""
    if name == "LinearSVM":
        from proxsvm.estimators import LinearSVM

        return LinearSVM(**options)
    from sklearn.svm import LinearSVC

    return LinearSVC(multi_class="crammer_singer", **options)


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X / 16, y


def begin(name: str) -> dict[str, float]:
    """Seconds of the import, its memory in MB, and the seconds of the first fit."""
    began = time.perf_counter()
    if name == "LinearSVM":
        import torch  # noqa: F401
    torch_s = time.perf_counter() - began
    made = model(name)
    imported, memory = time.perf_counter() - began, Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    X, y = digits()
    began = time.perf_counter()
    made.fit(X[:SIZE], y[:SIZE])
    first = time.perf_counter() - began
    return {"import, s": imported, "of it torch": torch_s, "memory, MB": int(memory) / 1024, "first fit, s": first}


def search(name: str, jobs: str) -> dict[str, float]:
    """Seconds of a grid search over seven C, with five folds, and once more, when the workers have started."""
    from sklearn.model_selection import GridSearchCV

    grid, times = GridSearchCV(model(name), {"C": [10 ** (k / 2) for k in range(-6, 1)]}, n_jobs=int(jobs)), []
    for _ in range(2):
        began = time.perf_counter()
        grid.fit(*digits())
        times.append(time.perf_counter() - began)
    return dict(zip((f"GridSearchCV, n_jobs={jobs}, s", "the same again"), times, strict=True))


def fits(name: str, C: str) -> dict[str, float]:
    """Milliseconds of a fit to within 1e-3 of the best objective, the median of 20."""
    from benchmarks.against_liblinear import losses
    from benchmarks.linear import loosest

    X, y = digits()
    options = {"C": float(C), "fit_intercept": False}

    def objective(tol: float, name: str = name) -> float:
        w = model(name, tol=tol, **options).fit(X, y).coef_
        return float((w**2).sum() / 2 + float(C) * losses(X @ w.T, y).sum())

    tol, times = loosest(objective, objective(1e-6, "LinearSVM")), []
    for _ in range(20):
        began = time.perf_counter()
        model(name, tol=tol, **options).fit(X, y)
        times.append(time.perf_counter() - began)
    return {f"a fit, C={C}, ms": 1e3 * median(times)}


@contextmanager
def busy_process(wanted: bool) -> Any:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def run(*words: str) -> dict[str, float]:
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.as_a_user", *words]
    found: dict[str, float] = json.loads(subprocess.check_output(command, text=True, env=env).splitlines()[-1])
    return found


def main(options: Options) -> None:
    from benchmarks.common import write

    acts = [("fits", "0.1"), ("fits", "1"), ("search", "1"), ("search", "2")][: 1 if options.quick else 4]
    times = 1 if options.quick else 3
    run("begin", "LinearSVM")  # fills the cache
    rows: list[dict[str, Any]] = []
    for busy, act, *words in [(False, "begin"), *((False, *act) for act in acts), *((True, *act) for act in acts)]:
        with busy_process(busy):
            runs = {name: [run(act, name, *words) for _ in range(times if act == "begin" else 1)] for name in MODELS}
        for what in runs["LinearSVM"][0]:
            row = {"what": what, "beside a busy process": "yes" if busy else "no"}
            rows.append(row | {name: median(found[what] for found in runs[name]) for name in MODELS})
    note = f"Digits; the first fit on {SIZE} rows. LinearSVC: Crammer and Singer's. Default threads, medians."
    write(options, "as_a_user", rows, note)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
