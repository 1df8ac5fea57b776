"""The tables: what was chosen, all that was tried, one setting for all tasks, and the paper's published numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from pandas import DataFrame, Series, concat, read_csv

from experiments.report import names, results
from experiments.report.results import Candidate, Results, best, candidates, choose, final, grid, spread, unit

OURS = ("dfw", "dfw-full", "multistep")
SEEDS = "Mean ± sample standard deviation over the seeds."


class Bold(str):
    """A cell that is the best of its column."""

    __slots__ = ()


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


def of_frame(title: str, cells: DataFrame, note: str = "") -> Table:
    """A row for each of the frame's, after its name; what is missing is a dash."""
    cells = cells.fillna("—").reset_index()
    return Table(title, ["", *cells.columns[1:]], cells.to_numpy().tolist(), note)


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
    value, lower = unit(runs), bool(runs.lower.iloc[0])
    header = ["optimizer", "loss", "setting", f"validation ({value})", f"test ({value})", "seeds"]
    table = Table(names.study(name), header)
    lengths, others = set(), []
    for averaged in (False, True):
        chosen, pool, rows = choose(runs, averaged), candidates(runs, averaged), []
        for c in chosen:
            rows.append([*_named(c, pool), spread(c.tested.val, lower), c.test(), str(len(c.tested))])
            lengths.add((int(grid(runs).epochs.iloc[0]), int(c.epochs)))
            if (other := results.preferred(c, runs)) is not None:
                setting = f"{names.setting(other, pool)} ({other.validation})"
                others.append(f"{names.method(c.method, averaged)}: {setting}")
        embolden(rows, 3, 4, lower=lower)
        table.rows += [["Averaged weights"], *rows] if averaged and rows else rows
    short = [f" of runs of {names.count(a, 'epoch')}, and run again for {b}" for a, b in sorted(lengths) if a < b]
    table.note = f"Settings were chosen by the validation value of the best epoch{';'.join(short)}. {SEEDS}"
    if others:
        table.note += f" The grid alone would have preferred {'; '.join(others)}."
    return table


def every_setting(name: str, runs: DataFrame) -> Table:
    """Everything that was tried in a study."""
    header = ["optimizer", "loss", "setting", "epochs", f"validation ({unit(runs)})", "averaged", "seeds"]
    note = "Averaged: validation of the averaged weights, at the best of its decays."
    table = Table(f"{names.study(name)}: every setting", header, note=note)
    pool, averages = candidates(runs), candidates(runs, averaged=True)
    for c in pool:
        mine = [a for a in averages if a.key == c.key]
        averaged = f"{best(mine).validation} ({best(mine).decay})" if mine else "—"
        table.rows.append([*_named(c, pool), str(c.epochs), c.validation, averaged, str(len(c.runs))])
    return table


def averages(name: str, runs: DataFrame) -> Table:
    """The last weights and every average of them, at every setting that was run to the end."""
    length = runs.epochs.max()
    runs = runs[runs.epochs == length]
    forms = sorted(set(runs.decay) - {""}, key=Fraction)
    table = Table(
        f"{names.study(name)}: forms of the average",
        ["optimizer", "setting", "not averaged", *forms, "statistics re-estimated"],
        note=f"Validation ({unit(runs)}) of the best epoch of runs of {length} epochs. A number below 1 is the "
        "average's decay; 1/4: it covers the last quarter of the steps so far. Statistics re-estimated: what "
        "estimating the batch norm's statistics again after the last epoch adds to averaging them, the mean over the "
        "averages.",
    )
    pool = candidates(runs)
    for c in pool:
        same = {a.decay: a.validation for a in candidates(runs, averaged=True) if a.key == c.key}
        ends = [curve[-1] for curve in c.runs.curve]
        added = Series([v - end["val_averaged"][k] for end in ends for k, v in end["val_averaged_fresh"].items()])
        anew = f"{added.mean():+.1f}".replace("-", "−") if len(added) else "—"
        optimizer, _, setting = _named(c, pool)
        table.rows.append([optimizer, setting, c.validation, *(same.get(form, "—") for form in forms), anew])
    return table


