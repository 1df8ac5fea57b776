"""Finished runs, as the sweeps wrote them: JSON lines, one per run, read into small typed records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ERRORS = {"california": "MAE", "bike": "MAE", "lm": "nats per character"}
SCORES = {"ocr-large": "letters right, %", "chunking": "F1, %", "camvid": "IoU, %"}  # elsewhere: the accuracy in %
TASK = ("dataset", "model", "images", "held", "augment")  # settings are compared only within one task
SIDE_STUDIES = ("sensitivity", "averaging", "fixed", "ablation")  # they answer other questions: see is_side
NOT_A_CHOICE = ("epochs", "seed", "averages", "test", "optimizer", "loss", "metric", "average", *TASK)
NOT_A_CHOICE += ("device", "precision", "data", "records", "compile")  # where and how it was computed

Setting = tuple[tuple[str, Any], ...]


def is_side(study: str) -> bool:
    """Whether a study is not part of the paper's tables.

    >>> is_side("fixed-cifar10"), is_side("cifar10-augmented")
    (True, False)
    """
    return study.split("-")[0] in SIDE_STUDIES


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


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch; ``train`` is what ``val`` measures, on the training samples. Overflow is nan."""

    epoch: int
    train_loss: float
    train: float
    step_size: float
    gamma: float  # the mean of the epoch; nan where the optimizer has none
    val: float
    val_averaged: Mapping[str, float]
    val_averaged_fresh: Mapping[str, float]  # with re-estimated batch-norm statistics; only after the last epoch
    seconds: float


@dataclass(frozen=True)
class Run:
    """One finished run. ``test`` is None where validation did not choose its setting."""

    study: str
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    curve: tuple[Epoch, ...]
    test: float | None
    test_averaged: Mapping[str, float]

    @property
    def method(self) -> Method:
        """Optimizer, loss, and whether a schedule by hand is used."""
        config = self.config
        ours = config.get("metric", ""), config.get("average", ""), config["lr"] == "auto"
        return Method(config["optimizer"], config["loss"], bool(config.get("schedule")), *ours)

    @property
    def task(self) -> Setting:
        """What is learned from which data, by which network."""
        return tuple((name, self.config.get(name)) for name in TASK)

    @property
    def epochs(self) -> int:
        """The budget: runs of different lengths are not compared either."""
        return int(self.config["epochs"])

    @property
    def setting(self) -> Setting:
        """What cross-validation chooses: η and all that the task and the method leave open."""
        return tuple(sorted((k, _hashable(v)) for k, v in self.config.items() if k not in NOT_A_CHOICE))

    @property
    def lower_is_better(self) -> bool:
        """Whether the value is an error."""
        return self.config["dataset"] in ERRORS

    @property
    def unit(self) -> str:
        """What the value measures."""
        return (ERRORS | SCORES).get(self.config["dataset"], "accuracy, %")

    def best(self, decay: str | None = None) -> float:
        """Validation of the best epoch, of the weights or of an average; nan for a run that diverged in the end."""
        values = [epoch.val if decay is None else epoch.val_averaged[decay] for epoch in self.curve]
        if not math.isfinite(values[-1]):
            return math.nan
        return (min if self.lower_is_better else max)(value for value in values if math.isfinite(value))

    @property
    def last(self) -> Epoch:
        """The end of training."""
        return self.curve[-1]


Results = dict[str, list[Run]]


def read(folder: Path) -> Results:
    """The runs of all ``folder/*.jsonl`` by study; a folder that is not there has none.

    Of two lines with the same study and config the later one counts.
    """
    return _read(folder, lambda _, line: parse(line))


def read_structured(folder: Path) -> Results:
    """The runs of ``experiments.structured.tuned``, whose files are named after their tasks, in the same form."""
    return _read(folder, parse_structured)


def _read(folder: Path, parse: Callable[[str, Mapping[str, Any]], Run]) -> Results:
    runs: dict[tuple[str, str], Run] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if line.strip():
                try:
                    run = parse(file.stem, json.loads(line))
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
                    raise ValueError(
                        f"{file}, line {number}: not a finished run: {what}. Expected what a sweep writes: a JSON "
                        "object with study, config, provenance, curve, test. Remove the line, and run the sweep again"
                    ) from error
                runs[run.study, json.dumps(run.config, sort_keys=True)] = run
    studies: Results = {}
    for run in runs.values():
        studies.setdefault(run.study, []).append(run)
    return studies


def parse(line: Mapping[str, Any]) -> Run:
    """One line of a file of results."""
    config, curve = line["config"], tuple(_epoch(point) for point in line["curve"])
    for name in ("dataset", "model", "optimizer", "loss", "lr", "epochs", "seed"):
        if name not in config:
            raise KeyError(f"config.{name}")
    if not curve:
        raise ValueError("its curve is empty")
    return Run(
        study=line["study"],
        config=config,
        provenance=line["provenance"],
        curve=curve,
        test=None if line["test"] is None else float(line["test"]),
        test_averaged={k: float(v) for k, v in (line.get("test_averaged") or {}).items()},
    )


def parse_structured(task: str, line: Mapping[str, Any]) -> Run:
    """One line of a structured task: per epoch the value of the weights and of their average."""
    theirs, decay = line["config"], "0.99"
    ours = theirs["how"] in ("Euclidean", "diagonal")
    config = {name: theirs[name] for name in ("loss", "epochs", "seed")} | {
        "dataset": task,
        "model": "",
        "lr": theirs["eta"],
    }
    config["optimizer"] = "dfw" if ours else theirs["how"].lower()
    config["metric"] = "diagonal" if theirs["how"] == "diagonal" else ""
    values = {(point["epoch"], point["weights"]): point["val"] for point in line["trace"]}
    unknown = {"train_loss": None, "step_size": None, "seconds": line["seconds"] / theirs["epochs"]}
    curve = tuple(
        _epoch({"epoch": k, "val": values[k, "last"], "val_averaged": {decay: values[k, "average"]}, **unknown})
        for k in range(1, theirs["epochs"] + 1)
    )
    averaged = {decay: line["test_average"]} if "test_average" in line else {}
    return Run(task, config, {}, curve, line.get("test_last"), averaged)


def _epoch(point: Mapping[str, Any]) -> Epoch:
    averaged, fresh = (
        {k: _number(v) for k, v in (point.get(name) or {}).items()} for name in ("val_averaged", "val_averaged_fresh")
    )
    return Epoch(
        epoch=int(point["epoch"]),
        train_loss=_number(point["train_loss"]),
        train=_number(next((v for k, v in point.items() if k in ("train_accuracy", "train_mae", "train_nats")), None)),
        step_size=_number(point["step_size"]),
        gamma=_number(point.get("gamma")),
        val=_number(point["val"]),
        val_averaged=averaged,
        val_averaged_fresh=fresh,
        seconds=float(point["seconds"]),
    )


def _number(value: float | None) -> float:
    """JSON has no nan, so some writers put null."""
    return math.nan if value is None else float(value)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
