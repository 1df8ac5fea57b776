"""The tables: what was chosen, all that was tried, one setting for all tasks, and the paper's published numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, Series, concat, read_csv

from experiments.config import Config
from experiments.report import names, results
from experiments.report.results import WORDS, Candidate, Results, best, candidates, choose, final, grid, spread, unit

OURS = ("dfw", "dfw-full", "multistep")


class Bold(str):
    """A cell that is the best of its column."""


@dataclass
class Table:
    """A header and rows of cells; a row of one cell is a heading over the rows below it.

    >>> print(Table("t", ["a", "b"], [["1", Bold("2")]]).markdown())
    | a | b |
    |---|---|
    | 1 | **2** |
    """

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        lines = ["| " + " | ".join(self.header) + " |", "|" + "---|" * len(self.header)]
        for row in self.rows:
            cells = [f"**{cell}**" if isinstance(cell, Bold) else cell for cell in row]
            cells = cells if len(row) > 1 else [f"*{row[0]}*", *[""] * (len(self.header) - 1)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


def embolden(rows: list[list[str]], *columns: int, lower: bool = False) -> None:
    """Mark the best number of each of these columns, as it is printed."""
    for column in columns:
        numbers = {
            k: float(row[column].split()[0].replace(",", "")) for k, row in enumerate(rows) if row[column][0].isdigit()
        }
        top = (min if lower else max)(numbers.values(), default=None)
        for k in (k for k, number in numbers.items() if number == top and len(numbers) > 1):
            rows[k][column] = Bold(rows[k][column])


def titled(kind: str, rows: list[list[str]], *columns: str, **given: Any) -> Table:
    """A table with the title, the header and the note of its kind, and ``columns`` after those of the header."""
    title, header, note = (str(WORDS[part].get(kind, "")).format(**given) for part in ("titles", "headers", "notes"))
    return Table(title, [*(head.strip() for head in header.split("|")), *columns], rows, note)


def of_frame(kind: str, cells: DataFrame, **given: Any) -> Table:
    """A row for each of the frame's, after its name; what is missing is a dash."""
    return titled(kind, cells.fillna("—").reset_index().to_numpy().tolist(), *cells.columns, **given)


def across(studies: Results, column: Callable[[DataFrame], Series], join: Any = "outer") -> DataFrame:
    """A column for each study, with the cells or numbers that ``column`` finds in its runs, by the name of the row."""
    columns = {names.study(name): column(runs) for name, runs in studies.items()}
    return concat(columns, axis=1, join=join, sort=False) if columns else DataFrame()


def _named(c: Candidate, pool: list[Candidate]) -> list[str]:
    """Optimizer, loss and setting."""
    name = names.optimizer(c.method) + names.AVERAGED * bool(c.decay)
    return [name, names.loss(c.method.loss), names.setting(c, pool)]


def study(name: str, runs: DataFrame) -> Table:
    """The chosen setting of each method, and below it that of each method's averaged weights."""
    lower, lengths, tried = bool(runs.lower.iloc[0]), set(), grid(runs)
    found: list[list[str]] = []
    others = []
    for averaged in (False, True):
        pool, rows = candidates(runs, averaged), []
        for c in choose(runs, averaged):
            rows.append([*_named(c, pool), spread(c.tested.val, lower), c.test(), str(len(c.tested))])
            lengths.add((int(tried.epochs.iloc[0]), int(c.epochs)))
            if (other := results.preferred(c, tried)) is not None:
                setting = f"{names.setting(other, pool)} ({other.validation})"
                others.append(f"{names.method(c.method, averaged)}: {setting}")
        embolden(rows, 3, 4, lower=lower)
        found += [["Averaged weights"], *rows] if averaged and rows else rows
    short = [f" of runs of {names.count(a, 'epoch')}, and run again for {b}" for a, b in sorted(lengths) if a < b]
    preferred = f" The grid alone would have preferred {'; '.join(others)}." if others else ""
    given = {"short": ";".join(short), "others": preferred}
    return titled("study", found, name=names.study(name), unit=unit(runs), **given)


def every_setting(name: str, runs: DataFrame) -> Table:
    """Everything that was tried in a study."""
    pool, averages, rows = candidates(runs), candidates(runs, averaged=True), []
    for c in pool:
        mine = [a for a in averages if a.key == c.key]
        averaged = f"{best(mine).validation} ({best(mine).decay})" if mine else "—"
        rows.append([*_named(c, pool), str(c.epochs), c.validation, averaged, str(len(c.runs))])
    return titled("every_setting", rows, name=names.study(name), unit=unit(runs))


