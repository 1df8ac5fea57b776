"""Finished runs as pandas frames: a row per run and average of its weights; and which setting validation chose.

A sweep tries a grid of settings, often in short runs, and then runs what validation chose to the end, with new seeds
and the test set. So only the longest runs of a task are compared. Where these have several settings of a method, the
one with the best validation value counts, on the seeds that all of them have run; the value of a run is that of its
best epoch, as in the paper. Averaged weights make their own choice, of the setting and the decay. The test number is
that of the chosen setting; it decides nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from pandas import DataFrame, Series, read_csv

from experiments.config import from_dict
from experiments.optimizers import OPTIMIZERS
from experiments.studies import LOWER

WORDS = read_csv(Path(__file__).with_name("names.csv"), comment="#").set_index(["kind", "name"]).text
TASK = ("dataset", "model", "images", "held", "augment")  # settings are compared only within one task
NOT_A_CHOICE = ("epochs", "seed", "averages", "test", "optimizer", "loss", "metric", "average", *TASK)
NOT_A_CHOICE += ("device", "precision", "data", "records", "compile")  # where and how it was computed
ORDER = list(OPTIMIZERS)

Results = dict[str, DataFrame]  # by study


def read(*folders: Path) -> Results:
    """The runs of all ``folder/*.jsonl`` by study; of two lines with the same study and config the later one counts."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.jsonl"))):
        for number, text in enumerate(file.read_text().splitlines(), 1):
            try:
                line = json.loads(text)
                rows[line["study"], json.dumps(line["config"], sort_keys=True)] = list(rows_of(line))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                raise ValueError(
                    f"{file}, line {number}: not a finished run ({error!r}). Expected what a sweep writes: a JSON "
                    "object with study, config, provenance, curve, test. Remove the line, and run the sweep again"
                ) from error
    frame = DataFrame([row for run in rows.values() for row in run])
    return {str(study): runs for study, runs in frame.groupby("study", sort=False)} if rows else {}


def read_costs(file: Path) -> DataFrame:
    """What ``python -m experiments cost`` measured: a row for each setting of a task."""
    return read_csv(file) if file.exists() else DataFrame({"task": [], "setting": [], "ratio": []})


def rows_of(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of one run: the row of its weights (decay "") and of each average.

    A test value is nan if it was not read, and inf if the run diverged.
    """
    config, curve = from_dict(line["config"]), [_epoch(point) for point in line["curve"]]
    entries, lower = asdict(config), config.dataset in LOWER
    setting = [(k, v) for k, v in sorted(entries.items()) if k not in NOT_A_CHOICE and (v or k != "memory")]
    of_run = {name: entries[name] for name in ("optimizer", "epochs", "seed")}
    of_run |= {"study": line["study"], "method": config.method, "setting": tuple(setting), "lower": lower}
    of_run |= {"task": tuple((name, entries[name]) for name in TASK), "read": line["test"] is not None}
    of_run |= {"eta": math.inf if config.lr == "auto" else float(config.lr), "config": config, "curve": curve}
    tests = {"test": {"": line["test"]} | (line.get("test_averaged") or {}), "test_last": line.get("test_last") or {}}
    for decay in ("", *curve[-1]["val_averaged"]):
        values = [epoch["val_averaged"][decay] if decay else epoch["val"] for epoch in curve]
        best = (min if lower else max)(filter(math.isfinite, values)) if math.isfinite(values[-1]) else math.nan
        read = {name: found.get(decay) for name, found in tests.items()}
        read = {k: math.nan if v is None else v if math.isfinite(v) else math.inf for k, v in read.items()}
        yield of_run | read | {"decay": decay, "val": best, "values": values, "last": values[-1]}


def _epoch(point: dict[str, Any]) -> dict[str, Any]:
    """Its numbers; ``train`` is what ``val`` measures, on the training samples. JSON's null is nan."""
    numbers = {k: math.nan if v is None else v for k, v in point.items()}
    train = next((v for k, v in numbers.items() if k in ("train_accuracy", "train_mae", "train_nats")), math.nan)
    return {"gamma": math.nan, "val_averaged": {}, "val_averaged_fresh": {}, "train": train} | numbers


def unit(runs: DataFrame) -> str:
    """What validation measures."""
    return WORDS["units"].get(runs.config.iloc[0].dataset, "accuracy, %")


def plain(runs: DataFrame) -> DataFrame:
    """One row per run: that of its weights."""
    return runs[runs.decay == ""]


class Candidate:
    """The ``runs`` of one setting, a row for each seed; what all of them share is an attribute, such as ``method``."""

    def __init__(self, runs: DataFrame) -> None:
        self.runs, self.first = runs, runs.iloc[0].to_dict()

    def __getattr__(self, column: str) -> Any:
        return self.first[column]

    @property
    def order(self) -> tuple[Any, ...]:
        """Where it comes in the order of the paper's tables and of η."""
        known = ORDER.index(self.optimizer) if self.optimizer in ORDER else len(ORDER)
        return known, self.method, str(self.task), self.epochs, self.eta, str(self.setting), self.decay

    @property
    def key(self) -> tuple[Any, ...]:
        """What it shares with the averages of the same runs."""
        return self.task, self.method, self.setting, self.epochs

    @property
    def tested(self) -> DataFrame:
        """The runs whose test number was read (all if none was), so that a row has the same seeds throughout."""
        read = self.runs[self.runs.test.notna()]
        return read if len(read) else self.runs

    @property
    def validation(self) -> str:
        return spread(self.runs.val, self.lower)

    def test(self, deviation: bool = True) -> str:
        return spread(self.runs.test.dropna(), self.lower, deviation)


def candidates(runs: DataFrame, averaged: bool = False) -> list[Candidate]:
    """The seeds of each setting together, in order."""
    chosen = runs[(runs.decay != "") == averaged].sort_values("seed")
    groups = chosen.groupby(["task", "method", "setting", "epochs", "decay"], sort=False)
    return sorted((Candidate(group) for _, group in groups), key=lambda c: c.order)


def choose(runs: DataFrame, averaged: bool = False) -> list[Candidate]:
    """The best candidate of each method of each task, among its longest runs."""
    groups: dict[Any, list[Candidate]] = {}
    for c in candidates(final(runs), averaged):
        groups.setdefault((c.task, c.method), []).append(c)
    return [best(group) for group in groups.values()]


def best(group: Sequence[Candidate]) -> Candidate:
    """The candidate with the best validation value on the seeds that all have, or on their own where they share none.

    Of equal ones, the one whose test number was read.
    """
    shared = set.intersection(*(set(c.runs.seed) for c in group))

    def score(c: Candidate) -> tuple[float, bool]:
        of = c.runs[c.runs.seed.isin(shared)] if shared else c.runs
        value = of.val.mean(skipna=False) * (-1 if c.lower else 1)
        return -math.inf if math.isnan(value) else value, bool(c.runs.test.notna().any())

    return max(group, key=score)


def final(runs: DataFrame) -> DataFrame:
    """The longest runs of each task; of these, where the test set was read for some of a method, only those."""
    long = runs[runs.epochs == runs.groupby("task").epochs.transform("max")]
    return long[long.read | ~long.groupby(["task", "method"]).read.transform("any")]


def grid(runs: DataFrame) -> DataFrame:
    """The cross-validation of one task: the runs of the length at which most settings were tried."""
    tried = runs.drop_duplicates(["epochs", "method", "setting"]).epochs.value_counts()
    return runs[runs.epochs == max(tried.index, key=lambda epochs: (tried[epochs], epochs))]


def preferred(candidate: Candidate, tried: DataFrame) -> Candidate | None:
    """What the grid of the same method prefers, where that is not the setting that was run to the end."""
    pool = candidates(tried[[method == candidate.method for method in tried.method]], averaged=bool(candidate.decay))
    top = best(pool) if pool else None
    return None if top is None or top.setting == candidate.setting else top


def spread(values: Series, lower: bool, deviation: bool = True) -> str:
    """Mean ± sample standard deviation over the seeds; accuracies have one decimal, errors four digits.

    >>> spread(Series([60.0, 62.0]), lower=False), spread(Series([0.5]), lower=True), spread(Series([]), lower=True)
    ('61.0 ± 1.4', '0.5000', '—')
    """
    if not len(values):
        return "—"
    if not all(map(math.isfinite, values)):
        return "diverged"
    digits = sum(abs(values.iloc[0]) < bound for bound in (1, 10, 100, 1000)) if lower else 1
    tail = f" ± {values.std():,.{digits}f}" if deviation and len(values) > 1 else ""
    return f"{mean(values):,.{digits}f}{tail}"  # exact: pandas' rounds, and so does the format
