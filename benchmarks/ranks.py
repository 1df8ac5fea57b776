"""LinearSVM on 1, 2 and 4 ranks by gloo, beside scikit-learn's solvers, liblinear-multicore and Spark.

Every solver and every rank runs in a process of its own; the ranks share the cores. Ours: rounds and seconds until the
certified gap. The others: seconds of the loosest of four settings whose objective is within the gap of our best; none
is tried after one that takes more than 100 s (–: not reached). Spark's: on cached data, after the start of the JVM.
C = 1, no intercept; SNLI if --data has it. ``ranks_model`` is a model of machines with one core. What was measured is
kept in --out until the table is complete: a run that was interrupted continues.
"""

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import torch.distributed as dist
from pandas import DataFrame
from scipy import sparse
from sklearn import linear_model, svm
from sklearn.datasets import dump_svmlight_file

from benchmarks.common import Options, in_processes, kept, write
from benchmarks.linear import Case, snli, text_like
from proxsvm.estimators import LinearSVM
from proxsvm.solvers import BlockFW

GAPS = (1e-2, 1e-3)
NETWORKS = {"1 Gbit/s": (1.25e8, 1e-4), "10 Gbit/s": (1.25e9, 5e-5)}  # bytes per second, seconds of latency
Fit = Callable[[int], Any]  # the weights [K, F] at one of four settings, the loosest first


def stored(folder: str, loss: str) -> Case:
    return Case("", sparse.load_npz(f"{folder}/X.npz"), np.load(f"{folder}/y.npy"), loss, C=1.0)


def on_rank(folder: str, loss: str, world: int, rank: int) -> dict[str, Any]:
    """Fit this rank's rows to the smallest gap; the rounds and seconds to each, and the CPU time of a round."""
    case = stored(folder, loss)
    X, y, classes = case.X[rank::world], case.y[rank::world], int(case.y.max()) + 1
    dist.init_process_group("gloo", f"file://{folder}/store-{world}", rank=rank, world_size=world)
    options: dict[str, Any] = {"C": case.C, "loss": loss, "fit_intercept": False, "process_group": "default"}
    LinearSVM(tol=0.5, **options).fit(X[:100], np.arange(100) % classes)  # loads the compiled loops
    trace: list[Any] = []
    began, busy = time.perf_counter(), time.process_time()
    model = LinearSVM(tol=min(GAPS), solver=BlockFW(callback=trace.append), **options).fit(X, y)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    dist.destroy_process_group()
    size = (1 if loss == "hinge" else classes) * X.shape[1] * X.dtype.itemsize + 24
    found = {
        "ranks": world,
        "objective": model.objective_,
        "CPU time of a round": busy / len(trace),
        "bytes of a round": size,
    }
    for gap in GAPS:
        first = next((t for t in trace if t.gap <= gap * t.primal), trace[-1])
        found[f"rounds to {gap:g}"] = first.step + 1
        found[f"seconds to {gap:g}"] = first.seconds + seconds - trace[-1].seconds  # with the validation of the data
    return found


def scikit(case: Case, _: str) -> Fit:
    given = {"C": case.C, "fit_intercept": False, "max_iter": 1000}
    hinge, saga = partial(svm.LinearSVC, loss="hinge"), partial(linear_model.LogisticRegression, solver="saga")
    make = hinge if case.loss == "hinge" else saga
    return lambda setting: make(tol=10.0**-setting, **given).fit(case.X, case.y).coef_


def multicore(case: Case, _: str) -> Fit:
    """Two threads; it has no multinomial logistic regression."""
    from liblinear.liblinearutil import train

    def fit(setting: int) -> Any:
        model = train(2 * case.y - 1.0, case.X, f"-s 3 -m 2 -q -c {case.C} -e {10.0**-setting}")
        return model.get_labels()[0] * np.array(model.w[: case.X.shape[1]])[None]

    return fit


