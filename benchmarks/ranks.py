"""LinearSVM on 1, 2 and 4 ranks by gloo, beside scikit-learn, and liblinear-multicore and Spark (the extra "cluster").

Every solver and every rank runs in a process of its own. The time of the others is that of the loosest of four settings
whose objective is within the gap of the best known (none is tried after one that takes more than 100 s); Spark's is a
fit on cached data, after the start of the JVM. What was measured is kept in --out: a run that was interrupted
continues.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch.distributed as dist
from scipy import sparse
from scipy.special import logsumexp
from sklearn.datasets import dump_svmlight_file
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from benchmarks.common import Options, write
from benchmarks.linear import snli, text_like
from proxsvm.estimators import LinearSVM
from proxsvm.solvers import BlockFW

C, RANKS, GAPS = 1.0, (1, 2, 4), (1e-2, 1e-3)
LIMIT = 100.0  # seconds of a fit of the others
NETWORKS = {"1 Gbit/s": (1.25e8, 1e-4), "10 Gbit/s": (1.25e9, 5e-5)}  # bytes per second, seconds of latency
MISSING = "not installed"
COLUMNS = "rounds to 1e-2", "rounds to 1e-3", "seconds to 1e-2", "seconds to 1e-3"

Fit = Callable[[int], Any]  # the weights [K, F] at one of four settings, the loosest first


def load(folder: str) -> tuple[Any, np.ndarray]:
    return sparse.load_npz(f"{folder}/X.npz"), np.load(f"{folder}/y.npy")


def on_rank(folder: str, loss: str, world: int, rank: int) -> dict[str, Any]:
    """Fit this rank's rows to the smallest gap; the rounds and seconds to each, and the CPU time of a round."""
    X, y = load(folder)
    X, y, classes = X[rank::world], y[rank::world], int(y.max()) + 1
    dist.init_process_group("gloo", f"file://{folder}/store-{world}", rank=rank, world_size=world)
    options: dict[str, Any] = {"C": C, "loss": loss, "fit_intercept": False, "process_group": "default"}
    LinearSVM(tol=0.5, **options).fit(X[:100], np.arange(100) % classes)  # compiles
    trace: list[Any] = []
    began, busy = time.perf_counter(), time.process_time()
    model = LinearSVM(tol=min(GAPS), solver=BlockFW(callback=trace.append), **options).fit(X, y)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    dist.destroy_process_group()
    at = [next((t for t in trace if t.gap <= gap * t.primal), trace[-1]) for gap in GAPS]
    found = [*(t.step + 1 for t in at), *(t.seconds + seconds - trace[-1].seconds for t in at)]  # with the validation
    size = (1 if loss == "hinge" else classes) * X.shape[1] * X.dtype.itemsize + 24
    return {"found": found, "bytes": size, "objective": model.objective_, "busy": busy / len(trace)}


def scikit(X: Any, y: np.ndarray, loss: str, _: str) -> Fit:
    def fit(setting: int) -> Any:
        options = {"C": C, "tol": 10.0**-setting, "fit_intercept": False, "max_iter": 1000}
        model = LinearSVC(loss="hinge", **options) if loss == "hinge" else LogisticRegression(solver="saga", **options)
        return model.fit(X, y).coef_

    return fit


def multicore(X: Any, y: np.ndarray, loss: str, _: str) -> Fit:
    """Two threads; it has no multinomial logistic regression."""
    from liblinear.liblinearutil import train

    def fit(setting: int) -> Any:
        model = train(2 * y - 1.0, X, f"-s 3 -m 2 -q -c {C} -e {10.0**-setting}")
        return model.get_labels()[0] * np.array(model.w[: X.shape[1]])[None]

    return fit


def spark(X: Any, y: np.ndarray, loss: str, folder: str) -> Fit:
    """MLlib minimises the mean loss + ½ λ ‖w‖², so λ = 1/(C n)."""
    from pyspark.ml import classification
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "8g").getOrCreate()
    dump_svmlight_file(X, y, f"{folder}/rows.svm", zero_based=False)
    frame = session.read.format("libsvm").option("numFeatures", X.shape[1]).load(f"{folder}/rows.svm")
    frame = frame.repartition(2).cache()
    frame.count()

    def fit(setting: int) -> Any:
        steps = [10, 30, 100, 300][setting - 1]
        options = {"maxIter": steps, "regParam": 1 / (C * len(y)), "fitIntercept": False, "standardization": False}
        if loss == "hinge":
            return classification.LinearSVC(tol=0.0, **options).fit(frame).coefficients.toArray()[None]
        logistic = classification.LogisticRegression(tol=0.0, family="multinomial", **options)
        return logistic.fit(frame).coefficientMatrix.toArray()

    return fit


