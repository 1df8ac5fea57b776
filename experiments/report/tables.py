"""The tables: a study's own, and the paper's with what it published and what was obtained side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mode

from experiments import published
from experiments.report import names
from experiments.report.results import Method, Results, Run
from experiments.report.selection import Candidate, best, candidates, choose, grid, preferred, rank

AVERAGED = "Averaged weights"
PAPER, HERE = "published", {"small": "obtained, small scale", "paper": "obtained, paper scale"}
STUDIES = ("cifar10", "cifar10-augmented", "cifar100", "cifar100-augmented", "snli")
ADAPTIVE = ("adagrad", "adam", "amsgrad", "bpgrad")
FAMILIES = {"wrn": "WRN", "densenet": "DN", "bilstm": "BiLSTM"}
SCALE = (
    "“Published” is what the paper printed, at its scale: WRN-40-4, DenseNet-40-40 (DN) and a BiLSTM of 47 M "
    "parameters, all of the data, 200 or 300 epochs on CIFAR. “Small scale” is what this code obtained with small "
    "members of the same families on a part of the data in few epochs. These are different problems: compare the "
    "order within a column, never the numbers across."
)
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
        """As a Markdown table."""
        lines = [self.header, ["---"] * len(self.header)]
        for row in self.rows:
            cells = [f"**{cell}**" if isinstance(cell, Bold) else cell for cell in row]
            lines.append(cells if len(row) > 1 else [f"*{row[0]}*", *[""] * (len(self.header) - 1)])
        text = ["| " + " | ".join(cells) + " |" for cells in lines]
        text[1] = text[1].replace(" ", "")
        return "\n".join(text)


def study(name: str, runs: Sequence[Run]) -> Table:
    """The chosen setting of each method, and below it that of each method's averaged weights."""
    value = "MAE" if runs[0].is_regression else "accuracy, %"
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
                f"{_name((c.method, averaged))}: {names.setting(other, pool)} ({other.val})"
                for c in chosen
                if (other := preferred(c, mine))
            ]
    short = [f" of runs of {first} epochs, and run again for {last}" for first, last in sorted(lengths) if first < last]
    table.note = f"Settings were chosen by the validation value after the last epoch{';'.join(short)}. {SEEDS}"
    if others:
        table.note += f" The grid alone would have preferred {'; '.join(others)}."
    return table


def _study_rows(chosen: list[Candidate], pool: list[Candidate]) -> list[list[str]]:
    rows = [
        [
            names.optimizer(c.method) + (" + average" if c.decay else ""),
            names.loss(c.method),
            names.setting(c, [other for other in pool if other.method == c.method]),
            *(str(x) for x in (c.val, c.test)),
            str(len(c.runs)),
        ]
        for c in chosen
    ]
    for column in (3, 4):
        _embolden(rows, column, lower=any(c.runs[0].is_regression for c in chosen))
    return rows


def every_setting(name: str, runs: Sequence[Run]) -> Table:
    """All that was tried in a study."""
    value = "MAE" if runs[0].is_regression else "accuracy, %"
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


Scales = dict[str, Results]  # "small" -> results, and "paper" -> results where someone has run them
Found = dict[tuple[Method, bool], Candidate]  # the chosen ones; False: as trained, True: averaged weights
Columns = list[list[Found]]  # for each published column, what each scale has


def cifar(number: int, scales: Scales) -> Table:
    """Table 1 (without augmentation) or Table 2 (with): an optimizer a row."""
    data, tail = {1: (published.TABLE_1, ""), 2: (published.TABLE_2, "-augmented")}[number]
    table = Table(
        f"Table {number}: CIFAR {'with' if tail else 'without'} data augmentation",
        ["optimizer", *_header(("CIFAR-10", "CIFAR-100"), scales)],
        note="Test accuracy, %. DFW and multi-step with the smoothed hinge, the others with the cross-entropy, unless "
        "a loss is named.",
    )
    for family, rows in data.items():
        columns = [
            [_found(results.get(f"{name}{tail}", []), family) for results in scales.values()]
            for name in ("cifar10", "cifar100")
        ]
        paper = {(_in_paper(name, "smooth-hinge" if name == "dfw" else "ce"), False): name for name in rows}
        table.rows.append([f"{FAMILIES[family]}. {_note(_models(columns))}"])
        table.rows += [[names.OPTIMIZERS[name], *_cells(key, columns, rows[name])] for key, name in paper.items()]
        for averaged, heading in ((False, "not in the paper's table"), (True, "averaged weights")):
            keys = [key for key in _keys(columns) if key not in paper and key[1] == averaged]
            table.rows += [[f"{FAMILIES[family]}, {heading}"]] if keys else []
            table.rows += [[_name(key), *_cells(key, columns, (None, None))] for key in keys]
    return table