def averages(name: str, runs: DataFrame) -> Table:
    """The last weights and every average of them, at every setting that was run to the end."""
    length, rows = runs.epochs.max(), []
    runs = runs[runs.epochs == length]
    forms, pool = sorted(set(runs.decay) - {""}, key=Fraction), candidates(runs)
    for c in pool:
        same = {a.decay: a.validation for a in candidates(runs, averaged=True) if a.key == c.key}
        ends = [curve[-1] for curve in c.runs.curve]
        added = Series([v - end["val_averaged"][k] for end in ends for k, v in end["val_averaged_fresh"].items()])
        anew = f"{added.mean():+.1f}".replace("-", "−") if len(added) else "—"
        optimizer, _, setting = _named(c, pool)
        rows.append([optimizer, setting, c.validation, *(same.get(form, "—") for form in forms), anew])
    given = {"name": names.study(name), "unit": unit(runs), "length": length}
    return titled("averages", rows, *forms, "statistics re-estimated", **given)


def beside(studies: Results) -> Table:
    """The mean test values of several studies, as trained and averaged, of the methods that all of them have."""
    pairs = [choose(runs, averaged) for runs in studies.values() for averaged in (False, True)]
    columns = [{c.method: c.test(deviation=False) for c in chosen} for chosen in pairs]
    wanted = [method for method in columns[0] if all(method in column for column in columns[::2])]
    rows = [[names.method(method), *(column.get(method, "—") for column in columns)] for method in wanted]
    embolden(rows, *range(1, len(columns) + 1))
    return titled("beside", rows, *(head for name in studies for head in (names.study(name), "averaged")))


def progress(name: str, runs: DataFrame) -> Table:
    """Where runs that take turns are, after the epochs that all of them have."""
    epochs, rows = min(map(len, runs.curve)), []
    for c in (c for averaged in (False, True) for c in candidates(runs, averaged)):
        values, loss = c.values[:epochs], c.curve[epochs - 1]["train_loss"]
        cells = [_cell(value, c.lower) for value in (values[-1], (min if c.lower else max)(values))]
        said = names.recommended(c.config, bool(c.decay))
        rows.append([said, f"{epochs} of {c.epochs}", f"{loss:.4f}", *cells])
    return titled("progress", rows, name=names.study(name), unit=unit(runs))


# One setting for all tasks.


def fixed(studies: Results, tuned: Results | None = None, value: str = "test", kind: str = "fixed") -> Table:
    """One setting for all tasks: the mean value of each, its mean rank, and its worst distance to the best.

    A method's averaged weights are a row of their own; rows that lack a task are left out. The distance is relative:
    the errors of a task, or 100 minus its accuracy, over those of the best row. The last row is the best of the peers
    in the ``tuned`` study of each task. ``value``: of the best epoch, "test" or "val", or the last, with "last".
    """
    found = across(studies, lambda runs: _recommended(runs, value), join="inner")
    lower = [bool(runs.lower.iloc[0]) for runs in studies.values()]
    columns = list(zip(found, lower, strict=True))
    errors = DataFrame({name: found[name] if low else (100 - found[name]).abs() for name, low in columns})
    shown = DataFrame({name: found[name].map(partial(_cell, lower=low)) for name, low in columns})
    shown["mean rank"] = errors.rank(method="min").mean(axis=1).map("{:.1f}".format)
    shown["worst"] = (errors / errors.min()).fillna(1.0).max(axis=1).map("{:.2f}".format)
    table = of_frame(kind, shown, values=WORDS["values"][value])
    for k, low in enumerate([*lower, True, True], 1):
        embolden(table.rows, k, lower=low)
    peers = [_preferred((tuned or {}).get(name.partition("-")[2]), ours=False) for name in studies]
    if table.rows and any(peers):
        cells = [_cell(peer.runs.test.mean(), low) if peer else "—" for peer, low in zip(peers, lower, strict=True)]
        table.rows.append(["*best peer, tuned on each task*", *cells, "—", "—"])
    return table


def _recommended(runs: DataFrame, value: str) -> Series:
    """The value of each method at its one setting, and of its averaged weights, by the name of the row."""
    found = [(c, averaged) for averaged in (False, True) for c in candidates(final(runs), averaged)]
    values = {names.recommended(c.config, averaged): c.runs[value].mean() for c, averaged in found}
    return Series({name: number for name, number in values.items() if not math.isnan(number)}, dtype=float)


def _preferred(runs: DataFrame | None, ours: bool) -> Candidate | None:
    """What validation prefers among our methods, or among the others; their averaged weights included."""
    chosen = [*choose(runs), *choose(runs, averaged=True)] if runs is not None and len(runs) else []
    found = [c for c in chosen if (c.optimizer in OURS) is ours and c.runs.test.notna().any()]
    return best(found) if found else None


