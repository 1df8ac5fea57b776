"""``experiments sweep``: shared by workers, killed and taken up, nothing twice, the test set for the chosen only."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from experiments import plan, sweep
from experiments.config import Config
from experiments.studies import SCALES, Study, study_of
from tests.experiments.test_train import ROOT, environment, without_seconds

UNCOMPILED = environment() | {"NUMBA_DISABLE_JIT": "1"}  # no process compiles loops for its few steps


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = np.abs(np.random.default_rng(0).normal(size=(400, 9))) * 100 + 1
    (folder / "cal_housing.data").write_text("".join(",".join(f"{v:.3f}" for v in row) + "\n" for row in rows))
    return folder


def tiny(data, **options):
    base = Config(data=str(data), dataset="california", model="mlp", loss="l1", batch=32, epochs=2, **options)
    runs = [replace(base, optimizer=name, lr=lr) for name in ("dfw", "adam") for lr in (0.001, 0.01)]
    return Study("tiny", tuple(runs), epochs=3)


def results(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


WORKER = """
import json, sys
from pathlib import Path
from experiments import sweep
from tests.experiments.test_sweep import tiny
data, storage, out = sys.argv[1:]
found = sweep.work(tiny(data, averages=("0.9",)), storage, Path(out), sweep.Clock(heartbeat=1, grace=8))
print("RESULTS" + json.dumps(found))
"""


def worker(data, folder):
    words = [sys.executable, "-c", WORKER, str(data), f"sqlite:///{folder}/optuna.db", str(folder)]
    return subprocess.Popen(words, cwd=ROOT, env=UNCOMPILED, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    return json.loads(out[out.index("RESULTS") + 7 :])


def told(all_results):
    return [(json.dumps(r["config"]), without_seconds(r["curve"]), r["test"], r["test_averaged"]) for r in all_results]


def test_workers_share_a_sweep_and_a_dead_ones_run_is_taken_up(data, tmp_path):
    optuna = pytest.importorskip("optuna")
    alone = finish(worker(data, tmp_path))
    shared = tmp_path / "shared"
    shared.mkdir()
    first = worker(data, shared)
    while not list(shared.glob("*/config.json")):  # it has begun a run
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    pair = [worker(data, shared), worker(data, shared)]
    found = [finish(process) for process in pair]
    assert found[0] == found[1]  # both know all results

    assert told(found[0]) == told(alone)
    counts = {
        summary.study_name: summary.n_trials
        for summary in optuna.get_all_study_summaries(f"sqlite:///{shared}/optuna.db")
    }
    for name in counts:
        trials = optuna.load_study(study_name=name, storage=f"sqlite:///{shared}/optuna.db").trials
        done = [t.params["run"] for t in trials if t.state == optuna.trial.TrialState.COMPLETE]
        assert sorted(done) == list(range(4))  # each once: 4 of the grid; 2 chosen with 2 seeds


CHAOS = """
import itertools, json, multiprocessing, os, random, signal, sys, time
from pathlib import Path
from experiments import sweep
from tests.experiments.test_sweep import tiny
data, alone, killed = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

def work(out, calls=None):
    if calls is not None:  # die before, in or after the database's transactions, a rename, an fsync
        count = itertools.count()
        sys.setprofile(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(count) == calls else None)
    storage, clock = f"sqlite:///{out}/optuna.db", sweep.Clock(heartbeat=1, grace=6)
    found = sweep.work(tiny(data, averages=("0.9",)), storage, out, clock)
    sweep.write(out / "found.json", json.dumps(found))

work(alone)
draw, fork, workers, ends = random.Random(0), multiprocessing.get_context("fork"), [None, None], []
moments = [draw.randrange(2**19) for _ in range(12)]  # of the 2 million calls of a whole study
while not (killed / "found.json").exists() and 1 not in ends:  # 1: an exception
    for slot, worker in enumerate(workers):
        if worker is None or not worker.is_alive():
            ends += [] if worker is None else [worker.exitcode]
            workers[slot] = fork.Process(target=work, args=(killed, moments.pop() if moments else None))
            workers[slot].start()
    time.sleep(0.01)
for worker in workers:
    worker.kill()
    worker.join()
