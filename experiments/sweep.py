"""A study's runs, shared by any number of processes, and of machines with a common folder.

python -m experiments sweep cifar10 --scale small --data DIR --workers 2

Every run has a folder in --out, with a lock that one worker holds at a time and that the system frees when the worker
dies. Kill it at any time, or pass --hours: the same command resumes from the last checkpoints, and finished runs are
not run again. With --go-on, runs that the results file contains are not repeated either: a study can get more seeds on
another machine, after the folder of its runs is gone.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from filelock import FileLock, Timeout  # torch depends on it, too
from tqdm import tqdm

from experiments import config as configs
from experiments import train
from experiments.config import Config, asked, from_dict
from experiments.optimizers import OPTIMIZERS
from experiments.report import tables
from experiments.report.results import read
from experiments.studies import SCALES, Study, study_of
from experiments.train import Result, done, write

CHANGES = ("epochs", "images", "precision", "compile", "records")  # of every run, where they are given
PAUSE = 2.0  # seconds between two checks of the runs of other workers
tqdm.set_lock(threading.RLock())  # its own is shared by forked processes: one killed while it draws would stop them all


@dataclass
class Sweep:
    """The work on a study in the folder ``out``, until ``until`` (``time.monotonic()``).

    Runs that are ``known``, by what was asked, are not run again. One bar counts the epochs of all runs.
    """

    study: Study
    out: Path
    until: float = math.inf
    known: dict[Config, Result] = field(default_factory=dict)
    quiet: bool = True
    _runs: dict[Config, None] = field(default_factory=dict, init=False)  # all that were asked for so far

    def __post_init__(self) -> None:
        self.bar = tqdm(total=0, unit="epoch", disable=True if self.quiet else None)  # one, and only on a terminal

    def found(self, run: Config) -> Result:
        """What is there of it so far."""
        return self.known.get(asked(run)) or train.so_far(self.out / name_of(run)) or {"curve": []}

    def work(self) -> list[Result]:
        """Work through the grid, then through what validation chose; returns the results of all runs."""
        grid = list(self.study.grid)
        with self.bar:
            while True:
                results = self.finish(grid)
                curves = {run: result["curve"] for run, result in zip(grid, results, strict=True)}
                if not (more := self.study.beyond(curves)):
                    break
                grid += more
            return [*results, *self.finish(self.study.chosen(curves))]

    def so_far(self) -> list[Result]:
        """The results of the runs that are done, those of the grid first; where they take turns, of all so far."""
        found = [train.so_far(file.parent) for file in sorted(self.out.glob("*/config.json"))]
        wanted = [result for result in found if result is not None and (self.study.turns or done(result))]
        return sorted(wanted, key=lambda result: result["config"]["test"])

    def finish(self, runs: Sequence[Config]) -> list[Result]:
        """Run what has no result yet, until all have one, from this worker or from others."""
        self._runs |= dict.fromkeys(runs)
        self.bar.total = sum(run.epochs for run in self._runs)
        while True:
            epochs = {run: len(self.found(run)["curve"]) for run in self._runs}
            self.bar.n = sum(epochs.values())
            if not (waiting := [run for run in runs if epochs[run] < run.epochs]):
                return [self.found(run) for run in runs]
            fewest = min(epochs[run] for run in waiting)
            waiting = [run for run in waiting if epochs[run] == fewest or not self.study.turns]
            if not any(self._take(run) for run in waiting):
                time.sleep(PAUSE)  # others are at work on the rest

    def _take(self, run: Config) -> bool:
        """Execute a run, unless it is done or another worker has its lock."""
        number = list(self._runs).index(run) + 1
        name = f"run {number} of {len(self._runs)}, {OPTIMIZERS[run.optimizer].name} {run.lr}"
        if time.monotonic() > self.until:
            raise train.TimeUp(name)
        at = self.out / name_of(run)
        try:
            with FileLock(f"{at}.lock", timeout=0):
                if train.result(at) is not None:
                    return False
                self.bar.set_description(name)
                if self.bar.disable and not self.quiet:
                    print(name, flush=True)
                until = -math.inf if self.study.turns else self.until  # an epoch
                train.run(run, at, lambda _: self.bar.update(), until=until)
        except Timeout:
            return False
        except train.TimeUp:
            if not self.study.turns:
                raise
        return True


def name_of(config: Config) -> str:
    """The name of a run's folder: the settings that people look for, and a digest of all of them."""
    digest = sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:8]
    return f"{config.dataset}-{config.model}-{config.optimizer}-{config.loss}-{config.lr}-{config.seed}-{digest}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = sorted({name for studies in SCALES.values() for name in studies})
    parser.add_argument("study", help=", ".join(names))
    parser.add_argument("--scale", default="small", help=", ".join(SCALES))
    parser.add_argument("--data", default="data", help="the folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("out/sweeps"), help="the folder of all runs")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with OMP_NUM_THREADS threads")
    parser.add_argument("--seeds", type=int, nargs="+", help="for the chosen runs or, if nothing is chosen, for all")
    configs.add_arguments(parser, CHANGES)
    parser.add_argument("--hours", type=float, default=math.inf, help="stop after this time; the same command resumes")
    parser.add_argument("--so-far", action="store_true", help="run nothing; write the results of the finished runs")
    parser.add_argument("--go-on", action="store_true", help="do not repeat the runs in the results file in --results")
    parser.add_argument("--fast-cut", action="store_true", help="CamVid's default where PyMaxflow is installed")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    results = Path("experiments/results")
    parser.add_argument("--results", type=Path, default=results, help="where SCALE/STUDY.jsonl goes")


