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
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from pandas import DataFrame, Series, concat

from experiments.optimizers import OPTIMIZERS

ERRORS = {"california": "MAE", "bike": "MAE", "lm": "nats per character"}
SCORES = {"ocr-small": "letters right, %", "ocr-large": "letters right, %", "chunking": "F1, %", "camvid": "IoU, %"}
SCORES |= {"sentences": "mean average precision, %", "parsing": "labelled attachment, %"}
SCORES |= {"segments": "F1, %", "matching": "letters right, %"}
TASK = ("dataset", "model", "images", "held", "augment")  # settings are compared only within one task
NOT_A_CHOICE = ("epochs", "seed", "averages", "test", "optimizer", "loss", "metric", "average", *TASK)
NOT_A_CHOICE += ("device", "precision", "data", "records", "compile")  # where and how it was computed
ORDER = list(OPTIMIZERS)

Results = dict[str, DataFrame]  # by study


class Method(NamedTuple):
    """What a row of a table compares. With and without a schedule are two methods: that is the paper's point.

    ``metric``, ``average`` (its own) and ``auto`` (automatic η) are proxsvm's.
    """

    optimizer: str
    loss: str
    scheduled: bool
    metric: str = ""
    average: str = ""
    auto: bool = False


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


def rows_of(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of one run: the row of its weights (decay "") and of each average; a test value of inf: it diverged."""
    config, curve = line["config"], [_epoch(point) for point in line["curve"]]
    lower = config["dataset"] in ERRORS
    ours = config.get("metric", ""), config.get("average", ""), config["lr"] == "auto"
    setting = sorted(
        (k, tuple(v) if isinstance(v, list) else v)
        for k, v in config.items()
        if k not in NOT_A_CHOICE and (v or k != "memory")
    )
    tests = {"": line["test"]} | (line.get("test_averaged") or {})
    ends = line.get("test_last") or {}
    for decay in ("", *curve[-1]["val_averaged"]):
        values = [epoch["val_averaged"][decay] if decay else epoch["val"] for epoch in curve]
        finite = [value for value in values if math.isfinite(value)]
        yield {
            "study": line["study"],
            "task": tuple((name, config.get(name)) for name in TASK),
            "method": Method(config["optimizer"], config["loss"], bool(config.get("schedule")), *ours),
            "optimizer": config["optimizer"],
            "setting": tuple(setting),
            "eta": math.inf if config["lr"] == "auto" else float(config["lr"]),
            "epochs": int(config["epochs"]),
            "seed": int(config["seed"]),
            "decay": decay,
            "lower": lower,
            "val": (min if lower else max)(finite) if math.isfinite(values[-1]) else math.nan,
            "last": values[-1],
            "test": _test(tests.get(decay)),
            "test_last": _test(ends.get(decay)),
            "read": line["test"] is not None,
            "config": config,
            "provenance": line["provenance"],
            "curve": curve,
        }


def _test(value: float | None) -> float:
    """nan if it was not read, inf if the run diverged."""
    return math.nan if value is None else value if math.isfinite(value) else math.inf


def _epoch(point: dict[str, Any]) -> dict[str, Any]:
    """Its numbers; ``train`` is what ``val`` measures, on the training samples. JSON's null is nan."""
    numbers = {k: math.nan if v is None else v for k, v in point.items()}
    train = next((v for k, v in numbers.items() if k in ("train_accuracy", "train_mae", "train_nats")), math.nan)
    known = {"gamma": math.nan, "val_averaged": {}, "val_averaged_fresh": {}, "train": train}
    return known | {k: v for k, v in numbers.items() if v is not None}


def unit(runs: DataFrame) -> str:
    """What validation measures."""
    return (ERRORS | SCORES).get(runs.config.iloc[0]["dataset"], "accuracy, %")


def plain(runs: DataFrame) -> DataFrame:
    """One row per run: that of its weights."""
    return runs[runs.decay == ""]


def candidates(runs: DataFrame, averaged: bool = False) -> list[DataFrame]:
    """The seeds of each setting together, in the order of the paper's tables and of η."""
    mine = runs[(runs.decay != "") == averaged]
    groups = mine.groupby(["task", "method", "setting", "epochs", "decay"], sort=False)
    return sorted((group.sort_values("seed") for _, group in groups), key=_order)


def _order(candidate: DataFrame) -> tuple[Any, ...]:
    first = candidate.iloc[0]
    return rank(first.method), str(first.task), first.epochs, first.eta, str(first.setting), first.decay


def rank(method: Method) -> tuple[int, Method]:
    return ORDER.index(method.optimizer) if method.optimizer in ORDER else len(ORDER), method


def choose(runs: DataFrame, averaged: bool = False) -> list[DataFrame]:
    """The best candidate of each method of each task, among its longest runs."""
    groups: dict[Any, list[DataFrame]] = {}
    for candidate in candidates(final(runs), averaged):
        groups.setdefault((candidate.task.iloc[0], candidate.method.iloc[0]), []).append(candidate)
    return [best(group) for group in groups.values()]


def best(group: Sequence[DataFrame]) -> DataFrame:
    """The candidate with the best validation value on the seeds that all have, or on their own where they share none.

    Of equal ones, the one whose test number was read.
    """
    shared = set.intersection(*(set(candidate.seed) for candidate in group))

    def score(candidate: DataFrame) -> tuple[float, bool]:
        of = candidate[candidate.seed.isin(shared)] if shared else candidate
        value = of.val.mean(skipna=False) * (-1 if of.lower.iloc[0] else 1)
        return -math.inf if math.isnan(value) else value, bool(candidate.test.notna().any())

    return max(group, key=score)


def final(runs: DataFrame) -> DataFrame:
    """The longest runs of each task; of these, where the test set was read for some of a method, only those."""
    long = runs[runs.epochs == runs.groupby("task").epochs.transform("max")]
    return long[long.read | ~long.groupby(["task", "method"]).read.transform("any")]


def grid(runs: DataFrame) -> DataFrame:
    """The cross-validation of one task: the runs of the length at which most settings were tried."""
    tried = runs.drop_duplicates(["epochs", "method", "setting"]).epochs.value_counts()
    return runs[runs.epochs == max(tried.index, key=lambda epochs: (tried[epochs], epochs))]


def preferred(candidate: DataFrame, runs: DataFrame) -> DataFrame | None:
    """What the grid of the same method prefers, where that is not the setting that was run to the end."""
    first = candidate.iloc[0]
    mine = grid(runs)
    pool = candidates(mine[mine.method.map(lambda method: method == first.method)], averaged=bool(first.decay))
    top = best(pool) if pool else None
    return None if top is None or top.setting.iloc[0] == first.setting else top


def of_tested(candidate: DataFrame) -> DataFrame:
    """The runs whose test number was read (all if none was), so that a row has the same seeds throughout."""
    read = candidate[candidate.test.notna()]
    return read if len(read) else candidate


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


def validation(candidate: DataFrame) -> str:
    return spread(candidate.val, candidate.lower.iloc[0])


def tested(candidate: DataFrame, deviation: bool = True) -> str:  # noqa: PT028
    return spread(candidate.test.dropna(), candidate.lower.iloc[0], deviation)


def together(results: Results) -> DataFrame:
    """The runs of several studies."""
    return concat(list(results.values()), ignore_index=True)