print("ENDS" + json.dumps(ends))
"""


def test_two_workers_killed_at_random_until_the_study_is_complete(data, tmp_path):
    """Random calls, not random times: on a busy machine a worker would never get to its first run."""
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    alone.mkdir()
    killed.mkdir()
    words = [sys.executable, "-c", CHAOS, str(data), str(alone), str(killed)]
    pipe = subprocess.PIPE
    chaos = subprocess.Popen(
        words, cwd=ROOT, env=UNCOMPILED, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        said, err = chaos.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(chaos.pid, signal.SIGKILL)  # with its workers, where they hang
    assert chaos.returncode == 0, err
    ends = json.loads(said.split("ENDS")[1])
    assert set(ends) <= {0, -signal.SIGKILL}, err  # a worker that passed for dead goes on
    assert ends.count(-signal.SIGKILL) >= 5
    found, expected = (json.loads((out / "found.json").read_text()) for out in (killed, alone))
    assert told(found) == told(expected)


def test_a_retried_run_whose_worker_dies_before_its_first_heartbeat_is_taken_up(data, tmp_path):
    optuna = pytest.importorskip("optuna")
    study, storage = replace(tiny(data), seeds=()), f"sqlite:///{tmp_path}/optuna.db"
    clock = sweep.Clock(heartbeat=1, grace=2, until=time.monotonic() + 60)
    connection = sweep._connect(optuna, storage, clock)
    queue = sweep._queue(optuna, f"{study.name}: grid", list(study.grid), connection, (), 0)
    with pytest.warns(UserWarning, match="Heartbeat"):  # which it will not have
        trial = queue.ask()
    trial.set_user_attr("seen", -1)  # as another worker noted of the one before it
    assert len(sweep.work(study, storage, tmp_path, clock)) == 4


def test_a_worker_that_passed_for_dead_goes_on(data, tmp_path, monkeypatch):
    """Its trial has failed when it comes back from the run, and nothing can be told of it any more."""
    optuna = pytest.importorskip("optuna")
    study, storage = replace(tiny(data), seeds=()), f"sqlite:///{tmp_path}/optuna.db"
    ran = []

    def late(config, folder, until):
        if not ran:
            connection = optuna.storages.get_storage(storage)
            for found in connection.get_all_studies():
                for trial in connection.get_all_trials(found._study_id, states=(optuna.trial.TrialState.RUNNING,)):
                    connection.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.FAIL)
        ran.append(config)
        return diverged(config, folder, until)

    monkeypatch.setattr(sweep.train, "run", late)
    monkeypatch.setattr(sweep.time, "sleep", lambda seconds: None)
    assert len(sweep.work(study, storage, tmp_path)) == 4
    assert len(ran) == 5  # the run of the failed trial twice
    assert set(ran) == set(study.grid)


def test_a_trial_that_finishes_while_it_is_looked_at_stops_nobody(data, tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    study, storage, clock = replace(tiny(data), seeds=()), f"sqlite:///{tmp_path}/optuna.db", sweep.Clock()
    queue = sweep._queue(optuna, f"{study.name}: grid", list(study.grid), sweep._connect(optuna, storage, clock), (), 0)
    with pytest.warns(UserWarning, match="Heartbeat"):
        trial = queue.ask()  # another worker's
    k = trial.suggest_categorical("run", range(4))
    trial.set_user_attr("result", {"config": {}, "curve": [{"val": 0.0}], "test": None, "test_averaged": None})

    def finishing(self, trial_id):
        if trial_id == trial._trial_id:
            queue.tell(trial, 0.0)

    monkeypatch.setattr(sweep.train, "run", diverged)
    monkeypatch.setattr(sweep.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(optuna.storages.RDBStorage, "record_heartbeat", finishing)
    found = sweep.work(study, storage, tmp_path, clock)
    assert [result["config"] == {} for result in found] == [j == k for j in range(4)]


def test_a_run_that_failed_waits_for_the_next_worker(data, tmp_path):
    study, storage = tiny(data), f"sqlite:///{tmp_path}/optuna.db"
    hidden = data / "away"
    (data / "cal_housing.data").rename(hidden)
    try:
        with pytest.raises(FileNotFoundError, match=r"cal_housing.data is missing"):
            sweep.work(study, storage, tmp_path)
    finally:
        hidden.rename(data / "cal_housing.data")
    found = sweep.work(study, storage, tmp_path)
    assert [result["config"]["lr"] for result in found[:4]] == [0.001, 0.01, 0.001, 0.01]


def test_the_choice_is_validations_and_the_test_set_is_for_the_chosen(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["experiments", "sweep", "tiny"])
    monkeypatch.setitem(SCALES["small"], "tiny", lambda name, folder: tiny(folder))
    args = arguments(data, tmp_path)
    sweep.main(args)
    found = results(tmp_path / "results" / "small" / "tiny.jsonl")
    grid, chosen = found[:4], found[4:]
    assert all(result["test"] is None for result in grid)
    assert all(result["test"] > 0 for result in chosen)
    for name in ("dfw", "adam"):
        tried = [r for r in grid if r["config"]["optimizer"] == name]
        best = min(tried, key=lambda r: min(line["val"] for line in r["curve"]))["config"][
            "lr"
        ]  # an error: smaller is better
        of_it = [r["config"] for r in chosen if r["config"]["optimizer"] == name]
        assert [(c["lr"], c["seed"], c["epochs"]) for c in of_it] == [(best, 1, 3), (best, 2, 3)]
    before = (tmp_path / "results" / "small" / "tiny.jsonl").read_text()
    sweep.main(args)  # all is done: nothing runs, the same results
    assert (tmp_path / "results" / "small" / "tiny.jsonl").read_text() == before
    args.so_far = True
    sweep.main(args)
    assert (tmp_path / "results" / "small" / "tiny.jsonl").read_text() == before


def arguments(data, out, *words, study="tiny"):
    parser = argparse.ArgumentParser()
    sweep.add_arguments(parser)
    folders = ["--data", str(data), "--out", str(out), "--results", str(out / "results")]
    return parser.parse_args([study, *folders, *words])


def test_a_study_grows_by_seeds_where_the_folders_of_its_runs_are_gone(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["experiments", "sweep", "tiny"])
    monkeypatch.setitem(SCALES["small"], "tiny", lambda name, folder: tiny(folder))
    here, there = tmp_path / "here", tmp_path / "there"
    sweep.main(arguments(data, here, "--seeds", "1", "--go-on"))  # there is nothing yet to go on from
    first = results(here / "results" / "small" / "tiny.jsonl")
    assert len(first) == 4 + 2
    shutil.copytree(here / "results", there / "results")
    moved = shutil.copytree(data, tmp_path / "moved")  # where the data lie says nothing of a run
    sweep.main(arguments(moved, there, "--go-on", "--seeds", "2", "--precision", "bfloat16"))
    second = results(there / "results" / "small" / "tiny.jsonl")
    assert second[:6] == first  # to the second that they took: they were not run again
    assert [(run["config"]["seed"], run["config"]["precision"]) for run in second[6:]] == [(2, "bfloat16")] * 2
    assert len(list((there / "small").glob("*/config.json"))) == 2


def test_what_diverged_counts_as_done(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep.train, "run", diverged)
    found = sweep.work(replace(tiny(data), seeds=()), f"sqlite:///{tmp_path}/optuna.db", tmp_path)
    assert [math.isnan(result["curve"][-1]["val"]) for result in found] == [True] * 4


def diverged(config, folder, until):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"config": asdict(config), "provenance": {}}))
    return [{"epoch": 1, "val": math.nan}]


def test_an_average_can_choose():
    runs = tuple(Config(loss="hinge", lr=lr, averages=("0.9",)) for lr in (0.1, 1.0))
    end = {"val": 10.0, "val_averaged": {"0.9": 10.0}}
    lines = [{"val": 60.0, "val_averaged": {"0.9": 61.0}}, {"val": 50.0, "val_averaged": {"0.9": 70.0}}]
    curves = {run: [line, end] for run, line in zip(runs, lines, strict=True)}  # the best epoch counts, not the last
    assert {run.lr for run in Study("s", runs, 1).chosen(curves)} == {0.1}
    assert {run.lr for run in Study("s", runs, 1, by=("0.9",)).chosen(curves)} == {1.0}
    assert {run.lr for run in Study("s", runs, 1, by=("", "0.9")).chosen(curves)} == {0.1, 1.0}
    curves[runs[0]][1] = end | {"val": math.nan}  # nothing that diverged
    assert {run.lr for run in Study("s", runs, 1).chosen(curves)} == {1.0}


@pytest.mark.parametrize(("scale", "name"), [(scale, name) for scale, made in SCALES.items() for name in made])
def test_the_studies_hold_what_they_promise(scale, name):
    study = study_of(name, scale, "data")
    assert len(set(study.grid)) == len(study.grid)
    methods = {(run.optimizer, run.loss) for run in study.grid}
    optimizers = {run.optimizer for run in study.grid}
    fixed, ablation = name.startswith("fixed-"), name.startswith("ablation-")
    assert optimizers >= ({"dfw"} if name == "averaging" or ablation else {"dfw", "sgd"})
    assert all(run.test == fixed for run in study.grid)
    for optimizer, loss in methods if not fixed else ():
        etas = {run.lr for run in study.grid if (run.optimizer, run.loss) == (optimizer, loss)}
        assert optimizer in ("prodigy", "dog", "sgd") or len(etas) >= 3 or (ablation and optimizer == "multistep")
    if scale == "small" and name.startswith("cifar"):
        assert len(optimizers) == 11
        assert study.epochs >= 20
        assert len(study.seeds) >= 2
    if name == "snli":  # Table 3: every baseline with both losses
        assert {("adam", "ce"), ("adam", "hinge"), ("dfw", "hinge"), ("sgd", "hinge")} <= methods
        assert (("dfw", "ce") in methods) == (scale == "small")
    if fixed:
        assert [len(study.with_seeds(seeds).grid) for seeds in ([1], [2, 3], [4])] == [10, 20, 0]
        assert len({replace(run, seed=0) for run in study.grid}) == 10
    if ablation:
        assert optimizers == {"dfw", "dfw-full", "multistep"}
        assert {run.metric for run in study.grid} == {"", "diagonal"}


def test_with_hours_a_sweep_stops_and_goes_on(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments", "sweep", "tiny"])
    monkeypatch.setitem(SCALES["small"], "tiny", lambda name, folder: tiny(folder))
    sweep.main(arguments(data, tmp_path, "--hours", "0"))
    assert "0 hours are over" in capsys.readouterr().out
    assert results(tmp_path / "results" / "small" / "tiny.jsonl") == []
    study, storage = tiny(data), f"sqlite:///{tmp_path}/small/optuna.db"
    run = sweep.train.run
    monkeypatch.setattr(sweep.train, "run", lambda config, folder, until: run(config, folder, until=0.0))
    with pytest.raises(sweep.train.TimeUp, match="1 of 2 epochs"):  # the time is up within the first run
        sweep.work(study, storage, tmp_path / "small")
    monkeypatch.undo()
    assert len(sweep.work(study, storage, tmp_path / "small")) == 8


def test_a_dry_run_lists_runs_hours_and_disk(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(SCALES["small"], "tiny", lambda name, folder: tiny(folder, averages=("0.9",)))
    sweep.main(arguments(data, tmp_path, "--dry-run"))
    said = capsys.readouterr().out
    assert "tiny: 8 runs" in said
    assert [line.split()[:2] for line in said.splitlines()[1:-1]] == [["2", "2"], ["2", "2"], ["2", "3"], ["2", "3"]]
    assert list(tmp_path.iterdir()) == []
    study, file = tiny(data, averages=("0.9",)), tmp_path / "results" / "small" / "tiny.jsonl"
    file.parent.mkdir(parents=True)
    there = [study.grid[0], replace(study.grid[0], epochs=study.epochs, seed=1, test=True)]
    lines = [json.dumps({"config": asdict(run), "curve": [{"seconds": 1.0}]}) + "\n" for run in there]
    file.write_text("".join(lines))
    sweep.main(arguments(data, tmp_path, "--dry-run"))
    assert "tiny: 8 runs" in capsys.readouterr().out
    sweep.main(arguments(data, tmp_path, "--dry-run", "--go-on"))
    assert "tiny: 6 runs" in capsys.readouterr().out
    old = {"config": {"dataset": "california", "model": "mlp", "images": 0, "batch": 32, "augment": False}}
    old["config"]["optimizer"] = "dfw"
    hours = plan.hours(tiny(data).grid[0], 1.0, [old | {"curve": [{"seconds": 5.0}, {"seconds": 9.0}]}])
    assert hours == pytest.approx(2 * 7 / 3600)


@pytest.mark.parametrize("name", SCALES["paper"])
def test_the_papers_scale_can_be_planned_without_its_data(name, tmp_path, capsys):
    sweep.main(arguments(tmp_path, tmp_path, "--dry-run", "--scale", "paper", study=name))
    last = capsys.readouterr().out.splitlines()[-1]
    runs, hours, size = (float(word) for word in re.findall(r"[\d.]+(?= runs| hours| GB)", last.split(":", 1)[1]))
    assert runs > 20
    assert 10 < hours < 100_000
    assert 0.1 < size < 10_000


def test_unknown_studies_list_the_valid_ones():
    with pytest.raises(ValueError, match="no study named 'mnist'; there are cifar10, cifar10-augmented, cifar100"):
        study_of("mnist", "small", "data")
    with pytest.raises(ValueError, match="no scale named 'huge'; there are small, paper"):
        study_of("cifar10", "huge", "data")