def times(solver: Callable[..., Fit], folder: str, loss: str, best: float, _: int) -> list[float | None]:
    """Seconds of the first of four settings that reaches each gap; None where none does."""
    X, y = load(folder)
    fit = solver(X, y, loss, folder)
    found: list[float | None] = []
    seconds = 0.0
    for setting in (1, 2, 3, 4):
        if len(found) == len(GAPS) or seconds > LIMIT:
            break
        began = time.perf_counter()
        W = fit(setting)
        seconds, u = time.perf_counter() - began, np.asarray(X @ W.T)
        own = u[np.arange(len(y)), y] if loss == "log_loss" else (2 * y - 1) * u[:, 0]
        losses = logsumexp(u, axis=1) - own if loss == "log_loss" else np.maximum(0, 1 - own)
        while len(found) < 2 and (W**2).sum() / 2 + C * losses.sum() <= best * (1 + GAPS[len(found)]):
            found.append(seconds)
    return [*found, None, None][:2]


def run(several: int, work: Callable[[int], Any]) -> Any:
    """``work(rank)`` in ``several`` fresh processes, each with one thread; what the first returns."""
    with ProcessPoolExecutor(several, get_context("spawn")) as processes:
        first, *_ = processes.map(work, range(several))
    return first


def main(options: Options) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}  # of the processes that it starts
    n = 20_000 if options.quick else 1_000_000
    real = snli(options.data / "snli_1.0", 2000 if options.quick else 10_000)
    sets = {"SNLI": real, f"text-like (synthetic), {n:,} rows": text_like(n, words=30, classes=5)}
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / f"ranks_parts{n}.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    found = {key: x for key, x in found.items() if MISSING not in x["found"]}
    for title, data, loss in ((*item, loss) for item in sets.items() if item[1] for loss in ("hinge", "log_loss")):
        with tempfile.TemporaryDirectory() as folder:
            sparse.save_npz(f"{folder}/X.npz", data[0], compressed=False)
            np.save(f"{folder}/y.npy", (data[1] == 0).astype(np.int64) if loss == "hinge" else data[1])  # two classes
            for who in (*RANKS, scikit, *([multicore] if loss == "hinge" else []), spark):
                key = f"{title}|{loss}|{getattr(who, '__name__', who)}"
                if key in found:
                    continue
                if isinstance(who, int):
                    found[key] = run(who, partial(on_rank, folder, loss, who))
                else:
                    best = min(found[f"{title}|{loss}|{R}"]["objective"] for R in RANKS)
                    try:
                        seconds = run(1, partial(times, who, folder, loss, best))
                    except ModuleNotFoundError:
                        seconds = [MISSING] * 2
                    found[key] = {"found": ["", "", *seconds]}
                kept.write_text(json.dumps(found))
    report(options, found, bool(real))


def report(options: Options, found: dict[str, Any], real: bool) -> None:
    rows: list[dict[str, Any]] = []
    model: list[dict[str, Any]] = []
    names = {"multicore": "liblinear-multicore, 2 threads", "spark": "Spark MLlib, local[2]"}
    for key, x in found.items():
        title, loss, who = key.split("|")
        case, R = {"data": title, "loss": loss}, int(who) if who.isdigit() else None
        name = f"LinearSVM, {who} ranks" if R else names.get(who, "liblinear" if loss == "hinge" else "saga")
        columns = ["not reached" if value is None else value for value in x["found"]]
        rows.append(
            {**case, "solver": name, "bytes of a round": x.get("bytes", ""), **dict(zip(COLUMNS, columns, strict=True))}
        )
        for network, (bandwidth, latency) in NETWORKS.items() if R else ():
            ring = 2 * (R - 1) / R * x["bytes"] / bandwidth + 2 * (R - 1) * latency
            parts = {"CPU time of a round": x["busy"], "its sum": ring}
            seconds = {"rounds": x["found"][1], "seconds to 1e-3": x["found"][1] * sum(parts.values())}
            model.append(case | {"machines": R, "network": network} | parts | seconds)
    note = f"C = {C}, no intercept; ranks share {os.cpu_count()} cores."
    write(options, "ranks", rows, note if real else f"{note} SNLI is missing in --data.")
    write(options, "ranks_model", model, "A model of machines with one core: rounds × (CPU time + a ring all-reduce).")