def snli(scales: Scales) -> Table:
    """Table 3: a loss a row, an optimizer a column."""
    found = {scale: _found(results.get("snli", []), "bilstm") for scale, results in scales.items()}
    keys = _keys([list(found.values())])
    paper = [(name, name == "sgd") for name in (*published.TABLE_3["hinge"], "sgd*")]
    columns = list(dict.fromkeys([*paper, *((method.optimizer, method.scheduled) for method, _ in keys)]))
    heads = [names.OPTIMIZERS[n] if (n, s) in paper else names.optimizer(Method(n, "", s)) for n, s in columns]
    table = Table("Table 3: SNLI", ["loss", "from", *heads])
    losses = list(dict.fromkeys([*published.TABLE_3, *(method.loss for method, _ in keys)]))
    for averaged in (False, True):
        if averaged and any(key[1] for key in keys):
            table.rows.append([AVERAGED])
        for loss in losses:
            if not averaged and loss in published.TABLE_3:
                values = [published.TABLE_3[loss].get(name) for name, _ in columns]
                table.rows.append([names.LOSSES[loss], PAPER, *(_printed(v, 1) for v in values)])
            for scale, per in found.items():
                if any(method.loss == loss and a == averaged for method, a in per):
                    cells = [_test(per, (Method(name, loss, s), averaged)) for name, s in columns]
                    table.rows.append([names.LOSSES.get(loss, loss), HERE[scale], *cells])
    table.note = f"Test accuracy, %. {_note(_models([list(found.values())]))}"
    return table


def claims(results: Results) -> Table:
    """What the paper claims of DFW, as differences in test accuracy."""
    table = Table(
        "The paper's claims",
        ["study", "DFW", "best adaptive", "DFW − adaptive", "SGD, schedule", "DFW − SGD", "DFW + average"],
        note="Test accuracy, %. The best adaptive method is that of Adagrad, Adam, AMSGrad and BPGrad with the best "
        "validation value. The paper claims that the first difference is positive and that the second is near zero.",
    )
    for name in (name for name in STUDIES if name in results):
        found = {averaged: choose(results[name], averaged) for averaged in (False, True)}
        loss = "hinge" if name == "snli" else "smooth-hinge"
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
    name = _name((rival.method, False)).removeprefix("SGD, schedule").removeprefix(", ")
    difference = f"{dfw.test.mean - rival.test.mean:+.1f}".replace("-", "−")
    return [f"{rival.test}{f' ({name})' if name else ''}", difference]


def appendix(paper: published.Grid, scales: Scales) -> Table:
    """Tables 4 to 21: the validation accuracy of each setting that the paper or we tried."""
    if paper.model == "bilstm":
        heads, where = ("cross-entropy", "hinge"), [("snli", "ce"), ("snli", "hinge")]
    else:
        loss, tail = "smooth-hinge" if paper.optimizer == "dfw" else "ce", "-augmented" if paper.augment else ""
        heads, where = ("CIFAR-10", "CIFAR-100"), [(f"cifar10{tail}", loss), (f"cifar100{tail}", loss)]
    ours = [
        [_tried(results.get(name, []), paper, _in_paper(paper.optimizer, loss)) for results in scales.values()]
        for name, loss in where
    ]
    width = len(paper.fields)
    tried = {at for column in ours for per in column for at in per} - {row[:width] for row in paper.rows}
    rows = [*paper.rows, *((*at, None, None) for at in tried)]
    lines = []
    for row in sorted(rows, key=lambda row: row[:width]):
        line = [f"{x:g}" for x in row[:width]]
        for value, column in zip(row[width:], ours, strict=True):
            line += [_printed(value), *(str(per[row[:width]].val) if row[:width] in per else "—" for per in column)]
        lines.append(line)
    for k in range(width, len(lines[0])):
        _embolden(lines, k)
    models = {
        f"{c.runs[0].config['model']} in {c.runs[0].epochs} epochs"
        for column in ours
        for per in column
        for c in per.values()
    }
    title = f"Table {paper.table}: {names.OPTIMIZERS[paper.optimizer]}, {FAMILIES[paper.model]}"
    return Table(
        title + (", with augmentation" if paper.augment else ""),
        [*(names.FIELDS[name] for name in paper.fields), *_header(heads, scales)],
        lines,
        f"Validation accuracy, %: the paper's best during training, ours after the last epoch. {_note(models)}",
    )


