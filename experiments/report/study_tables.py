"""The tables of our own studies: what was chosen, all that was tried, and the paper's claims in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import mean

from experiments.report import names
from experiments.report.results import Method, Results, Run, is_side
from experiments.report.selection import Candidate, best, candidates, choose, grid, preferred
from experiments.report.table import Table, embolden

OF_THE_PAPER = ("cifar10", "cifar100", "snli")  # data sets
ADAPTIVE = ("adagrad", "adam", "amsgrad", "bpgrad")
AVERAGED = "Averaged weights"
SEEDS = "Mean ± sample standard deviation over the seeds."


def study(name: str, runs: Sequence[Run]) -> Table:
    """The chosen setting of each method, and below it that of each method's averaged weights."""
    value = runs[0].unit
    table = Table(
        names.study(name),
        ["optimizer", "loss", "setting", f"validation ({value})", f"test ({value})", "seeds"],
    )
    tasks = dict.fromkeys(run.task for run in runs)
    lengths, others = set(), []
    for task in tasks:
        mine = [run for run in runs if run.task == task]
        if len(tasks) > 1:
            table.rows.append([names.task(mine[0])])
        for averaged in (False, True):
            chosen, pool = choose(mine, averaged), candidates(mine, averaged)
            if averaged and chosen:
                table.rows.append([AVERAGED])
            table.rows += _study_rows(chosen, pool)
            lengths |= {(grid(mine)[0].epochs, c.runs[0].epochs) for c in chosen}
            others += [
                f"{names.method(c.method, averaged)}: {names.setting(other, pool)} ({other.val})"
                for c in chosen
                if (other := preferred(c, mine))
            ]
    short = [
        f" of runs of {first} epoch{'s' * (first > 1)}, and run again for {last}"
        for first, last in sorted(lengths)
        if first < last
    ]
    table.note = f"Settings were chosen by the validation value of the best epoch{';'.join(short)}. {SEEDS}"
    if others:
        table.note += f" The grid alone would have preferred {'; '.join(others)}."
    return table


def _study_rows(chosen: list[Candidate], pool: list[Candidate]) -> list[list[str]]:
    rows = [
        [
            names.optimizer(c.method) + (" + average" if c.decay else ""),
            names.loss(c.method),
            names.setting(c, [other for other in pool if other.method == c.method]),
            *(str(x) for x in (c.tested.val, c.test)),
            str(len(c.tested.runs)),
        ]
        for c in chosen
    ]
    for column in (3, 4):
        embolden(rows, column, lower=any(c.runs[0].lower_is_better for c in chosen))
    return rows


def every_setting(name: str, runs: Sequence[Run]) -> Table:
    """All that was tried in a study."""
    value = runs[0].unit
    table = Table(
        f"{names.study(name)}: every setting",
        ["optimizer", "loss", "setting", "epochs", f"validation ({value})", "averaged", "seeds"],
        note="Averaged: validation of the averaged weights, at the best of its decays.",
    )
    pool = candidates(runs)
    averages = candidates(runs, averaged=True)
    for c in pool:
        mine = [a for a in averages if {id(run) for run in a.runs} <= {id(run) for run in c.runs}]
        average = best(mine) if mine else None
        table.rows.append(
            [
                names.optimizer(c.method),
                names.loss(c.method),
                names.setting(c, [other for other in pool if other.method == c.method]),
                str(c.runs[0].epochs),
                str(c.val),
                "—" if average is None else f"{average.val} ({average.decay})",
                str(len(c.runs)),
            ]
        )
    return table


def averages(name: str, runs: Sequence[Run]) -> Table:
    """The weights as they come and every average of them, at every setting that was run to the end."""
    length = max(run.epochs for run in runs)
    runs = [run for run in runs if run.epochs == length]
    forms = sorted({form for run in runs for form in run.last.val_averaged}, key=Fraction)
    value = runs[0].unit
    table = Table(
        f"{names.study(name)}: forms of the average",
        ["optimizer", "setting", "as it comes", *forms, "statistics anew"],
        note=f"Validation ({value}) of the best epoch of runs of {length} epochs. A number below 1 is the average's "
        "decay; 1/4: it looks back over a quarter of the steps so far. Statistics anew: what estimating the batch "
        "norm's statistics anew adds after the last epoch to averaging them, the mean over the averages.",
    )
    pool = candidates(runs)
    averaged = candidates(runs, averaged=True)
    for c in pool:
        same = {a.decay: a for a in averaged if (a.method, a.setting) == (c.method, c.setting)}
        setting = names.setting(c, [other for other in pool if other.method == c.method])
        values = [str(same[form].val) if form in same else "—" for form in forms]
        table.rows.append([names.optimizer(c.method), setting, str(c.val), *values, _anew(c.runs)])
    return table