def main(args: argparse.Namespace) -> None:
    study = study_of(args.study, args.scale, args.data)
    if args.seeds is not None:
        study = study.with_seeds(args.seeds)
    study = study.changed(**{name: getattr(args, name) for name in CHANGES})
    file = args.results / args.scale / f"{study.name}.jsonl"
    lines = file.read_text().splitlines() if args.go_on and file.exists() else []
    known = {asked(from_dict(result["config"])): result for result in filter(done, map(json.loads, lines))}
    until = time.monotonic() + 3600 * args.hours
    sweep = Sweep(study, args.out / args.scale / study.name, until, known, args.quiet)
    sweep.out.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "experiments", *sys.argv[1:], "--workers", "1", "--quiet"]
    others = [subprocess.Popen(words) for _ in range(args.workers - 1)]
    try:
        results = sweep.so_far() if args.so_far else sweep.work()
    except train.TimeUp as error:
        print(f"{args.hours:g} hours are over ({error}): the same command resumes from here")
        results = sweep.so_far()
    for other in others:
        other.wait()
    # with --go-on nothing is dropped, not even runs of other seeds than these
    results = list((known | {asked(from_dict(result["config"])): result for result in results}).values())
    for result in results:
        result["config"].pop("data", None)  # the folder belongs to this machine
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, "".join(json.dumps({"study": study.name, **result}) + "\n" for result in results))
    print(f"{len(results)} runs in {file}")
    if study.turns and results:
        print(tables.progress(study.name, read(file.parent)[study.name]).markdown())


def alias(pattern: str, scale: str = "small", words: Sequence[str] | None = None) -> None:
    """The command line of a study, ``[TASK] [options of sweep]``: goes on from its results, and prints its table."""
    words = list(sys.argv[1:] if words is None else words)
    study = pattern.format(words.pop(0)) if "{}" in pattern and words and words[0][0] != "-" else pattern
    parser = argparse.ArgumentParser(description=f"The same as: python -m experiments sweep {pattern} --go-on")
    add_arguments(parser)
    sys.argv[1:] = ["sweep", study, *words, "--scale", scale, "--go-on"]
    args = parser.parse_args(sys.argv[2:])
    main(args)
    print(tables.study(study, read(args.results / scale)[study]).markdown())
