"""LinearSVM on 1, 2 and 4 ranks by gloo, beside scikit-learn's solvers and Spark MLlib: time to the same objective.

Every solver runs in a process of its own (each rank in one), because Spark and OpenMP keep their threads. The time of
the others is that of the cheapest setting, out of a few, whose objective is within the stated distance of the best known;
Spark's is its fit on cached data, after the start of the JVM.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from benchmarks.common import Options, write
from benchmarks.linear import snli, text_like

GAPS = 1e-2, 1e-3
NETWORKS = {"1 Gbit/s": (1.25e8, 1e-4), "10 Gbit/s": (1.25e9, 5e-5), "100 Gbit/s": (1.25e10, 2e-5)}  # bytes/s, latency


def objective(W: np.ndarray, X: Any, y: np.ndarray, C: float, loss: str) -> float:
    """½‖W‖² + C Σℓ; W has one row for two classes."""
    u = np.asarray(X @ W.T)
    if loss == "hinge":
        return float((W**2).sum() / 2 + C * np.maximum(0, 1 - (2 * y - 1) * u[:, 0]).sum())
    return float((W**2).sum() / 2 + C * (logsumexp(u, axis=1) - u[np.arange(len(y)), y]).sum())


def load(folder: Path) -> tuple[Any, np.ndarray]:
    return sparse.load_npz(folder / "X.npz"), np.load(folder / "y.npy")


def on_rank(folder: Path, rank: int, world: int, C: float, loss: str) -> dict[str, Any]:
    """Fit this rank's rows to the smallest gap; when each of the gaps was reached, and after how many rounds."""
    import torch.distributed as dist

    from proxsvm.estimators import LinearSVM
    from proxsvm.solvers import BlockFW

    X, y = load(folder)
    X, y = X[rank::world], y[rank::world]
    store, limit = f"file://{folder}/store-{loss}-{world}", datetime.timedelta(minutes=10)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=limit)
    options: dict[str, Any] = {"C": C, "loss": loss, "fit_intercept": False, "process_group": "default"}
    LinearSVM(tol=0.5, **options).fit(X[:100], np.arange(100) % (y.max() + 1))  # compiles
    trace: list[Any] = []
    began = time.perf_counter()
    model = LinearSVM(tol=min(GAPS), solver=BlockFW(callback=trace.append), **options).fit(X, y)
    seconds = time.perf_counter() - began
    at = [next(t for t in trace if t.gap <= gap * t.primal or t is trace[-1]) for gap in GAPS]
    offset = seconds - trace[-1].seconds  # validation and the first sums, which the trace does not see
    dist.destroy_process_group()
    size = model.coef_.nbytes if loss == "hinge" else X.shape[1] * (int(y.max()) + 1) * X.dtype.itemsize
    found = [{"rounds": t.step + 1, "seconds": t.seconds + offset} for t in at]
    return {"at": found, "bytes": size + 24, "objective": model.objective_, "compute": seconds / len(trace)}


def scikit(folder: Path, C: float, loss: str, best: float) -> list[float | None]:
    """Seconds to each gap."""
    X, y = load(folder)
    found: list[float | None] = []
    for gap in GAPS:
        for tol in (1e-1, 1e-2, 1e-3, 1e-4):
            model: Any = LinearSVC(loss="hinge", C=C, tol=tol, fit_intercept=False, max_iter=3000)
            if loss != "hinge":
                model = LogisticRegression(C=C, tol=tol, solver="saga", fit_intercept=False, max_iter=100)
            began = time.perf_counter()
            model.fit(X, y)
            seconds = time.perf_counter() - began
            if reached := objective(model.coef_, X, y, C, loss) <= best * (1 + gap):
                break
        found.append(seconds if reached else None)
    return found