def beside(studies: Results) -> Table:
    """The mean test values of several studies, as trained and averaged, of the methods that all of them have."""
    found = [[{c.method: c for c in choose(runs, averaged)} for averaged in (False, True)] for runs in studies.values()]
    columns = [column for pair in found for column in pair]
    table = Table("Side by side", ["", *(head for name in studies for head in (names.study(name), "averaged"))])
    for method in columns[0]:
        if all(method in column for column in columns[::2]):
            cells = [
                str(replace(column[method].test, deviation=None)) if method in column else "—" for column in columns
            ]
            table.rows.append([names.method(method), *cells])
    for k in range(1, len(table.header)):
        embolden(table.rows, k)
    return table


def fixed(studies: Results) -> Table:
    """One setting for all tasks: the mean test value of each method, its mean rank, and its worst distance to the best.

    A method's averaged weights are a row of their own. The distance is relative: the errors of a task, or 100 less its
    accuracy, over those of the best row.
    """
    columns: list[dict[tuple[Method, bool], float]] = []
    heads = [names.study(name.removeprefix("fixed-")) for name in studies]
    table = Table("One fixed setting for all tasks", ["", *heads, "mean rank", "worst"])
    for runs in studies.values():
        chosen = [(c.method, averaged, c) for averaged in (False, True) for c in choose(runs, averaged)]
        columns.append({(method, averaged): c.test.mean for method, averaged, c in chosen if c.test.count})
    lower = [runs[0].lower_is_better for runs in studies.values()]
    error = [{k: v if low else 100 - v for k, v in c.items()} for c, low in zip(columns, lower, strict=True)]
    least = [min(column.values(), default=math.nan) for column in error]
    for row in columns[0] if columns else ():
        if not all(row in column for column in columns):
            continue
        places = [1 + sum(other < column[row] for other in column.values()) for column in error]
        worst = max(column[row] / best for column, best in zip(error, least, strict=True))
        method, averaged = row
        cells = [f"{c[row]:.3f}" if low else f"{c[row]:.1f}" for c, low in zip(columns, lower, strict=True)]
        table.rows.append([names.method(method, averaged), *cells, f"{mean(places):.1f}", f"{worst:.2f}"])
    for k, low in enumerate([*lower, True, True], 1):
        embolden(table.rows, k, low)
    table.note = "Test values, no setting tuned. Worst: the largest error relative to the best row's, over the tasks."
    return table


def _anew(runs: Sequence[Run]) -> str:
    ends = [run.last for run in runs]
    added = [value - end.val_averaged[form] for end in ends for form, value in end.val_averaged_fresh.items()]
    return f"{mean(added):+.1f}".replace("-", "−") if added else "—"


def claims(results: Results) -> Table:
    """What the paper claims of DFW, as differences in test accuracy."""
    table = Table(
        "The paper's claims",
        ["study", "DFW", "best adaptive", "DFW − adaptive", "SGD, schedule", "DFW − SGD", "DFW + average"],
        note="Test accuracy, %. The best adaptive method is that of Adagrad, Adam, AMSGrad and BPGrad with the best "
        "validation value. The paper claims that the first difference is positive and that the second is near zero.",
    )
    for name, runs in results.items():
        dataset = runs[0].config["dataset"]
        if is_side(name) or dataset not in OF_THE_PAPER:
            continue
        found = {averaged: choose(runs, averaged) for averaged in (False, True)}
        loss = "hinge" if dataset == "snli" else "smooth-hinge"
        dfw, average = (
            next((c for c in chosen if c.method == Method("dfw", loss, False)), None) for chosen in found.values()
        )
        adaptive = [c for c in found[False] if c.method.optimizer in ADAPTIVE]
        sgd = [c for c in found[False] if c.method.optimizer == "sgd" and c.method.scheduled]
        if dfw is not None and dfw.test.count:
            cells = [cell for rivals in (adaptive, sgd) for cell in _against(dfw, rivals)]
            table.rows.append([names.study(name), str(dfw.test), *cells, str(average.test) if average else "—"])
    return table


def _against(dfw: Candidate, rivals: list[Candidate]) -> list[str]:
    """The rival that validation prefers, and the difference to it."""
    rival = best(rivals) if rivals else None
    if rival is None or not rival.test.count:
        return ["—", "—"]
    name = names.method(rival.method).removeprefix("SGD, schedule").removeprefix(", ")
    difference = f"{dfw.test.mean - rival.test.mean:+.1f}".replace("-", "−")
    return [f"{rival.test}{f' ({name})' if name else ''}", difference]
