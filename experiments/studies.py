"""The studies: which runs answer which question, at the paper's scale and at one that two CPU cores can handle.

A study first tries a grid on the validation samples, then runs the chosen setting of every optimizer with new seeds
and the test set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from pandas import DataFrame, read_csv

from experiments.config import Config, from_text, known
from experiments.optimizers import loss_of

Line = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """``grid``: the runs of the cross-validation. The best of each method then runs for ``epochs`` with every seed.

    ``by`` names the values that decide: the weights' own (""), those of averages, by their decay, or the best of all
    ("any"). Where they do not agree, the choice of each is run. With ``growth``, the factor between two η, the grid of
    a method grows while its best η is at an edge. With ``turns`` the runs take turns, an epoch each: whenever the study
    is stopped, all have had the same time.
    """

    name: str
    grid: tuple[Config, ...]
    epochs: int
    seeds: tuple[int, ...] = (1, 2)
    by: tuple[str, ...] = ("",)
    growth: float = 0.0
    turns: bool = False

    def with_seeds(self, seeds: Iterable[int]) -> Study:
        """The study with these seeds of the chosen runs; where nothing is chosen, with its runs of these seeds."""
        if self.seeds:
            return replace(self, seeds=tuple(seeds))
        return replace(self, grid=tuple(run for run in self.grid if run.seed in set(seeds)))

    def changed(self, **entries: Any) -> Study:
        """The study with these entries of the configs of its grid, those that are given."""
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in entries.items() if v}
        epochs = given.get("epochs", self.epochs)
        return replace(self, grid=tuple(replace(run, **given) for run in self.grid), epochs=epochs)

    def chosen(self, curves: dict[Config, list[Line]]) -> tuple[Config, ...]:
        """The runs that validation chose: by the best epoch of each run of the grid, as the paper does."""
        best = dict.fromkeys(run for value in self.by for run in self._best(curves, value))
        runs = product(self.seeds, best)  # the complete table of the first seed comes first
        return tuple(replace(run, epochs=self.epochs, seed=seed, test=True) for seed, run in runs)

    def beyond(self, curves: dict[Config, list[Line]]) -> list[Config]:
        """The next runs of a grid that grows."""
        found = []
        for best in self._best(curves, "any") if self.growth else ():
            etas = [run.lr for run in curves if run.method == best.method]
            if best.lr != "auto" and len(etas) < MOST and best.lr in (min(etas), max(etas)):
                lr = best.lr * self.growth if best.lr == max(etas) else best.lr / self.growth
                found.append(replace(best, lr=float(f"{lr:.2g}")))
        return found

    def _best(self, curves: dict[Config, list[Line]], by: str) -> Iterable[Config]:
        """The best run of each method, by the value of its best epoch; diverged runs are not chosen."""
        better, worst = (min, math.inf) if self.grid[0].dataset in LOWER else (max, -math.inf)

        def value(run: Config) -> float:
            lines = [{"": line["val"], **line.get("val_averaged", {})} for line in curves[run]]
            seen = [values[by] if by != "any" else better(values.values()) for values in lines]
            return better(seen) if all(map(math.isfinite, seen)) else worst

        best: dict[tuple[str, ...], Config] = {}
        for run in curves:
            best[run.method] = better((best.get(run.method, run), run), key=value)
        return best.values()


@cache
def settings(name: str) -> list[dict[str, Any]]:
    """The settings of a grid in settings.csv, as entries of a config, one for each η."""
    rows = _read("settings.csv")
    cells = rows[rows.grid == name].to_dict("records")
    return [from_text(row | {"lr": lr}) for row in cells for lr in row["lr"].split()]


def grid(base: Config, *names: str, **axes: Iterable) -> tuple[Config, ...]:
    """The settings of these grids at every point of ``axes``, where they do not give what that says.

    The loss is the paper's choice where none is given. Our own average of the weights is what is evaluated: no other
    one is made.
    """
    runs = []
    for point in product(*axes.values()):
        for setting in (setting for name in names for setting in settings(name)):
            run = replace(base, **dict(zip(axes, point, strict=True)) | setting)
            runs.append(replace(run, loss=run.loss or loss_of(run), averages=() if run.average else run.averages))
    return tuple(dict.fromkeys(runs))


def _read(name: str) -> DataFrame:
    return read_csv(Path(__file__).with_name(name), comment="#", dtype=str, keep_default_na=False).fillna("")


MOST = 7  # values of η, in a grid that grows
EVIDENCE = ("cifar10", "cifar10-augmented", "cifar100", "cifar100-augmented", "snli", "lm", "california", "bike")
STRUCTURED = ("ocr-small", "ocr-large", "chunking", "camvid")
LOWER = ("california", "bike", "lm")  # their value is an error, or nats
AVERAGE = ("0.995",)
ROWS = _read("tasks.csv").astype({"short": int, "whole": int}).to_dict("records")
TASKS = {row["task"]: row for row in reversed(ROWS)}  # the first of a name is not the paper's


def base_of(row: dict[str, Any], data: str, **options: Any) -> Config:
    """The config of a task, with the average that the studies have, in runs that choose η."""
    return Config(data=data, **{"averages": AVERAGE} | from_text(row) | options)


# What has been run.


def choosing(row: dict[str, Any], data: str) -> Study:
    """Everyone is tuned. Where nothing is chosen, at night, the runs take turns: all have had the same time."""
    night, growing = row["task"].startswith("night"), row["by"] == "any"
    base = base_of(row, data, **{"seed": 1, "test": True} if night else {})
    axes = {name: [from_text({name: x})[name] for x in row[name].split()] for name in ("weight_decay", "batch")}
    axes = {name: values for name, values in axes.items() if len(values) > 1}
    losses = {"loss": row["losses"].split()}
    runs = grid(base, *row["grids"].split(), **axes, **losses if growing else {})
    if losses["loss"] and not growing:
        runs = tuple(dict.fromkeys(runs + grid(base, "variants", **losses)))
    by = ("", *AVERAGE) if row["by"] == "both" else (row["by"],)
    seeds = tuple(map(int, row["seeds"].split()))
    return Study(row["task"], runs, row["whole"], seeds, by, growth=10**0.5 if growing else 0.0, turns=night)


def unchosen(name: str, data: str) -> Study:
    """Nothing is chosen. ``fixed-bike``, …: one setting for all tasks, not tuned; every run is complete.

    ``factors-bike``, …: what each part of "nothing set" is worth; ``decades-bike``, …: the error against η;
    ``decay-bike``, …: what weight decay adds to it, in complete runs. ``ablation-bike``, …: γ exact and γ ≡ 1, one and
    three inner steps, every loss, averages or not, at the paper's setting (Euclidean, momentum 0.9) and in the diagonal
    metric without momentum. Validation only, except for one setting.
    """
    kind, _, at = name.partition("-")
    task, grids, axes = TASKS[at], (kind,), {"seed": {"fixed": (1, 2, 3), "decay": (1,)}.get(kind, (0,))}
    epochs = task["whole"] if kind in ("fixed", "decay") else task["short"]
    if kind == "ablation":
        grids, axes = (kind + task["sizes"], "ablation-diagonal"), {"loss": task["losses"].split()}
    base = base_of(task, data, loss=task["common"], epochs=epochs, averages=AVERAGE, test=kind == "fixed")
    return Study(name, grid(base, *grids, **axes), epochs, seeds=())


def first(name: str, data: str) -> Study:
    """``first-chunking``, …: what was measured before everyone was tuned alike; nothing is chosen."""
    task = name.partition("-")[2]
    row, seeds = TASKS[task], (0, 1) if task in ("camvid", "sentences") else (0,)
    tried = "-".join(name.split("-")[:2])  # both sizes of OCR have the same settings
    base = base_of(row, data, epochs=row["whole"], test=True, **{"averages": ()} if row["scale"] else {})
    return Study(name, grid(base, tried, seed=seeds), base.epochs, seeds=())


Maker = Callable[[str], Study]  # of the folder of the data
ALL = (*EVIDENCE, "digits", *STRUCTURED)  # beside parsing, which has no other study but one setting
KINDS = ("fixed", "factors", "decades", "decay", "ablation")
UNCHOSEN = [f"{kind}-{task}" for kind in KINDS for task in ALL] + ["fixed-parsing"]
FIRST = [f"first-{task}" for task in (*STRUCTURED, "sentences", "segments", "matching")]
SCALES: dict[str, dict[str, Maker]] = {
    scale: {row["task"]: partial(choosing, row) for row in ROWS if row["scale"] == scale}
    for scale in ("small", "paper", "tuned")
}
SCALES["small"] |= {name: partial(unchosen, name) for name in UNCHOSEN} | {name: partial(first, name) for name in FIRST}


def study_of(name: str, scale: str, data: str) -> Study:
    studies = SCALES[known("scale", scale, SCALES)]
    return studies[known("study", name, studies)](data)