def spark(case: Case, folder: str) -> Fit:
    """MLlib, local[2]; it minimises the mean loss + ½ λ ‖w‖², so λ = 1/(C n)."""
    from pyspark.ml.classification import LinearSVC, LogisticRegression
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "8g").getOrCreate()
    dump_svmlight_file(case.X, case.y, f"{folder}/rows.svm", zero_based=False)
    frame = session.read.format("libsvm").option("numFeatures", case.X.shape[1]).load(f"{folder}/rows.svm")
    frame = frame.repartition(2).cache()
    frame.count()
    given = {"tol": 0.0, "regParam": 1 / (case.C * len(case.y)), "fitIntercept": False, "standardization": False}

    def fit(setting: int) -> Any:
        steps = {"maxIter": [10, 30, 100, 300][setting - 1]}
        if case.loss == "hinge":
            return LinearSVC(**steps, **given).fit(frame).coefficients.toArray()[None]
        return LogisticRegression(family="multinomial", **steps, **given).fit(frame).coefficientMatrix.toArray()

    return fit


def seconds_to(solver: Callable[[Case, str], Fit], folder: str, loss: str, best: float) -> dict[str, float]:
    """Of the first of four settings that reaches each gap."""
    case, found = stored(folder, loss), {}
    fit = solver(case, folder)
    for setting in (1, 2, 3, 4):
        began = time.perf_counter()
        W = fit(setting)
        seconds, above = time.perf_counter() - began, case.objective(W) / best - 1
        found = {f"seconds to {gap:g}": seconds for gap in GAPS if above <= gap} | found
        if above <= min(GAPS) or seconds > 100:
            break
    return found


def main(options: Options) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}  # of the processes that it starts
    n, ranks = (20_000, (1, 2)) if options.quick else (1_000_000, (1, 2, 4))
    sets = {f"text-like (synthetic), {n:,} rows": text_like(n, words=30, classes=5)}
    if (options.data / "snli_1.0").exists():
        sets["SNLI"] = snli(options, 2000 if options.quick else 10_000)
    others = {"hinge": [scikit, multicore, spark], "log_loss": [scikit, spark]}
    missing = [f.__name__ for f, module in ((multicore, "liblinear"), (spark, "pyspark")) if find_spec(module) is None]
    parts, rows = options.out / f"ranks_parts_{n}.json", []
    for (title, (X, y)), loss in product(sets.items(), others):
        with tempfile.TemporaryDirectory() as folder:
            sparse.save_npz(f"{folder}/X.npz", X, compressed=False)
            np.save(f"{folder}/y.npy", (y == 0).astype(np.int64) if loss == "hinge" else y)  # two classes

            def run(name: str, work: Any, each: Any, case: tuple[str, str] = (title, loss)) -> Any:
                found = kept(parts, "|".join((*case, name)), lambda: in_processes(work, each)[0])
                rows.append({"data": case[0], "loss": case[1], "solver": name, **found})
                return found

            ours = [run(f"LinearSVM, ranks: {R}", partial(on_rank, folder, loss, R), range(R)) for R in ranks]
            best = min(found["objective"] for found in ours)
            for solver in (solver for solver in others[loss] if solver.__name__ not in missing):
                run(solver.__name__, partial(seconds_to, solver, folder, loss), [best])
    frame = DataFrame(rows)
    note = f"Not installed (the extra cluster), and so left out: {', '.join(missing)}." if missing else ""
    write(options, "ranks", frame.drop(columns=["objective", "ranks", "CPU time of a round"]), f"{__doc__}\n{note}")
    model, R = frame.dropna().drop(columns=["objective", "solver"]), frame.ranks
    for network, (bandwidth, latency) in NETWORKS.items():
        ring = 2 * (1 - 1 / R) * frame["bytes of a round"] / bandwidth + 2 * (R - 1) * latency
        model[network] = frame["rounds to 0.001"] * (frame["CPU time of a round"] + ring)
    write(options, "ranks_model", model, "Seconds to 1e-3: rounds × (CPU time of a round + a ring all-reduce).")
    parts.unlink()