def _cell(value: float, lower: bool, infinite: str = "—") -> str:
    if not math.isfinite(value):
        return infinite
    return f"{value:.1f}" if not lower else f"{value:.3f}" if value < 10 else f"{value:,.{0 if value > 1000 else 2}f}"


def timed(studies: Results, costs: DataFrame) -> Table:
    """:func:`fixed` at equal training time: the best validation value until AdamW, at its first setting, has finished.

    ``costs`` are the ``ratio`` of a step to AdamW's by ``task`` and ``setting``; an average costs its peer nothing. Of
    the epoch that is under way when the time is over the part that is done counts: the value is interpolated. A dash:
    it is the first epoch. A study without costs is left out.
    """
    cut, ratio = {}, costs.set_index(["task", "setting"]).ratio
    for name, runs in studies.items():
        if (task := name.partition("-")[2]) in set(costs.task):
            until = [_until(run, ratio[task, names.recommended(run.config)]) for run in runs.itertuples()]
            cut[name] = runs.assign(val=until)
    return fixed(cut, value="val", kind="timed")


def _until(run: Any, ratio: float) -> float:
    """The best validation value within 1 / ratio of the run's epochs, or all of them; inf if it finished none."""
    length = len(run.values)
    end = min(length / ratio, length)
    if end < 1 or not all(map(math.isfinite, run.values)):
        return math.inf
    return (min if run.lower else max)([*run.values[: int(end)], np.interp(end, range(1, length + 1), run.values)])


def ranks(studies: Results) -> Table:
    """The short form of :func:`fixed`: mean rank and worst of the six best methods, as trained or averaged."""
    best_first = sorted(fixed(studies).rows, key=lambda row: float(row[-2]))
    rows: dict[str, list[str]] = {}
    for name, *_, place, worst in best_first:
        rows.setdefault(name.removesuffix(names.AVERAGED), [name, str(place), str(worst)])
    return titled("ranks", list(rows.values())[:6], tasks=names.count(len(studies), "task"))


def factors(studies: Results) -> Table:
    """What each part of "nothing set" is worth: validation of the averaged weights, with one part changed at a time."""

    def column(runs: DataFrame) -> Series:
        lower = bool(runs.lower.iloc[0])
        groups = runs.groupby([_changed(run) for run in runs.itertuples()], sort=False)
        found = groups.val.agg("min" if lower else "max").map(partial(_cell, lower=lower))
        return found[~found.index.str.contains(", ")]  # not two parts

    return of_frame("factors", across(studies, column))


def _changed(run: Any) -> str:
    """The parts of "nothing set" that a run does not have."""
    changed = {
        "no average": not run.decay,
        "γ ≡ 1": run.optimizer == "dfw-full",
        "three inner steps": run.optimizer == "multistep",
        run.method.metric: run.method.metric != "kronecker",
        "a fixed η": not run.method.auto,
        "momentum instead of memory": not run.config.memory and run.config.momentum,
        "no memory": not run.config.memory and not run.config.momentum,
    }
    return ", ".join(name for name, given in changed.items() if given) or "nothing set"


def decay(studies: Results) -> Table:
    """What weight decay adds to "nothing set": validation of the best epoch and, in brackets, of the last."""

    def column(runs: DataFrame) -> Series:
        shown = [f"{_cell(run.val, run.lower)} ({_cell(run.last, run.lower)})" for run in runs.itertuples()]
        return Series(shown, [f"{config.weight_decay:g}" for config in runs.config])

    return of_frame("decay", across(studies, column).sort_index(key=lambda index: index.astype(float)))


def gammas(studies: Results) -> Table:
    """The mean γ of the first and the last epoch, of our settings in the studies of :func:`fixed`."""

    def column(runs: DataFrame) -> Series:
        mine = results.plain(runs[runs.optimizer.isin(OURS)])
        ends = DataFrame([[curve[0]["gamma"], curve[-1]["gamma"]] for curve in mine.curve])
        said = [names.recommended(config).removeprefix("proxsvm, diagonal, ") for config in mine.config]
        return ends.groupby(said, sort=False).mean().map("{:.2f}".format).agg(", ".join, axis=1)

    return of_frame("gammas", across(studies, column))


def tuned(studies: Results) -> Table:
    """The best of ours and the best of the peers in each study, averaged weights included: validation has chosen.

    Level: the test values differ by less than one standard error of their difference.
    """
    rows = []
    for name, runs in studies.items():
        pair = [c for c in (_preferred(runs, ours) for ours in (True, False)) if c is not None]
        if len(pair) < 2:
            continue
        ours, peer = (c.runs.test.dropna() for c in pair)
        ahead = (peer.mean() - ours.mean()) * (1 if runs.lower.iloc[0] else -1)
        error = math.sqrt(sum((tests.var() if len(tests) > 1 else 0.0) / len(tests) for tests in (ours, peer)))
        verdict = "level" if abs(ahead) <= error else "first" if ahead > 0 else "behind"
        cells = [cell for c in pair for cell in (names.method(c.method, bool(c.decay)), c.test())]
        rows.append([names.study(name), *cells, verdict])
    level = f"{sum(row[-1] != 'behind' for row in rows)} of {len(rows)}"
    return titled("tuned", [*rows, ["*first or level*", "", "", "", "", level]] if rows else [])


