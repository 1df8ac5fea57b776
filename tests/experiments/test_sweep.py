"""``experiments sweep``: shared by workers, killed and resumed, nothing twice, the test set for the chosen only."""

import argparse
import contextlib
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from experiments import sweep
from experiments.config import Config
from experiments.studies import SCALES, Study, study_of
from experiments.sweep import Sweep
from tests.experiments.conftest import write_housing
from tests.experiments.test_train import ROOT, environment, without_seconds


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_housing(folder, np.abs(np.random.default_rng(0).normal(size=(400, 9))) * 100 + 1)
    return folder


@pytest.fixture
def command(data, tmp_path, monkeypatch):
    """``sweep tiny`` on the command line; returns the lines of the results file."""
    monkeypatch.setattr(sys, "argv", ["experiments", "sweep", "tiny"])
    monkeypatch.setitem(SCALES["small"], "tiny", lambda folder: tiny(folder, averages=("0.9",)))

    def run(*words, data=data, out=tmp_path):
        parser = argparse.ArgumentParser()
        sweep.add_arguments(parser)
        folders = ["--data", str(data), "--out", str(out), "--results", str(out / "results")]
        sweep.main(parser.parse_args(["tiny", *folders, *words]))
        file = out / "results" / "small" / "tiny.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    return run


def tiny(data, **options):
    base = Config(data=str(data), dataset="california", model="mlp", loss="l1", batch=32, epochs=2, **options)
    runs = [replace(base, optimizer=name, lr=lr) for name in ("dfw", "adam") for lr in (0.001, 0.01)]
    return Study("tiny", tuple(runs), epochs=3)


def told(results):
    return [(json.dumps(r["config"]), without_seconds(r["curve"]), r["test"], r["test_averaged"]) for r in results]


