"""Linear estimators whose rows are on several ranks, or on disk."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification

from proxsvm.estimators import LinearSVM, LinearSVR, ranks
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.solvers import BlockFW
from tests.parallel import message, run_module, run_on_ranks

TOL = 1e-4
OPTIONS: dict[str, Any] = {"tol": TOL, "max_iter": 2000}
N = 80


def table() -> tuple[Any, Any, Any]:
    """80 rows of three classes, the last of which is on few of them, and weights of the samples."""
    options = {"n_classes": 3, "weights": [0.5, 0.4, 0.1], "class_sep": 0.5, "random_state": 0}
    X, y = make_classification(N, 6, n_informative=4, **options)
    return X / 2, np.array(["a", "b", "c"])[y], np.arange(N) % 4 / 2


def rows_of(rank: int, world: int) -> slice:
    """Shards of unequal size; with three ranks, rank 1 has none, and in any case rank 0 has not all classes."""
    return [slice(0, 15), slice(15, N)][rank] if world == 2 else [slice(0, 50), slice(0, 0), slice(50, N)][rank]


CASES: dict[str, tuple[type, dict[str, Any]]] = {
    **{loss: (LinearSVM, {"loss": loss}) for loss in LinearSVM.losses},
    "a loss object": (LinearSVM, {"loss": MultiClassHinge(), "C": 0.3}),
    "no intercept": (LinearSVM, {"fit_intercept": False}),
    "a large column of ones": (LinearSVM, {"intercept_scaling": 3.0}),
    "balanced": (LinearSVM, {"class_weight": "balanced"}),
    "class weights": (LinearSVM, {"class_weight": {"a": 2.0, "c": 0.5}}),
    "epsilon": (LinearSVR, {"epsilon": 0.1}),
    "squared error": (LinearSVR, {"loss": "squared_error"}),
    "huber": (LinearSVR, {"loss": "huber", "C": 10.0}),
}
KINDS = {"dense": np.asarray, "sparse": sparse.csr_matrix, "float32": lambda X: X.astype(np.float32)}


def fit(name: str, kind: str, rows: slice, weighted: bool = False, **more: Any) -> Any:
    """A case, fitted to some rows."""
    make, options = CASES[name]
    X, y, omega = table()
    y = X @ np.arange(6) if make is LinearSVR else y
    tol = {"tol": 1e-3} if kind == "float32" else {}
    model = make(**{**OPTIONS, **options, **tol, **more})
    return model.fit(KINDS[kind](X[rows]), y[rows], omega[rows] if weighted else None)


def learnt(model: Any) -> dict[str, Any]:
    names = "coef_", "intercept_", "objective_", "dual_gap_", "n_iter_"
    return {name: getattr(model, name) for name in names}


RUNS = [(name, "dense", False) for name in CASES]
RUNS += [("crammer_singer", "sparse", True), ("log_loss", "sparse", False), ("epsilon", "sparse", True)]
RUNS += [("balanced", "dense", True), ("crammer_singer", "float32", False), ("hinge", "dense", True)]


def work(rank: int, world: int) -> dict[Any, Any]:
    rows = rows_of(rank, world)
    found: dict[Any, Any] = {run: learnt(fit(run[0], run[1], rows, run[2], process_group="default")) for run in RUNS}
    X, y, _ = table()
    model = LinearSVM(process_group="default", warm_start=True, **OPTIONS).fit(X[rows], y[rows])
    cold = learnt(LinearSVM(1.1, process_group="default", **OPTIONS).fit(X[rows], y[rows]))
    found["path"] = cold, learnt(model.set_params(C=1.1).fit(X[rows], y[rows])), learnt(model.fit(X[rows], y[rows]))
    labels = np.stack([y == "a", y != "b"], 1).astype(int)
    found["labels"] = learnt(LinearSVM(process_group="default", **OPTIONS).fit(X[rows], labels[rows]))
    own = dist.new_group([rank]) if world == 1 else [dist.new_group([r]) for r in range(world)][rank]
    if rows != slice(0, 0):
        found["alone"] = learnt(LinearSVM(process_group=own, **OPTIONS).fit(X[rows], y[rows]))
    found["faults"] = faults(rank, X, y, rows)
    return found


def faults(rank: int, X: Any, y: Any, rows: slice) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """What is raised where the ranks disagree on a thing, and where one or all of them have an error of this text."""
    X, y, odd = X[rows], y[rows], rank == dist.get_world_size() - 1
    labels = np.eye(3, dtype=int)[np.arange(len(y)) % 3]

    def say(X: Any = X, y: Any = y, weight: Any = None, make: Any = LinearSVM, **options: Any) -> str:
        return message(lambda: make(process_group="default", **options).fit(X, y, weight))

    disagree = [
        ("C", say(C=2.0 if odd else 1.0)),
        ("loss", say(loss="hinge" if odd else None)),
        ("loss", say(loss=CrossEntropy(label_smoothing=0.1) if odd else CrossEntropy())),
        ("loss", say(loss=MultiClassHinge(torch.ones(3, 3) - torch.eye(3)) if odd else MultiClassHinge())),
        ("solver", say(solver=BlockFW(inner=3) if odd else None)),
        ("the estimator", say(make=LinearSVR if odd else LinearSVM, y=np.zeros(len(y)) if odd else y)),
        ("the number of features", say(X[:, :4] if odd else X)),
        ("the dtype of X", say(X.astype(np.float32) if odd else X)),
        ("the kind of the classes", say(y=np.arange(len(y)) % 3 if odd else y)),
        ("the shape of a target", say(y=labels if odd else y)),
    ]
    errors = {
        "Input X contains NaN": say(X * np.nan if odd else X),
        "Negative values in data": say(weight=-np.ones(len(y)) if odd else np.ones(len(y))),
        "tol is -1.0": say(tol=-1.0 if odd else 1e-4),
        "every sample_weight is zero": say(weight=np.zeros(len(y))),
        "only one class": say(y=np.full(len(y), "a")),
        "no rank has a sample": say(X[:0], y[:0]),
        "give class_weight to the estimator": say(loss=MultiClassHinge(weight=[1.0, 2.0, 1.0])),
        "on ranks use sample_weight": say(y=labels, class_weight="balanced"),
    }
    return disagree, errors


@pytest.fixture(scope="module", params=[2, 3])
def found(request) -> list[dict[Any, Any]]:
    return run_on_ranks(work, request.param, world=request.param, limit=300)


def assert_same(results: list[dict[str, Any]]) -> None:
    """Bit for bit on every rank."""
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def assert_solves(got: dict[str, Any], alone: Any, tol: float = TOL) -> None:
    """The certified interval of the ranks and that of one process have a point in common, and both are small."""
    assert 0 <= got["dual_gap_"] <= 1.01 * tol * got["objective_"]
    assert got["objective_"] - got["dual_gap_"] <= alone.objective_ * (1 + 1e-6)
    assert alone.objective_ - alone.dual_gap_ <= got["objective_"] * (1 + 1e-6)
    distance = np.linalg.norm(got["coef_"] - alone.coef_) ** 2 / 2  # the objective is 1-strongly convex
    assert distance <= 2 * (got["dual_gap_"] + alone.dual_gap_) + 1e-12


@pytest.mark.parametrize("run", RUNS, ids=lambda run: ", ".join(map(str, run)))
def test_all_ranks_learn_what_one_process_learns(run, found):
    name, kind, weighted = run
    assert_same([rank[run] for rank in found])
    tol = 1e-3 if kind == "float32" else TOL
    assert_solves(found[0][run], fit(name, kind, slice(None), weighted), tol)


def test_labels_of_an_indicator_matrix(found):
    X, y, _ = table()
    labels = np.stack([y == "a", y != "b"], 1).astype(int)
    assert_same([rank["labels"] for rank in found])
    assert_solves(found[0]["labels"], LinearSVM(**OPTIONS).fit(X, labels))


def test_a_warm_start_takes_fewer_rounds(found):
    X, y, _ = table()
    for results in zip(*(rank["path"] for rank in found), strict=True):
        assert_same(list(results))
    cold, warm, again = found[0]["path"]
    assert warm["n_iter_"] < cold["n_iter_"]
    assert again["n_iter_"] < cold["n_iter_"]
    assert_solves(warm, LinearSVM(1.1, **OPTIONS).fit(X, y))


def test_a_group_of_one_fits_its_own_rows(found):
    X, y, _ = table()
    for rank, results in enumerate(found):
        rows = rows_of(rank, len(found))
        if rows != slice(0, 0):
            np.testing.assert_array_equal(results["alone"]["coef_"], LinearSVM(**OPTIONS).fit(X[rows], y[rows]).coef_)


def test_ranks_that_disagree_raise_the_same_error_and_that_of_one_is_raised_on_all(found):
    for disagree, errors in (rank["faults"] for rank in found):
        assert disagree == found[0]["faults"][0]
        for name, text in disagree:
            assert f"RankError: the ranks disagree on {name}: it is" in text
            assert "Call fit() on every rank with the same options" in text
        assert all(name in text for name, text in errors.items())


def end_in_a_round(rank: int, how: str) -> str:
    def end(trace: Any) -> None:
        if trace.step == 2 and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif trace.step == 2:
            raise KeyError("of the callback")

    X, y, _ = table()
    solver = BlockFW(callback=end if rank == 1 else None)
    said = message(lambda: LinearSVM(tol=0.0, process_group="default", solver=solver).fit(X[rank::2], y[rank::2]))
    dist.destroy_process_group = lambda: None  # the group is broken
    return said


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_a_rank_that_ends_in_a_round_ends_the_others_with_an_error(how):
    first, second = run_on_ranks(end_in_a_round, how, limit=60)
    assert "RankError: a rank has ended" in first
    assert second == {"died": -signal.SIGKILL} if how == "killed" else "RankError: KeyError in a round" in second


# Rows on disk.


def on_disk(X: Any, folder: Path) -> Any:
    """X as a memory map, or a CSR matrix of memory maps."""

    def mapped(x: Any, name: str) -> Any:
        np.save(folder / f"{name}.npy", x)
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    if not sparse.issparse(X):
        return mapped(X, "X")
    return sparse.csr_matrix(tuple(mapped(getattr(X, k), k) for k in ("data", "indices", "indptr")), X.shape)


@pytest.mark.parametrize("kind", [*KINDS, "uint8"])
@pytest.mark.parametrize("name", ["crammer_singer", "log_loss", "epsilon", "no intercept"])
def test_rows_on_disk_are_read_in_blocks(name, kind, tmp_path, monkeypatch):
    make, options = CASES[name]
    X, y, omega = table()
    X, y = np.abs(X), X @ np.arange(6) if make is LinearSVR else y
    X = (50 * X).astype(np.uint8) if kind == "uint8" else KINDS[kind](X)
    there = on_disk(X, tmp_path)
    tol = {"tol": 1e-3} if kind in ("float32", "uint8") else {}
    model = make(**{**OPTIONS, **options, **tol, **({"C": 1e-4} if kind == "uint8" else {})})
    alone = clone(model).fit(X.astype(np.float64) if kind == "uint8" else X, y, omega)
    monkeypatch.setattr(ranks, "BLOCK_BYTES", 200 if kind == "uint8" else 700)
    assert len(ranks.blocks_of(there)) > 1
    found = model.fit(there, y, omega)
    assert_solves(learnt(found), alone, tol.get("tol", TOL))
    assert found.coef_.dtype == (np.float32 if tol else np.float64)
    cold = found.n_iter_
    warm = model.set_params(warm_start=True).fit(there, y, omega).fit(there, y, omega)
    assert warm.n_iter_ <= cold


def test_a_small_map_is_read_at_once(tmp_path):
    X, y, _ = table()
    np.testing.assert_array_equal(LinearSVM().fit(on_disk(X, tmp_path), y).coef_, LinearSVM().fit(X, y).coef_)


def test_a_bad_entry_on_disk_is_found_before_the_fit(tmp_path, monkeypatch):
    X, y, _ = table()
    X[70, 3] = np.nan
    monkeypatch.setattr(ranks, "BLOCK_BYTES", 700)
    with pytest.raises(ValueError, match="X contains NaN"):
        LinearSVM().fit(on_disk(X, tmp_path), y)


LIMITED = """
import resource, sys
import numpy as np
from scipy import sparse
from sklearn.base import clone
from proxsvm.estimators import LinearSVM, ranks
folder, kind = sys.argv[1:]
ranks.BLOCK_BYTES = 2**21
load = lambda name: np.load(f"{folder}/{name}.npy", mmap_mode="r")
X = load("X") if kind == "dense" else sparse.csr_matrix((load("data"), load("indices"), load("indptr")))
y = np.arange(X.shape[0]) % 2
LinearSVM(C=1e-3, max_iter=3, tol=0.1).fit(X[:500], y[:500])  # compiles, or loads what is compiled
with open("/proc/self/status") as file:
    used = next(1024 * int(line.split()[1]) for line in file if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + int(40e6), resource.RLIM_INFINITY))
try:
    np.ones(X.data.nbytes, np.uint8)
    sys.exit("a copy of X would fit")
except MemoryError:
    pass
print(LinearSVM(C=1e-3, tol=1e-2).fit(X, y).n_iter_)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory that the process may allocate")
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_memory_is_a_few_blocks(kind, tmp_path):
    """48 MB on disk, read in blocks of 2 MB by a process that may allocate 40 MB more: a copy would not fit."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30_000, 200))
    X[:, 0] += np.arange(30_000) % 2
    on_disk(sparse.csr_matrix(X) if kind == "sparse" else X, tmp_path)
    words = [sys.executable, "-W", "ignore", "-c", LIMITED, str(tmp_path), kind]
    run = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    assert int(run.stdout) >= 1


# The example.


def test_the_example_runs_under_torchrun_and_alone(tmp_path):
    saved = []
    for count in (0, 2):
        out = run_module("examples.svm_on_ranks", "--save", str(tmp_path / "saved"), ranks=count)
        assert f"{count or 1} process(es): objective" in out
        saved.append(np.load(tmp_path / "saved.npz")["objective"])
        assert np.load(tmp_path / "saved.npz")["coef"].shape == (10, 64)
    np.testing.assert_allclose(*saved, rtol=1e-3)
