"""A study's runs, shared by any number of processes and machines through Optuna.

python -m experiments sweep cifar10 --scale small --data DIR --workers 2
python -m experiments sweep cifar10 --scale small --data DIR --storage postgresql://...   # on each of several machines

Kill it at any time, or pass --hours: the same command resumes where it was. Finished runs are not run again,
and the run of a worker that died is resumed, from its last checkpoint, by another one. With --go-on, runs that the
results file contains are not repeated either: a study can get more seeds on another machine, after the folder of its
runs is gone. With --dry-run it only prints what it would do, and what that costs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from filelock import FileLock  # torch depends on it, too

from experiments import plan, train
from experiments.config import Config, asked, from_dict
from experiments.folder import write
from experiments.studies import SCALES, Study, study_of
from proxsvm._extras import load

Result = dict[str, Any]


@dataclass(frozen=True)
class Clock:
    """``heartbeat``; after how many seconds without one a worker is dead; when to stop (``time.monotonic()``)."""

    heartbeat: int = 60
    grace: int = 300
    until: float = math.inf


CLOCK = Clock()


def work(study: Study, storage: str, out: Path, clock: Clock = CLOCK, before: Sequence[Result] = ()) -> list[Result]:
    """Work through the grid, then through what validation chose; returns the results of all runs.

    Each run is one trial of Optuna's queue, which hands it to one worker. (Its grid sampler, without the queue, lets
    two workers draw the last points of a grid twice.) A worker whose heartbeat stops is dead, and its trial goes back
    into the queue. Runs whose results are in ``before`` are not run again. Raises TimeUp when the time is over.
    """
    first = _finish(f"{study.name}: grid", study.grid, storage, out, clock, before)
    curves = {run: result["curve"] for run, result in zip(study.grid, first, strict=True)}
    second = _finish(f"{study.name}: chosen", study.chosen(curves), storage, out, clock, before)
    return [{"study": study.name, **result} for result in (*first, *second)]


def finished(study: Study, storage: str) -> list[Result]:
    """The results of the runs that are done so far."""
    optuna = load("optuna", extra="experiments")
    names = [name for name in optuna.get_all_study_names(storage) if name.startswith(f"{study.name}: ")]
    queues = [optuna.load_study(study_name=name, storage=storage) for name in sorted(names, reverse=True)]  # grid first
    trials = [trial for queue in queues for trial in queue.get_trials(states=(optuna.trial.TrialState.COMPLETE,))]
    results = {from_dict(result["config"]): result for result in (trial.user_attrs["result"] for trial in trials)}
    return [{"study": study.name, **result} for result in results.values()]


def _finish(
    name: str,
    runs: Sequence[Config],
    storage: str,
    out: Path,
    clock: Clock,
    before: Sequence[Result],
) -> list[Result]:
    """Take runs from the queue until all are done, by this worker or by others."""
    optuna = load("optuna", extra="experiments")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    runs, lock = list(runs), FileLock(out / "queue.lock")
    with lock:  # two workers that create the tables or fill the queue at the same time would conflict
        connection = _connect(optuna, storage, clock)
        # on several machines, the creator of the queue gets time to fill it; on one, the lock shows that it died
        queue = _queue(optuna, name, runs, connection, before, 0 if storage.startswith("sqlite") else clock.grace)
    state = optuna.trial.TrialState
    idle = 0
    while True:
        if time.monotonic() > clock.until:
            raise train.TimeUp(name)
        if queue.get_trials(deepcopy=False, states=(state.WAITING,)):
            _take(optuna, queue, runs, out, clock.until)
            continue
        done = {trial.params["run"]: trial for trial in queue.get_trials(deepcopy=False, states=(state.COMPLETE,))}
        if len(done) == len(runs):
            return [done[k].user_attrs["result"] for k in range(len(runs))]
        busy = queue.get_trials(deepcopy=False, states=(state.RUNNING,))
        for trial in busy:
            # A worker killed before its first heartbeat would never count as dead. (A retried trial has the attributes
            # of the one before it, so "seen" names the trial.)
            if trial.user_attrs.get("seen") != trial.number:
                with suppress(optuna.exceptions.UpdateFinishedTrialError):  # it has finished in the meantime
                    connection.record_heartbeat(trial._trial_id)
                    connection.set_trial_user_attr(trial._trial_id, "seen", trial.number)
        idle = 0 if busy else idle + 1  # a dead worker's run is briefly neither running nor waiting
        if idle > 3:  # and stays so, if the worker that should have requeued it died as well
            with lock:
                _fill(optuna, queue, runs)
        time.sleep(min(5, clock.heartbeat))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(queue)


def _take(optuna: Any, queue: Any, runs: Sequence[Config], out: Path, until: float) -> None:
    """Take one run from the queue and execute it.

    A worker whose heartbeat is late, because the machine slept or was busy, counts as dead, and its trial as
    failed: its result can no longer be reported. Its run is finished, though, and the next worker will find it so.
    """
    taken: list[int] = []
    faults: list[BaseException] = []

    def objective(trial: Any) -> float:
        taken.append(trial._trial_id)
        return _run(optuna, queue, trial, runs, out, until, faults)

    try:
        queue.optimize(objective, n_trials=1)
    except Exception:
        if faults:
            raise faults[0] from None
        if not taken or queue._storage.get_trial(taken[0]).state != optuna.trial.TrialState.FAIL:
            raise


def _run(
    optuna: Any, queue: Any, trial: Any, runs: Sequence[Config], out: Path, until: float, faults: list[BaseException]
) -> float:
    """One run of the queue; Optuna's objective. Errors of the run itself are added to ``faults``."""
    if "run" not in trial.user_attrs:
        raise optuna.TrialPruned("the queue was empty: another worker took the last run")
    k = trial.suggest_categorical("run", list(range(len(runs))))
    folder = out / _name(runs[k])
    try:
        with FileLock(f"{folder}.lock"):  # a worker that only seemed dead may still be running it
            lines = train.run(runs[k], folder, until=until)
    except BaseException as fault:  # Ctrl-C as well: the trial has failed, but the run can be resumed later
        faults.append(fault)
        _enqueue(queue, k, runs[k])
        raise
    about = json.loads((folder / "config.json").read_text())
    last = lines[-1]
    curve = [{k: v for k, v in line.items() if not k.startswith("test")} for line in lines]
    result = {**about, "curve": curve, "test": last.get("test"), "test_averaged": last.get("test_averaged")}
    trial.set_user_attr("result", result)
    return _value(lines)