def beside(studies: Results) -> Table:
    """The mean test values of several studies, as trained and averaged, of the methods that all of them have."""
    columns = [
        {c.method: c.test(deviation=False) for c in choose(r, a)} for r in studies.values() for a in (False, True)
    ]
    table = Table("Side by side", ["", *(head for name in studies for head in (names.study(name), "averaged"))])
    for method in columns[0]:
        if all(method in column for column in columns[::2]):
            table.rows.append([names.method(method), *(column.get(method, "—") for column in columns)])
    embolden(table.rows, *range(1, len(table.header)))
    return table


def progress(name: str, runs: DataFrame) -> Table:
    """Where runs that take turns are, after the epochs that all of them have."""
    epochs = min(map(len, runs.curve))
    table = Table(names.study(name), ["", "epochs", "training loss", f"validation ({unit(runs)})", "the best so far"])
    for averaged in (False, True):
        for c in candidates(runs, averaged):
            best, last = min if c.lower else max, c.curve[epochs - 1]
            values = c.values[:epochs]
            cells = [f"{epochs} of {c.epochs}", f"{last['train_loss']:.4f}", _cell(values[-1], c.lower)]
            table.rows.append([names.recommended(c.config, averaged), *cells, _cell(best(values), c.lower)])
    table.note = "The training loss is each method's own, over the last epoch."
    return table


# One setting for all tasks.

VALUES = {
    "test": "Test values, with the weights of the epoch that validation prefers",
    "test_last": "Test values of the last epoch",
    "val": "Validation of the best epoch",
    "last": "Validation of the last epoch",
}


def fixed(studies: Results, tuned: Results | None = None, value: str = "test") -> Table:
    """One setting for all tasks: the mean value of each, its mean rank, and its worst distance to the best.

    A method's averaged weights are a row of their own; rows that lack a task are left out. The distance is relative:
    the errors of a task, or 100 minus its accuracy, over those of the best row. The last row is the best of the peers
    in the ``tuned`` study of each task. ``value`` is one of VALUES: the best epoch, or the last.
    """
    note = f"{VALUES[value]}; no setting tuned. Worst: the largest error relative to the best row's, over the tasks."
    found = across(studies, lambda runs: _recommended(runs, value), join="inner")
    lower = [bool(runs.lower.iloc[0]) for runs in studies.values()]
    columns = list(zip(found, lower, strict=True))
    errors = DataFrame({name: found[name] if low else (100 - found[name]).abs() for name, low in columns})
    shown = DataFrame({name: found[name].map(partial(_cell, lower=low)) for name, low in columns})
    shown["mean rank"] = errors.rank(method="min").mean(axis=1).map("{:.1f}".format)
    shown["worst"] = (errors / errors.min()).fillna(1.0).max(axis=1).map("{:.2f}".format)
    table = of_frame("One fixed setting for all tasks", shown, note)
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
    cut = {}
    for name, runs in studies.items():
        ratios = costs[costs.task == name.partition("-")[2]].set_index("setting").ratio
        if ratios.empty:
            continue
        cut[name] = runs.assign(val=[_until(run, ratios[names.recommended(run.config)]) for run in runs.itertuples()])
    table = fixed(cut, value="val")
    table.title = "One setting, equal time"
    table.note = "Validation, no setting tuned. —: no epoch was finished in time."
    return table


def _until(run: Any, ratio: float) -> float:
    """The best validation value within 1 / ratio of the run's epochs, or all of them; inf if it finished none."""
    part, done = math.modf(min(len(run.values) / ratio, len(run.values)))
    seen, after = run.values[: int(done)], run.values[int(done) :]
    if not seen or not all(map(math.isfinite, run.values)):
        return math.inf
    seen += [seen[-1] + part * (after[0] - seen[-1])] if after else []
    return (min if run.lower else max)(seen)


