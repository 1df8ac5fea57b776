"""What a training step costs with each setting of ``fixed-TASK``, beside AdamW's: for the table at equal time.

python -m experiments cost california bike --data DIR    # their rows of experiments/results/cost.csv

A step is that of a run: samples, forward, backward, update; our own average included, those that a run makes of a peer
not. The settings take the same batches in turn, on one thread, a block of steps each: what an optimizer does every ten
steps is in every block once.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import count
from pathlib import Path
from timeit import timeit

import torch
from pandas import DataFrame, concat

from experiments import config as configs
from experiments import train
from experiments.config import Config
from experiments.report.names import BASELINE, recommended
from experiments.report.results import read_costs
from experiments.studies import study_of
from experiments.tasks import task_of
from experiments.train import Training

BLOCK = 10  # steps


def measure(runs: Sequence[Config], seconds: float) -> DataFrame:
    """Milliseconds of a step by setting, and their ratio to AdamW's: medians over as many rounds as the time allows.

    The ratio is taken within a round: batches differ in length, and a machine in speed. Settings that differ in a
    number or a schedule are measured once.
    """
    task, made = task_of(runs[0]), {}
    kinds = {run: (run.method._replace(scheduled=False), run.momentum, run.memory) for run in runs}
    for run, kind in kinds.items():
        made.setdefault(kind, _endless(Training.of(replace(run, averages=()), task)))
    for steps in made.values():
        next(steps)  # compiles, and makes the optimizer's state
    rounds, until = [], time.monotonic() + seconds
    while not rounds or time.monotonic() < until:
        rounds.append({kind: _milliseconds(steps) for kind, steps in made.items()})
    times = DataFrame({recommended(run): [times[kind] for times in rounds] for run, kind in kinds.items()})
    found = {"ms": times.median(), "ratio": times.div(times[BASELINE], axis=0).median(), "rounds": len(times)}
    return DataFrame(found).round(3).rename_axis("setting").reset_index()


def _endless(training: Training) -> Iterator[object]:
    for epoch in count():
        yield from train.steps(training, training.model, epoch % training.config.epochs)


def _milliseconds(steps: Iterator[object]) -> float:
    """The mean over a block of steps, after one that fills the caches."""
    next(steps)
    return 1e3 * timeit(partial(next, steps), number=BLOCK) / BLOCK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="california, bike, ...: there is a study fixed-TASK")
    parser.add_argument("--data", default="data", help="the folder of the data sets")
    configs.add_arguments(parser, ("precision", "records"))
    parser.add_argument("--seconds", type=float, default=60.0, help="for the rounds of a task; default: %(default)s")
    parser.add_argument("--results", type=Path, default=Path("experiments/results"), help="where cost.csv is")


def main(args: argparse.Namespace) -> None:
    """Measure the tasks, and replace their rows."""
    file = args.results / "cost.csv"
    where = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "torch": torch.__version__.partition("+")[0]}
    where |= {"machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}"}
    for task in args.tasks:
        study = study_of(f"fixed-{task}", "small", args.data).with_seeds([1])
        study = study.changed(precision=args.precision, records=args.records)
        found = measure(study.grid, args.seconds).assign(**where)
        found.insert(0, "task", task)
        known = read_costs(file)
        concat([known[known.task != task], found]).to_csv(file, index=False)
        print(found.to_string(index=False))
