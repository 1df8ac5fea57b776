"""What a user of LinearSVM waits for beside the solver: imports, the first fit, parallel searches, other processes.

Digits, beside Crammer and Singer's LinearSVC; the first fit on 1,000 rows. A fit: to within 1e-3 of the best objective,
the median of 20. The search: seven C, five folds. Every measurement is a process of its own, with as many threads as
the libraries choose, and the compiled loops in numba's cache; some beside a process that is always busy.
"""

import importlib
import os
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.common import Options  # which imports torch

MODELS = ("ours", "liblinear")


def model(name: str) -> Any:
    if name == "ours":
        return importlib.import_module("proxsvm.estimators").LinearSVM()
    return importlib.import_module("sklearn.svm").LinearSVC(multi_class="crammer_singer")


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X / 16, y


def begin(name: str) -> dict[str, float]:
    """The import and its memory, and the first fit."""
    began = time.perf_counter()
    if name == "ours":
        import torch  # noqa: F401
    torch_s = time.perf_counter() - began
    made = model(name)
    imported, memory = time.perf_counter() - began, Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    X, y = digits()
    began = time.perf_counter()
    made.fit(X[:1000], y[:1000])
    first = time.perf_counter() - began
    return {"import, s": imported, "of it torch": torch_s, "memory, MB": int(memory) / 1024, "first fit, s": first}


def fits(C: float, name: str) -> dict[str, float]:
    from benchmarks.common import interleaved
    from benchmarks.linear import Case

    case = Case("digits", *digits(), "crammer_singer", C)
    tol: Any = case.loosest(name, case.fit("ours", 1e-6).objective_)
    times = interleaved({name: partial(case.fit, name, tol)}, rounds=20)
    return {f"a fit, C={C}, ms": 1e3 * times[name].median}


def search(jobs: int, name: str) -> dict[str, float]:
    """And once more, when the workers have started."""
    from sklearn.model_selection import GridSearchCV

    from benchmarks.common import interleaved

    grid = GridSearchCV(model(name), {"C": [10 ** (k / 2) for k in range(-6, 1)]}, n_jobs=jobs)
    first, again = interleaved({name: partial(grid.fit, *digits())}, rounds=2)[name].times
    return {f"GridSearchCV, n_jobs={jobs}, s": first, "the same again": again}


def main(options: "Options") -> None:
    from benchmarks.common import in_processes, write

    os.environ.pop("OMP_NUM_THREADS", None)  # of the processes that it starts
    os.environ["PYTHONWARNINGS"] = "ignore"
    in_processes(begin, ["ours"])  # fills numba's cache
    works = [partial(fits, 0.1), partial(fits, 1.0), partial(search, 1), partial(search, 2)]
    works = works[:1] if options.quick else works
    rows: list[dict[str, Any]] = []
    for work, beside in [(begin, "nothing"), *product(works, ("nothing", "a busy process"))]:
        times = 3 if work is begin and not options.quick else 1
        with subprocess.Popen([sys.executable, "-c", "while True: pass" if beside != "nothing" else ""]) as process:
            try:
                found = {name: [in_processes(work, [name])[0] for _ in range(times)] for name in MODELS}
            finally:
                process.kill()
        for what in found["ours"][0]:
            medians = {name: median(each[what] for each in found[name]) for name in MODELS}
            rows.append({"what": what, "beside": beside, **medians})
    write(options, "as_a_user", rows, __doc__ or "")