def ablation(studies: Results) -> Table:
    """What γ adds: the validation value with it and without (γ ≡ 1), with three inner steps, and averages of each.

    One row per task, loss, metric and η.
    """
    rows = []
    for name, runs in studies.items():
        for _, group in runs.assign(key=runs.method.map(lambda m: m[1:])).groupby(["key", "setting"], sort=False):
            first, at = group.iloc[0], {(r.optimizer, bool(r.decay)): r for r in group.itertuples()}
            found = [at.get((kind, averaged)) for averaged in (False, True) for kind in OURS]
            cells = [f"{found[0].curve[-1]['gamma']:.2f}" if found[0] else "—"]
            cells += [_cell(run.val, run.lower, infinite="∞") if run else "—" for run in found]
            where = f"{first.method.metric or 'Euclidean'}, {first.config.momentum:g}"
            rows.append([names.study(name), names.loss(first.method.loss), where, f"{first.eta:g}", *cells])
    return titled("ablation", rows)


def structured(_: str, runs: DataFrame) -> Table:
    """A structured task with every method tuned alike: the weights, their average, and the better one."""
    found = []
    for (method, _), rows in runs[runs.read].groupby(["method", "setting"], sort=False):
        last, average = rows[rows.decay == ""], rows[rows.decay != ""]
        chosen = last.test.mask(average.val.to_numpy() > last.val.to_numpy(), average.test.to_numpy())
        cells = [spread(tests, lower=False) for tests in (last.test, average.test, chosen)]
        ours = f"ProxOptimizer, {method.metric or 'Euclidean'}"
        name = ours if method.optimizer == "dfw" else names.OPTIMIZERS[method.optimizer]
        found.append([names.loss(method.loss), name, f"{rows.eta.iloc[0]:g}", *cells])
    return titled("structured", found, unit=unit(runs))


# The paper's tables.

KEYS = ["dataset", "augment", "optimizer", "loss", "weight_decay", "lr", "batch"]


def published(scales: dict[str, Results]) -> list[Table]:
    """Tables 1 to 21: every published number, and what each scale obtained with a member of the same family.

    Tables 1 to 3 are test accuracies of the chosen settings, the others validation accuracies of each setting.
    """
    paper = read_csv(Path(__file__).parents[1] / "published.csv", comment="#")
    for scale, studies in scales.items():
        paper[f"obtained, {scale} scale"] = paper.apply(_cell_of, axis=1, found=_obtained(studies))
    shown = paper.rename(columns={"dataset": "data", "model": "network", "accuracy": "published", **names.FIELDS})
    shown = shown.replace({"data": names.STUDIES, "network": names.STUDIES, "optimizer": names.OPTIMIZERS})
    made = []
    for number, rows in shown.replace({"loss": names.LOSSES}).groupby("table"):
        rows = rows.drop(columns=["table", "augment"]).dropna(axis=1, how="all")
        title = WORDS["titles"].get(str(number), f"{rows.optimizer.iloc[0]}, {rows.network.iloc[0]}")
        cells = [[f"{cell:g}" if isinstance(cell, float) else cell for cell in row] for row in rows.values.tolist()]
        note = f"{'Test' if number < 4 else 'Validation'} accuracy, %."
        made.append(Table(f"Table {number}: {title}", list(rows), cells, note))
    return made


def _obtained(studies: Results) -> tuple[dict[Config, str], dict[Config, str]]:
    """The cells of the chosen and of all tried settings of the paper's methods: only SGD has a schedule there."""
    chosen, tried = {}, {}
    for runs in (runs for name, runs in studies.items() if name.split("-")[0] in ("cifar10", "cifar100", "snli")):
        mine = runs[runs.method.map(lambda m: m == (m.optimizer, m.loss, m.optimizer == "sgd", "", "", False))]
        chosen |= {c.config: c.test() for c in choose(mine)}
        tried |= {c.config: c.validation for c in candidates(grid(mine))} if len(mine) else {}
    return chosen, tried


def _cell_of(row: Series, found: tuple[dict[Config, str], dict[Config, str]]) -> str:
    """What was obtained at the setting of a published row, by a network of the same family."""
    setting = row[KEYS].dropna()
    for config, cell in found[row.table > 3].items():
        if config.model.startswith(row.model) and all(getattr(config, k) == v for k, v in setting.items()):
            return cell
    return "—"