def _connect(optuna: Any, storage: str, clock: Clock) -> Any:
    sqlite = storage.startswith("sqlite")
    options: dict[str, Any] = {
        "engine_kwargs": {"connect_args": {"timeout": 60}} if sqlite else {},
        "heartbeat_interval": clock.heartbeat,
        "grace_period": clock.grace,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # heartbeats
        again = optuna.storages.RetryHeartbeatStaleTrialCallback()
        connection = optuna.storages.RDBStorage(storage, heartbeat_stale_trial_callback=again, **options)
    if sqlite:
        _one_at_a_time(connection.engine)
    return connection


def _one_at_a_time(engine: Any) -> None:
    """Let every transaction lock the file from its start: SQLite has no row locks, and two workers that read the same
    waiting trial would both take it."""
    event = load("sqlalchemy.event", extra="experiments")

    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # Python's own BEGIN would come too late

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    engine.dispose()  # earlier connections do not use it


def _queue(
    optuna: Any, name: str, runs: Sequence[Config], storage: Any, before: Sequence[Result], patience: int
) -> Any:
    """The Optuna study of these runs; the worker that creates it fills its queue, or the next one if that one died."""
    plan = sha256(json.dumps([asdict(config) for config in runs], sort_keys=True).encode()).hexdigest()[:12]
    name = f"{name} {plan}"  # another plan is another study: their results cannot be confused
    try:
        queue = optuna.create_study(study_name=name, storage=storage)
    except optuna.exceptions.DuplicatedStudyError:
        queue = optuna.load_study(study_name=name, storage=storage)
        for _ in range(patience):  # another machine may be filling it
            if queue.user_attrs.get("filled"):
                return queue
            time.sleep(1)
    _fill(optuna, queue, runs, before)
    queue.set_user_attr("filled", True)
    return queue


def _fill(optuna: Any, queue: Any, runs: Sequence[Config], before: Sequence[Result] = ()) -> None:
    """Put the missing runs into the queue; those with a result from ``before`` as done."""
    state = optuna.trial.TrialState
    present = queue.get_trials(deepcopy=False, states=(state.WAITING, state.RUNNING, state.COMPLETE))
    there = {trial.user_attrs.get("run") for trial in present}
    done = {asked(from_dict(result["config"])): result for result in before}
    for k in sorted(set(range(len(runs))) - there):
        if result := done.get(asked(runs[k])):
            choice = optuna.distributions.CategoricalDistribution(list(range(len(runs))))
            taken = {"params": {"run": k}, "distributions": {"run": choice}, "value": _value(result["curve"])}
            queue.add_trial(optuna.create_trial(user_attrs={"run": k, "result": result}, **taken))
        else:
            _enqueue(queue, k, runs[k])


def _enqueue(queue: Any, k: int, config: Config) -> None:
    queue.enqueue_trial({"run": k}, user_attrs={"run": k, "config": asdict(config)})


def _value(curve: Sequence[train.Line]) -> float:
    """The value that is reported to Optuna, which treats a nan as a failure."""
    value = curve[-1]["val"]
    return math.inf if math.isnan(value) else value


def _name(config: Config) -> str:
    """The name of a run's folder: the settings that people look for, and a digest of all of them."""
    digest = sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:8]
    lr = config.lr if isinstance(config.lr, str) else f"{config.lr:g}"
    return f"{config.dataset}-{config.model}-{config.optimizer}-{config.loss}-{lr}-{config.seed}-{digest}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = sorted({name for studies in SCALES.values() for name in studies})
    parser.add_argument("study", help=", ".join(names))
    parser.add_argument("--scale", default="small", help="small or paper")
    parser.add_argument("--data", default="data", help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("out/sweeps"), help="the folder of all runs")
    parser.add_argument("--storage", help="Optuna's storage; default: an SQLite file in --out")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with OMP_NUM_THREADS threads")
    parser.add_argument("--seeds", type=int, nargs="+", help="for the chosen runs or, if nothing is chosen, for all")
    parser.add_argument("--precision", help="float32 or bfloat16; default: the study's")
    parser.add_argument("--compile", help="a backend of torch.compile, such as inductor")
    parser.add_argument("--hours", type=float, default=math.inf, help="stop after this time; the same command resumes")
    parser.add_argument("--dry-run", action="store_true", help="run nothing; list the runs, their hours and disk space")
    parser.add_argument("--tflops", type=float, help="the device's sustained speed, for the hours of --dry-run")
    parser.add_argument("--records", type=int, nargs=2, help="images in CIFAR's files, if these are a subset")
    parser.add_argument("--so-far", action="store_true", help="run nothing; write the results of the finished runs")
    parser.add_argument("--go-on", action="store_true", help="do not repeat the runs in the results file in --results")
    parser.add_argument(
        "--results", type=Path, default=Path("experiments/results"), help="where SCALE/STUDY.jsonl goes"
    )


