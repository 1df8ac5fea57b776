"""LinearSVM on 1, 2 and 4 ranks by gloo, beside scikit-learn's solvers and Spark MLlib: time to the same objective.

Every solver, and every rank, runs in a process of its own. The time of the others is that of the loosest setting, out of
four, whose objective is within the gap of the best known; Spark's is a fit on cached data, after the start of the JVM.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
import tempfile
import time
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
C, RANKS = 1.0, (1, 2, 4)
NETWORKS = {"1 Gbit/s": (1.25e8, 1e-4), "10 Gbit/s": (1.25e9, 5e-5), "100 Gbit/s": (1.25e10, 2e-5)}  # bytes/s, latency


def objective(W: np.ndarray, X: Any, y: np.ndarray, C: float, loss: str) -> float:
    """½‖W‖² + C Σℓ; W has one row for two classes."""
    u = np.asarray(X @ W.T)
    if loss == "hinge":
        return float((W**2).sum() / 2 + C * np.maximum(0, 1 - (2 * y - 1) * u[:, 0]).sum())
    return float((W**2).sum() / 2 + C * (logsumexp(u, axis=1) - u[np.arange(len(y)), y]).sum())


def load(folder: Path) -> tuple[Any, np.ndarray]:
    return sparse.load_npz(folder / "X.npz"), np.load(folder / "y.npy")


def on_rank(folder: Path, C: float, loss: str, world: int, rank: int) -> dict[str, Any]:
    """Fit this rank's rows to the smallest gap; the rounds and seconds to each, and the CPU time of a round."""
    import torch.distributed as dist

    from proxsvm.estimators import LinearSVM
    from proxsvm.solvers import BlockFW

    X, y = load(folder)
    X, y, classes = X[rank::world], y[rank::world], int(y.max()) + 1
    store, limit = f"file://{folder}/store-{world}", datetime.timedelta(minutes=10)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=limit)
    options: dict[str, Any] = {"C": C, "loss": loss, "fit_intercept": False, "process_group": "default"}
    LinearSVM(tol=0.5, **options).fit(X[:100], np.arange(100) % classes)  # compiles
    trace: list[Any] = []
    began, busy = time.perf_counter(), time.process_time()
    model = LinearSVM(tol=min(GAPS), solver=BlockFW(callback=trace.append), **options).fit(X, y)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    dist.destroy_process_group()
    at = [next((t for t in trace if t.gap <= gap * t.primal), trace[-1]) for gap in GAPS]
    late = seconds - trace[-1].seconds  # validation and the first round, which the trace does not see
    size = (1 if loss == "hinge" else classes) * X.shape[1] * X.dtype.itemsize + 24
    found = {"rounds": [t.step + 1 for t in at], "seconds": [t.seconds + late for t in at]}
    return found | {"bytes": size, "objective": model.objective_, "busy": busy / max(len(trace), 1)}


def scikit(folder: Path, C: float, loss: str, best: float, _: int) -> list[float | None]:
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


def spark(folder: Path, C: float, loss: str, best: float, _: int) -> list[float | None]:
    """MLlib minimises the mean loss + ½ λ ‖w‖², so λ = 1/(C n)."""
    from pyspark.ml import classification
    from pyspark.ml.linalg import SparseVector
    from pyspark.sql import SparkSession

    X, y = load(folder)
    session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "6g").getOrCreate()
    ends = zip(X.indptr, X.indptr[1:], strict=False)
    rows = [
        (float(t), SparseVector(X.shape[1], X.indices[a:b], X.data[a:b])) for t, (a, b) in zip(y, ends, strict=True)
    ]
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


def modelled(x: dict[str, Any], world: int) -> list[dict[str, Any]]:
    """Seconds to 1e-3, if each rank were a machine with one core: rounds × (CPU time + a ring all-reduce)."""
    found = []
    for network, (bandwidth, latency) in NETWORKS.items():
        total = 2 * (world - 1) / world * x["bytes"] / bandwidth + 2 * (world - 1) * latency
        times = {
            "CPU time of a round": x["busy"],
            "sum of a round": total,
            "seconds": x["rounds"][1] * (x["busy"] + total),
        }
        found.append({"machines": world, "network": network, "rounds": x["rounds"][1]} | times)
    return found


def main(options: Options) -> None:
    n = 20_000 if options.quick else 1_000_000
    real = snli(options.data / "snli_1.0", 2000 if options.quick else 10_000)
    sets = {f"text-like (synthetic), {n:,} rows": text_like(n, words=30, classes=5), "SNLI": real}
    rows: list[dict[str, Any]] = []
    model: list[dict[str, Any]] = []
    columns = "rounds to 1e-2", "rounds to 1e-3", "seconds to 1e-2", "seconds to 1e-3"
    for title, data in ((title, data) for title, data in sets.items() if data is not None):
        for loss in ("hinge", "log_loss"):  # of two classes, and of all
            with tempfile.TemporaryDirectory() as name:
                sparse.save_npz(f"{name}/X.npz", sparse.csr_matrix(data[0]), compressed=False)
                np.save(f"{name}/y.npy", (data[1] == 0).astype(np.int64) if loss == "hinge" else data[1])
                case, best = {"data": title, "loss": loss}, math.inf
                for R in RANKS:
                    x = run(["on_rank", name, C, loss, R], R)[0]
                    best = min(best, x["objective"])
                    model += [case | row for row in modelled(x, R)]
                    found = dict(zip(columns, x["rounds"] + x["seconds"], strict=True))
                    rows.append(case | {"solver": f"LinearSVM, {R} ranks", "bytes of a round": x["bytes"]} | found)
                for who, label in {
                    "scikit": "liblinear" if loss == "hinge" else "saga",
                    "spark": "Spark MLlib",
                }.items():
                    times = run([who, name, C, loss, best]) or [["(pyspark is not installed)"] * 2]
                    of = {"solver": label, "bytes of a round": "", columns[0]: "", columns[1]: ""}
                    rows.append(case | of | dict(zip(columns[2:], times[0], strict=True)))
    missing = " SNLI is missing in --data, and so left out." if real is None else ""
    write(options, "ranks", rows, f"C = {C}, no intercept; ranks share {os.cpu_count()} cores.{missing}")
    write(options, "ranks_model", model, "A model, not a measurement: measured rounds × (CPU time + ring all-reduce).")


if __name__ == "__main__":
    act, folder, *words = sys.argv[1:]
    print(
        json.dumps(globals()[act](Path(folder), *(x if x in ("hinge", "log_loss") else json.loads(x) for x in words)))
    )
