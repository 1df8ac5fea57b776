"""The tables of our own studies: what was chosen, all that was tried, and the paper's claims in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import mean

from experiments.report import names
from experiments.report.results import Method, Results, Run, is_side
from experiments.report.selection import Candidate, best, candidates, choose, final, grid, preferred
from experiments.report.table import Table, embolden

OF_THE_PAPER = ("cifar10", "cifar100", "snli")  # data sets
ADAPTIVE = ("adagrad", "adam", "amsgrad", "bpgrad")
OURS = ("dfw", "dfw-full", "multistep")
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
    """Everything that was tried in a study."""
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
    """The last weights and every average of them, at every setting that was run to the end."""
    length = max(run.epochs for run in runs)
    runs = [run for run in runs if run.epochs == length]
    forms = sorted({form for run in runs for form in run.last.val_averaged}, key=Fraction)
    value = runs[0].unit
    table = Table(
        f"{names.study(name)}: forms of the average",
        ["optimizer", "setting", "not averaged", *forms, "statistics re-estimated"],
        note=f"Validation ({value}) of the best epoch of runs of {length} epochs. A number below 1 is the average's "
        "decay; 1/4: it covers the last quarter of the steps so far. Statistics re-estimated: what estimating the "
        "batch norm's statistics again after the last epoch adds to averaging them, the mean over the averages.",
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


def fixed(studies: Results, tuned: Results | None = None) -> Table:
    """One setting for all tasks: the mean test value of each, its mean rank, and its worst distance to the best.

    A method's averaged weights are a row of their own. The distance is relative: the errors of a task, or 100 minus its
    accuracy, over those of the best row. The last row is the best of the peers in the ``tuned`` study of each task.
    """
    tasks = [name.removeprefix("fixed-") for name in studies]
    lower = [runs[0].lower_is_better for runs in studies.values()]
    table = Table("One fixed setting for all tasks", ["", *map(names.study, tasks), "mean rank", "worst"])
    columns = [_recommended(runs) for runs in studies.values()]
    errors = [[v if low else 100 - v for v in column.values()] for column, low in zip(columns, lower, strict=True)]
    for row in columns[0] if columns else ():
        if not all(row in column for column in columns):
            continue
        values = [column[row] for column in columns]
        mine = [v if low else 100 - v for v, low in zip(values, lower, strict=True)]
        places = [1 + sum(e < own for e in column) for own, column in zip(mine, errors, strict=True)]
        best_errors = [min(column) for column in errors]
        worst = max(own / e if e else 1.0 if own == 0 else math.inf for own, e in zip(mine, best_errors, strict=True))
        cells = [_cell(value, low) for value, low in zip(values, lower, strict=True)]
        table.rows.append([row, *cells, f"{mean(places):.1f}", f"{worst:.2f}"])
    for k, low in enumerate([*lower, True, True], 1):
        embolden(table.rows, k, low)
    peers = [_preferred((tuned or {}).get(task, ()), ours=False) for task in tasks]
    if table.rows and any(peers):
        cells = ["—" if peer is None else _cell(peer.test.mean, low) for peer, low in zip(peers, lower, strict=True)]
        table.rows.append(["*best peer, tuned on each task*", *cells, "—", "—"])
    table.note = "Test values, no setting tuned. Worst: the largest error relative to the best row's, over the tasks."
    return table


def ranks(studies: Results) -> Table:
    """The short form of :func:`fixed`: mean rank and worst of the six best methods, as trained or averaged."""
    table = Table(f"One setting for {len(studies)} tasks", ["", "mean rank", "worst error, relative to the best"])
    for name, *_, place, worst in sorted(fixed(studies).rows, key=lambda row: float(row[-2])):
        if name.removesuffix(" + average") not in {row[0].removesuffix(" + average") for row in table.rows}:
            table.rows.append([name, str(place), str(worst)])
    del table.rows[6:]
    return table


def gammas(studies: Results) -> Table:
    """The mean γ of the first and the last epoch, of our settings in the studies of :func:`fixed`."""
    table = Table("γ at one fixed setting", ["", *(names.study(name.removeprefix("fixed-")) for name in studies)])
    for name in dict.fromkeys(
        names.recommended(r) for runs in studies.values() for r in runs if r.method.optimizer in OURS
    ):
        ours = [[run.curve for run in runs if names.recommended(run) == name] for runs in studies.values()]
        cells = [", ".join(f"{mean(curve[k].gamma for curve in curves):.2f}" for k in (0, -1)) for curves in ours]
        table.rows.append([name.removeprefix("proxsvm, diagonal, "), *cells])
    return table


def _recommended(runs: Sequence[Run]) -> dict[str, float]:
    """The test value of each method at its one setting, and of its averaged weights, by the name of the row."""
    found = [(names.recommended(c.runs[0], a), c.test) for a in (False, True) for c in candidates(final(runs), a)]
    return {name: test.mean for name, test in found if test.count and math.isfinite(test.mean)}


def tuned(studies: Results) -> Table:
    """The best of ours and the best of the peers in each study, averaged weights included: validation has chosen.

    Level: the test values differ by less than one standard error of their difference.
    """
    table = Table("Everyone tuned", ["", "proxsvm", "its test value", "best peer", "its test value", "proxsvm is"])
    for name, runs in studies.items():
        ours, peer = (_preferred(runs, ours) for ours in (True, False))
        if ours is None or peer is None:
            continue
        ahead = (peer.test.mean - ours.test.mean) * (1 if runs[0].lower_is_better else -1)
        error = math.sqrt(sum((c.test.deviation or 0.0) ** 2 / c.test.count for c in (ours, peer)))
        verdict = "level" if abs(ahead) <= error else "first" if ahead > 0 else "behind"
        cells = [cell for c in (ours, peer) for cell in (names.method(c.method, c.decay is not None), str(c.test))]
        table.rows.append([names.study(name), *cells, verdict])
    if table.rows:
        ahead_or_level = sum(row[-1] != "behind" for row in table.rows)
        table.rows.append(["*first or level*", "", "", "", "", f"{ahead_or_level} of {len(table.rows)}"])
    table.note = "Level: the test values differ by less than one standard error of their difference."
    return table


def _preferred(runs: Sequence[Run], ours: bool) -> Candidate | None:
    """What validation prefers among our methods, or among the others; their averaged weights included."""
    chosen = [c for averaged in (False, True) for c in choose(runs, averaged)]
    found = [c for c in chosen if (c.method.optimizer in OURS) is ours and c.test.count]
    return best(found) if found else None


def _cell(value: float, lower: bool) -> str:
    return f"{value:.1f}" if not lower else f"{value:.3f}" if value < 10 else f"{value:,.{0 if value > 1000 else 2}f}"


def ablation(studies: Results) -> Table:
    """What γ adds: the validation value with it and without (γ ≡ 1), with three inner steps, and averages of each.

    One row per task, loss, metric and η.
    """
    heads = ["task", "loss", "metric, momentum", "η", "γ, last epoch", "γ exact", "γ ≡ 1", "3 steps"]
    table = Table("Does γ matter?", [*heads, *(f"{head}, averaged" for head in heads[5:])])
    for name, runs in studies.items():
        for key, group in _by_setting(runs).items():
            loss, metric, momentum, eta = key
            cells = [_validation(group.get(kind), averaged) for averaged in (False, True) for kind in OURS]
            gamma = f"{group['dfw'].last.gamma:.2f}" if "dfw" in group else "—"
            where = f"{metric or 'Euclidean'}, {momentum:g}"
            table.rows.append(
                [names.study(name.removeprefix("ablation-")), names.LOSSES[loss], where, f"{eta:g}", gamma, *cells]
            )
    table.note = "Validation of the best epoch, one seed. A dash: not run; ∞: diverged."
    return table


def _by_setting(runs: Sequence[Run]) -> dict[tuple[str, str, float, float], dict[str, Run]]:
    """The runs of each loss, metric, momentum and η, by optimizer."""
    found: dict[tuple[str, str, float, float], dict[str, Run]] = {}
    for run in runs:
        key = run.config["loss"], run.config.get("metric", ""), run.config["momentum"], run.config["lr"]
        found.setdefault(key, {})[run.config["optimizer"]] = run
    return found


def _validation(run: Run | None, averaged: bool) -> str:
    if run is None:
        return "—"
    value = run.best(next(iter(run.last.val_averaged)) if averaged else None)
    return _cell(value, run.lower_is_better) if math.isfinite(value) else "∞"


def _anew(runs: Sequence[Run]) -> str:
    ends = [run.last for run in runs]
    added = [value - end.val_averaged[form] for end in ends for form, value in end.val_averaged_fresh.items()]
    return f"{mean(added):+.1f}".replace("-", "−") if added else "—"


def claims(results: Results) -> Table:
    """What the paper claims about DFW, as differences in test accuracy."""
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