CHAOS = """
import itertools, json, multiprocessing, os, random, signal, sys, time
from pathlib import Path
from experiments import sweep
from tests.experiments.test_sweep import tiny
data, alone, killed = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
sweep.PAUSE = 0.1

def work(out, calls=None):
    if calls is not None:  # die before, in or after a step, a rename, an fsync, with a lock or without
        count = itertools.count()
        sys.setprofile(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(count) == calls else None)
    out.mkdir(exist_ok=True)
    found = sweep.Sweep(tiny(data, averages=("0.9",)), out).work()
    sweep.write(out / "found.json", json.dumps(found))

work(alone)
draw, fork, workers, ends = random.Random(0), multiprocessing.get_context("fork"), [None, None], []
moments = [draw.randrange(2**16) for _ in range(8)]
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
    words = [sys.executable, "-c", CHAOS, str(data), str(tmp_path / "alone"), str(tmp_path / "killed")]
    uncompiled = environment() | {"NUMBA_DISABLE_JIT": "1"}  # no process compiles loops for its few steps
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    chaos = subprocess.Popen(words, cwd=ROOT, env=uncompiled, start_new_session=True, **pipes)
    try:
        said, err = chaos.communicate(timeout=300)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(chaos.pid, signal.SIGKILL)  # with its workers, where they hang
    assert chaos.returncode == 0, err
    ends = json.loads(said.split("ENDS")[1])
    assert set(ends) <= {0, -signal.SIGKILL}, err
    assert ends.count(-signal.SIGKILL) >= 5
    found, expected = (json.loads((tmp_path / name / "found.json").read_text()) for name in ("killed", "alone"))
    assert told(found) == told(expected)


def test_the_choice_is_validations_and_the_test_set_is_for_the_chosen(command, tmp_path, capsys):
    found = command()
    grid, chosen = found[:4], found[4:]
    assert "run 3 of 4, Adam 0.001\n" in capsys.readouterr().out  # no bar: this is not a terminal
    assert all(result["test"] is None for result in grid)
    assert all(result["test"] > 0 for result in chosen)
    for name in ("dfw", "adam"):
        tried = [r for r in grid if r["config"]["optimizer"] == name]
        best = min(tried, key=lambda r: min(line["val"] for line in r["curve"]))  # an error: smaller is better
        of_it = [r["config"] for r in chosen if r["config"]["optimizer"] == name]
        assert [(c["lr"], c["seed"], c["epochs"]) for c in of_it] == [(best["config"]["lr"], s, 3) for s in (1, 2)]
    assert command() == found  # all is done: nothing runs
    assert sorted(told(command("--so-far"))) == sorted(told(found))


def test_one_bar_counts_the_epochs_of_all_runs_and_names_them_on_a_terminal(data, tmp_path, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    work = Sweep(tiny(data), tmp_path, quiet=False)
    work.finish(work.study.grid)
    work.bar.refresh()
    shown = sys.stderr.getvalue()
    assert "run 3 of 4, Adam 0.001" in shown
    assert shown.rstrip().split("\r")[-1].count("8/8") == 1  # 4 runs of 2 epochs
    assert capsys.readouterr().out == ""


def test_a_study_grows_by_seeds_where_the_folders_of_its_runs_are_gone(command, data, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    first = command("--seeds", "1", "--go-on", out=here)  # there is nothing yet to go on from
    assert len(first) == 4 + 2
    shutil.copytree(here / "results", there / "results")
    moved = shutil.copytree(data, tmp_path / "moved")  # where the data lie says nothing of a run
    second = command("--go-on", "--seeds", "2", "--precision", "bfloat16", data=moved, out=there)
    assert second[:6] == first  # to the second that they took: they were not run again
    assert [(run["config"]["seed"], run["config"]["precision"]) for run in second[6:]] == [(2, "bfloat16")] * 2
    assert len(list((there / "small" / "tiny").glob("*/log.jsonl"))) == 2


def test_an_average_can_choose():
    runs = tuple(Config(loss="hinge", lr=lr, averages=("0.9",)) for lr in (0.1, 1.0))
    end = {"val": 10.0, "val_averaged": {"0.9": 10.0}}
    lines = [{"val": 60.0, "val_averaged": {"0.9": 61.0}}, {"val": 50.0, "val_averaged": {"0.9": 70.0}}]
    curves = {run: [line, end] for run, line in zip(runs, lines, strict=True)}  # the best epoch counts, not the last
    for by, chosen in (((""), {0.1}), ("0.9", {1.0}), ("any", {1.0})):
        assert {run.lr for run in Study("s", runs, 1, by=(by,)).chosen(curves)} == chosen
    assert {run.lr for run in Study("s", runs, 1, by=("", "0.9")).chosen(curves)} == {0.1, 1.0}
    curves[runs[0]][1] = end | {"val": math.nan}  # nothing that diverged
    assert {run.lr for run in Study("s", runs, 1).chosen(curves)} == {1.0}


@pytest.mark.parametrize(("best", "tried"), [(0, 3), (2, 5), (-1, 4), (9, 7)])
def test_a_grid_grows_where_its_best_value_is_at_an_edge(best, tried):
    grid = [Config(loss="hinge", lr=10 ** (k / 2)) for k in (-1, 0, 1)]
    study, curves = Study("s", tuple(grid), 1, growth=10**0.5), {}
    while grid:
        curves |= {run: [{"val": -abs(math.log(run.lr, 10**0.5) - best)}] for run in grid}
        grid = study.beyond(curves)
    assert len(curves) == tried
    assert max(curves, key=lambda run: curves[run][0]["val"]).lr == pytest.approx(10 ** (min(best, 5) / 2), rel=0.05)


@pytest.mark.parametrize(("scale", "name"), [(scale, name) for scale, made in SCALES.items() for name in made])
def test_the_studies_hold_what_they_promise(scale, name):
    study, kind = study_of(name, scale, "data"), name.split("-")[0]
    optimizers, methods = {run.optimizer for run in study.grid}, {(run.optimizer, run.loss) for run in study.grid}
    assert len(set(study.grid)) == len(study.grid)
    assert "dfw" in optimizers
    assert all(run.test == (kind in ("fixed", "first", "night")) for run in study.grid)
    for optimizer, loss in methods if kind not in ("fixed", "first", "night", "factors", "decay") else ():
        etas = {run.lr for run in study.grid if (run.optimizer, run.loss) == (optimizer, loss)}
        assert optimizer in ("prodigy", "dog", "sgd", "multistep") or len(etas) >= 3
    alone = ("first", "ablation", "factors", "decay", "sensitivity", "averaging", "parsing")
    assert optimizers >= {"nadamw", "soap"} or kind in alone or scale == "paper"
    if name == "snli":  # Table 3: every baseline with both losses
        assert {("adam", "ce"), ("adam", "hinge"), ("dfw", "hinge"), ("sgd", "hinge")} <= methods
    if kind == "fixed":
        peers = [(run.optimizer, run.lr) for run in study.grid if run.averages == ("0.995",) and run.seed == 1]
        assert {("adamw", 0.001), ("adamw", 0.01), ("nadamw", 0.001), ("nadamw", 0.01), ("soap", 0.003)} <= set(peers)
        assert {("muon", 0.001), ("muon", 0.01)} <= set(peers)
        assert {run.average for run in study.grid if not run.averages} == {"0.995"}  # ours, the only ones without
        assert [len(study.with_seeds(seeds).grid) for seeds in ([1], [2, 3], [4])] == [18, 36, 0]
    if kind in ("fixed", "factors", "decades", "decay", "night"):
        assert {(run.lr, run.metric, run.memory) for run in study.grid} >= {("auto", "kronecker", 0.9)}


def test_with_hours_a_sweep_stops_and_goes_on(command, data, tmp_path, monkeypatch, capsys):
    assert command("--hours", "0") == []
    assert "0 hours are over" in capsys.readouterr().out
    work, run = Sweep(tiny(data, averages=("0.9",)), tmp_path / "small" / "tiny"), sweep.train.run
    monkeypatch.setattr(sweep.train, "run", lambda *args, until: run(*args, until=0.0))
    with pytest.raises(sweep.train.TimeUp, match="1 of 2 epochs"):  # the time is up within the first run
        work.work()
    monkeypatch.setattr(sweep.train, "run", run)
    assert len(command()) == 8


def test_runs_that_take_turns_have_equally_many_epochs_whenever_the_time_is_over(
    command, data, tmp_path, monkeypatch, capsys
):
    study = replace(tiny(data, averages=("0.9",), test=True), turns=True, seeds=())
    monkeypatch.setitem(SCALES["small"], "tiny", lambda folder: study)
    order, run = [], sweep.train.run

    def one(config, *args, **options):
        order.append((config.optimizer, config.lr))
        return run(config, *args, **options)

    monkeypatch.setattr(sweep.train, "run", one)
    monkeypatch.setattr(sweep.time, "monotonic", lambda: float(len(order)))  # an epoch takes a second
    found = command("--epochs", "3", "--hours", str(4.5 / 3600))
    assert order == [(run.optimizer, run.lr) for run in (*study.grid, study.grid[0])]
    assert sorted(len(result["curve"]) for result in found) == [1, 1, 1, 2]
    assert all(result["test"] is None for result in found)
    assert "| DFW, η = 0.001, momentum 0.9 | 1 of 3 |" in capsys.readouterr().out
    monkeypatch.setattr(sweep.time, "monotonic", lambda: 0.0)
    whole = command("--epochs", "3", "--go-on")  # what is not done is not known
    assert order[5:8] == [(run.optimizer, run.lr) for run in study.grid[1:]]  # those behind go on first
    assert all(len(result["curve"]) == 3 and result["test"] > 0 for result in whole)
    assert told(whole) == told(command("--epochs", "3"))
    assert len(order) == 3 * 4


def test_unknown_studies_list_the_valid_ones():
    with pytest.raises(ValueError, match="no study named 'mnist'; there are cifar10, cifar10-augmented, cifar100"):
        study_of("mnist", "small", "data")
    with pytest.raises(ValueError, match="no scale named 'huge'; there are small, paper, tuned"):
        study_of("cifar10", "huge", "data")