def ranks(studies: Results) -> Table:
    """The short form of :func:`fixed`: mean rank and worst of the six best methods, as trained or averaged."""
    best_first = sorted(fixed(studies).rows, key=lambda row: float(row[-2]))
    rows: dict[str, list[str]] = {}
    for name, *_, place, worst in best_first:
        rows.setdefault(name.removesuffix(names.AVERAGED), [name, str(place), str(worst)])
    title = f"One setting for {names.count(len(studies), 'task')}"
    return Table(title, ["", "mean rank", "worst error, relative to the best"], list(rows.values())[:6])


def factors(studies: Results) -> Table:
    """What each part of "nothing set" is worth: validation of the averaged weights, with one part changed at a time."""

    def column(runs: DataFrame) -> Series:
        lower = bool(runs.lower.iloc[0])
        groups = runs.groupby([_changed(run) for run in runs.itertuples()], sort=False)
        found = groups.val.agg("min" if lower else "max").map(partial(_cell, lower=lower))
        return found[~found.index.str.contains(", ")]  # not two parts

    note = "Validation of the best epoch, one seed, averaged weights; of several fixed η the best."
    return of_frame("What each part is worth", across(studies, column), note)


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

    table = of_frame("Weight decay", across(studies, column).sort_index(key=lambda index: index.astype(float)))
    table.header[0] = "weight decay"
    return table


def gammas(studies: Results) -> Table:
    """The mean γ of the first and the last epoch, of our settings in the studies of :func:`fixed`."""

    def column(runs: DataFrame) -> Series:
        mine = results.plain(runs[runs.optimizer.isin(OURS)])
        ends = DataFrame([[curve[0]["gamma"], curve[-1]["gamma"]] for curve in mine.curve])
        said = [names.recommended(config).removeprefix("proxsvm, diagonal, ") for config in mine.config]
        return ends.groupby(said, sort=False).mean().map("{:.2f}".format).agg(", ".join, axis=1)

    return of_frame("γ at one fixed setting", across(studies, column))


def tuned(studies: Results) -> Table:
    """The best of ours and the best of the peers in each study, averaged weights included: validation has chosen.

    Level: the test values differ by less than one standard error of their difference.
    """
    table = Table("Everyone tuned", ["", "proxsvm", "its test value", "best peer", "its test value", "proxsvm is"])
    for name, runs in studies.items():
        pair = [_preferred(runs, ours) for ours in (True, False)]
        if not all(pair):
            continue
        ours, peer = (c.runs.test.dropna() for c in pair)
        ahead = (peer.mean() - ours.mean()) * (1 if runs.lower.iloc[0] else -1)
        error = math.sqrt(sum((tests.var() if len(tests) > 1 else 0.0) / len(tests) for tests in (ours, peer)))
        verdict = "level" if abs(ahead) <= error else "first" if ahead > 0 else "behind"
        cells = [cell for c in pair for cell in (names.method(c.method, bool(c.decay)), c.test())]
        table.rows.append([names.study(name), *cells, verdict])
    if table.rows:
        ahead_or_level = sum(row[-1] != "behind" for row in table.rows)
        table.rows.append(["*first or level*", "", "", "", "", f"{ahead_or_level} of {len(table.rows)}"])
    table.note = "Level: the test values differ by less than one standard error of their difference."
    return table


def ablation(studies: Results) -> Table:
    """What γ adds: the validation value with it and without (γ ≡ 1), with three inner steps, and averages of each.

    One row per task, loss, metric and η.
    """
    heads = ["task", "loss", "metric, momentum", "η", "γ, last epoch", "γ exact", "γ ≡ 1", "3 steps"]
    table = Table("Does γ matter?", [*heads, *(f"{head}, averaged" for head in heads[5:])])
    for name, runs in studies.items():
        for _, group in runs.assign(key=runs.method.map(lambda m: m[1:])).groupby(["key", "setting"], sort=False):
            first, at = group.iloc[0], {(r.optimizer, bool(r.decay)): r for r in group.itertuples()}
            found = [at.get((kind, averaged)) for averaged in (False, True) for kind in OURS]
            cells = [_cell(run.val, run.lower, infinite="∞") if run else "—" for run in found]
            gamma = f"{found[0].curve[-1]['gamma']:.2f}" if found[0] else "—"
            where = f"{first.method.metric or 'Euclidean'}, {first.config.momentum:g}"
            table.rows.append(
                [names.study(name), names.loss(first.method.loss), where, f"{first.eta:g}", gamma, *cells]
            )
    table.note = "Validation of the best epoch, one seed. A dash: not run; ∞: diverged."
    return table