def _in_paper(optimizer: str, loss: str) -> Method:
    """A row of the paper: only its SGD has a schedule."""
    return Method(optimizer, loss, optimizer == "sgd")


def _of(runs: Sequence[Run], family: str) -> list[Run]:
    """The runs of the network family; of several tasks, those of the one that was run most."""
    mine = [run for run in runs if run.config["model"].startswith(family)]
    most = mode(run.task for run in mine) if mine else None
    return [run for run in mine if run.task == most]


def _found(runs: Sequence[Run], family: str) -> Found:
    mine = _of(runs, family)
    return {(c.method, averaged): c for averaged in (False, True) for c in choose(mine, averaged)}


def _tried(runs: Sequence[Run], table: published.Grid, method: Method) -> dict[tuple[float, ...], Candidate]:
    """The best candidate at each setting of the table's fields."""
    groups: dict[tuple[float, ...], list[Candidate]] = {}
    for c in candidates(run for run in grid(_of(runs, table.model)) if run.method == method):
        groups.setdefault(tuple(c.runs[0].config[name] for name in table.fields), []).append(c)
    return {at: best(group) for at, group in groups.items()}


def _keys(columns: Columns) -> list[tuple[Method, bool]]:
    keys = {key for column in columns for found in column for key in found}
    return sorted(keys, key=lambda key: (key[1], rank(key[0])))


def _models(columns: Columns) -> set[str]:
    return {c.runs[0].config["model"] for column in columns for found in column for c in found.values()}


def _name(key: tuple[Method, bool]) -> str:
    """The method, with its loss where it is not the usual one."""
    method, averaged = key
    usual = "smooth-hinge" if method.optimizer in ("dfw", "multistep") else "ce"
    return (
        names.optimizer(method)
        + (" + average" if averaged else "")
        + (f", {names.loss(method)}" if method.loss != usual else "")
    )


def _cells(key: tuple[Method, bool], columns: Columns, values: Sequence[float | None]) -> list[str]:
    """Published, then obtained at each scale, column by column."""
    return [
        cell
        for value, column in zip(values, columns, strict=True)
        for cell in (_printed(value), *(_test(found, key) for found in column))
    ]


def _header(heads: Sequence[str], scales: Scales) -> list[str]:
    return [f"{head}: {which}" for head in heads for which in (PAPER, *(HERE[scale] for scale in scales))]


def _note(models: set[str]) -> str:
    return f"Obtained with {', '.join(sorted(models))}." if models else "Nothing obtained yet."


def _test(found: Found, key: tuple[Method, bool]) -> str:
    return str(found[key].test) if key in found else "—"


def _printed(value: float | None, digits: int = 2) -> str:
    return "—" if value is None else f"{value:.{digits}f}"


def _embolden(rows: list[list[str]], column: int, lower: bool = False) -> None:
    """Mark the best number of a column, as it is printed."""
    numbers = {
        k: float(row[column].split()[0].replace(",", "")) for k, row in enumerate(rows) if row[column][0].isdigit()
    }
    if len(numbers) > 1:
        top = (min if lower else max)(numbers.values())
        for k in (k for k, number in numbers.items() if number == top):
            rows[k][column] = Bold(rows[k][column])