def spark(folder: Path, C: float, loss: str, best: float) -> list[float | None]:
    """MLlib minimises the mean loss + ½ λ ‖w‖², so λ = 1/(C n)."""
    from pyspark.ml import classification
    from pyspark.ml.linalg import SparseVector
    from pyspark.sql import SparkSession

    X, y = load(folder)
    session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "6g").getOrCreate()
    ends = zip(X.indptr, X.indptr[1:], strict=False)
    rows = [(float(t), SparseVector(X.shape[1], X.indices[a:b], X.data[a:b])) for t, (a, b) in zip(y, ends, strict=True)]
    frame = session.createDataFrame(rows, ["label", "features"]).repartition(2).cache()
    frame.count()
    found: list[float | None] = []
    for gap in GAPS:
        for steps in (10, 30, 100, 300):
            options = {"maxIter": steps, "regParam": 1 / (C * len(y)), "fitIntercept": False, "standardization": False}
            make = classification.LinearSVC if loss == "hinge" else classification.LogisticRegression
            more = {} if loss == "hinge" else {"family": "multinomial"}
            began = time.perf_counter()
            model = make(tol=0.0, **options, **more).fit(frame)
            seconds = time.perf_counter() - began
            W = model.coefficients.toArray()[None] if loss == "hinge" else model.coefficientMatrix.toArray()
            if reached := objective(W, X, y, C, loss) <= best * (1 + gap):
                break
        found.append(seconds if reached else None)
    session.stop()
    return found


def run(words: list[Any], several: int = 1) -> list[Any]:
    """What ``several`` processes of this file print."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.ranks"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    started = [subprocess.Popen([*command, *map(str, words), str(rank)], **pipes) for rank in range(several)]
    ended = [process.communicate() for process in started]
    if "No module named 'pyspark'" in ended[0][1]:
        return []
    if any(process.returncode for process in started):
        raise RuntimeError(ended[0][1])
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def main(options: Options) -> None:
    n = 20_000 if options.quick else 1_000_000
    real = snli(options.data / "snli_1.0", 2000 if options.quick else 10_000)
    sets = {f"text-like (synthetic), {n:,} rows": text_like(n, words=30, classes=5), "SNLI": real}
    rows, model = [], []
    for title, data in ((title, data) for title, data in sets.items() if data is not None):
        X, y = data
        for loss, C in (("hinge", 1.0), ("log_loss", 1.0)):
            target = (y == 0).astype(np.int64) if loss == "hinge" else y
            with tempfile.TemporaryDirectory() as name:
                sparse.save_npz(f"{name}/X.npz", sparse.csr_matrix(X), compressed=False)
                np.save(f"{name}/y.npy", target)
                case = {"data": title, "loss": loss}
                found = {R: run(["on_rank", name, C, loss, R], R)[0] for R in (1, 2, 4)}
                best = min(x["objective"] for x in found.values())
                for R, x in found.items():
                    both = [x["at"][k][what] for what in ("rounds", "seconds") for k in range(2)]
                    of = {"solver": f"LinearSVM, {R} ranks", "bytes a round": x["bytes"]}
                    names = "rounds to 1e-2", "rounds to 1e-3", "seconds to 1e-2", "seconds to 1e-3"
                    rows.append(case | of | dict(zip(names, both, strict=True)))
                    model += [case | row for row in modelled(R, x)] if R == 4 else []
                for who in ("scikit", "spark"):
                    times = run([who, name, C, loss, best]) or [["pyspark is not installed"] * 2]
                    label = {"scikit": "liblinear" if loss == "hinge" else "saga", "spark": "Spark MLlib, local[2]"}[who]
                    of = {"solver": label, "bytes a round": "", "rounds to 1e-2": "", "rounds to 1e-3": ""}
                    rows.append(case | of | dict(zip(("seconds to 1e-2", "seconds to 1e-3"), times[0], strict=True)))
    write(options, "ranks", rows, f"All ranks share {os.cpu_count()} cores. {__doc__.splitlines()[0]}")
    write(options, "ranks_model", model, MODEL)