def main(args: argparse.Namespace) -> None:
    study = study_of(args.study, args.scale, args.data)
    if args.seeds is not None:
        study = study.with_seeds(args.seeds)
    changed = {"precision": args.precision, "compile": args.compile, "records": tuple(args.records or ())}
    changed = {name: value for name, value in changed.items() if value}
    study = replace(study, grid=tuple(replace(run, **changed) for run in study.grid))
    file = args.results / args.scale / f"{study.name}.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    before = known if args.go_on else []
    out = args.out / args.scale
    if args.dry_run:
        print(plan.listing(study, out, known, args.tflops, args.go_on))
        return
    out.mkdir(parents=True, exist_ok=True)
    storage = args.storage or f"sqlite:///{out / 'optuna.db'}"
    if args.so_far:
        results = finished(study, storage)
    else:
        words = [sys.executable, "-m", "experiments", *sys.argv[1:], "--workers", "1"]
        others = [subprocess.Popen(words) for _ in range(args.workers - 1)]
        clock = Clock(until=time.monotonic() + 3600 * args.hours)
        try:
            results = work(study, storage, out, clock, before)
        except train.TimeUp as error:
            print(f"{args.hours:g} hours are over ({error}): the same command resumes from here")
            results = finished(study, storage)
        for other in others:
            other.wait()
    file.parent.mkdir(parents=True, exist_ok=True)
    # with --go-on nothing is dropped, not even runs of other seeds than these
    results = list({asked(from_dict(result["config"])): result for result in [*before, *results]}.values())
    for result in results:
        result["config"].pop("data", None)  # the folder belongs to this machine
    write(file, "".join(json.dumps(result) + "\n" for result in results))
    print(f"{len(results)} runs in {file}")