def structured(runs: DataFrame, measure: str) -> str:
    """The table of a structured task with every method tuned alike: the weights, their average, and the better one."""
    head = ["loss", "trained by", "η", f"{measure}, test: last", "averaged", "chosen on held-out data"]
    table = Table("Everyone tuned alike", head)
    for (method, _), rows in runs[runs.read].groupby(["method", "setting"], sort=False):
        last, average = rows[rows.decay == ""], rows[rows.decay != ""]
        better = average.val.to_numpy() > last.val.to_numpy()
        chosen = Series([a if use else b for use, a, b in zip(better, average.test, last.test, strict=True)])
        cells = [spread(tests, lower=False) for tests in (last.test, average.test, chosen)]
        name = f"ProxOptimizer, {method.metric or 'Euclidean'}" if method.optimizer == "dfw" else None
        name = name or names.OPTIMIZERS[method.optimizer]
        table.rows.append([names.loss(method.loss), name, f"{rows.eta.iloc[0]:g}", *cells])
    return table.markdown()


# The paper's tables.

KEYS = ["dataset", "augment", "optimizer", "loss", "weight_decay", "lr", "batch"]
TITLES = {1: "CIFAR without data augmentation", 2: "CIFAR with data augmentation", 3: "SNLI"}


def published(scales: dict[str, Results]) -> list[Table]:
    """Tables 1 to 21: every published number, and what each scale obtained with a member of the same family.

    Tables 1 to 3 are test accuracies of the chosen settings, the others validation accuracies of each setting.
    """
    paper = read_csv(Path(__file__).parents[1] / "published.csv", comment="#")
    for scale, studies in scales.items():
        chosen, tried = _obtained(studies)
        cells = [_cell_of(row, chosen if row["table"] < 4 else tried) for row in paper.to_dict("records")]
        paper[f"obtained, {scale} scale"] = cells
    shown = paper.rename(columns={"dataset": "data", "model": "network", "accuracy": "published", **names.FIELDS})
    shown = shown.replace({"data": names.STUDIES, "network": names.STUDIES, "optimizer": names.OPTIMIZERS})
    made = []
    for number, rows in shown.replace({"loss": names.LOSSES}).groupby("table"):
        rows = rows.drop(columns=["table", "augment"]).dropna(axis=1, how="all")
        title = TITLES.get(number, f"{rows.optimizer.iloc[0]}, {rows.network.iloc[0]}")
        cells = [[f"{cell:g}" if isinstance(cell, float) else cell for cell in row] for row in rows.values.tolist()]
        note = f"{'Test' if number < 4 else 'Validation'} accuracy, %."
        made.append(Table(f"Table {number}: {title}", list(rows), cells, note))
    return made


def _obtained(studies: Results) -> tuple[dict[Any, str], dict[Any, str]]:
    """The cells of the chosen and of all tried settings of the paper's methods: only SGD has a schedule there."""
    chosen, tried = {}, {}
    for runs in (runs for name, runs in studies.items() if name.split("-")[0] in ("cifar10", "cifar100", "snli")):
        mine = runs[runs.method.map(lambda m: m == (m.optimizer, m.loss, m.optimizer == "sgd", "", "", False))]
        chosen |= {c.config: c.test() for c in choose(mine)}
        tried |= {c.config: c.validation for c in candidates(grid(mine))} if len(mine) else {}
    return chosen, tried


def _cell_of(row: dict[str, Any], found: dict[Any, str]) -> str:
    """What was obtained at the setting of a published row, by a network of the same family."""
    setting = {key: row[key] for key in KEYS if row[key] == row[key]}  # not nan
    for config, cell in found.items():
        if config.model.startswith(row["model"]) and all(getattr(config, k) == v for k, v in setting.items()):
            return cell
    return "—"
