"""The paper's tables in its layouts, with the published and the obtained results next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mode
from typing import Any

from experiments import published
from experiments.report import names
from experiments.report.results import Method, Results, Run, is_side
from experiments.report.selection import Candidate, best, candidates, choose, grid, rank
from experiments.report.table import Table, embolden

FAMILIES = {"wrn": "WRN", "densenet": "DN", "bilstm": "BiLSTM"}
PUBLISHED, OBTAINED = "published", {"small": "obtained, small scale", "paper": "obtained, paper scale"}
SCALE = (
    "“Published” is what the paper printed, at its scale: WRN-40-4, DenseNet-40-40 (DN) and a BiLSTM of 47 M "
    "parameters, all of the data, 200 or 300 epochs on CIFAR. “Small scale” is what this code obtained with small "
    "members of the same families on a part of the data in few epochs. These are different problems: compare the "
    "order within a column, never the numbers across."
)

Scales = dict[str, Results]  # "small" -> results, and "paper" -> results where someone has run them
Found = dict[tuple[Method, bool], Candidate]  # the chosen ones; False: as trained, True: averaged weights
Columns = list[list[Found]]  # for each published column, the results of each scale


def cifar(number: int, scales: Scales) -> Table:
    """Table 1 (without augmentation) or Table 2 (with): one row per optimizer."""
    data, augment = {1: (published.TABLE_1, False), 2: (published.TABLE_2, True)}[number]
    table = Table(
        f"Table {number}: CIFAR {'with' if augment else 'without'} data augmentation",
        ["optimizer", *_header(("CIFAR-10", "CIFAR-100"), scales)],
        note="Test accuracy, %. DFW and multi-step with the smoothed hinge, the others with the cross-entropy, unless "
        "a loss is named.",
    )
    for family, rows in data.items():
        columns = [
            [_found(results, family, dataset, augment) for results in scales.values()]
            for dataset in ("cifar10", "cifar100")
        ]
        paper = {(_in_paper(name, "smooth-hinge" if name == "dfw" else "ce"), False): name for name in rows}
        table.rows.append([f"{FAMILIES[family]}. {_note(_models(columns))}"])
        table.rows += [[names.OPTIMIZERS[name], *_cells(key, columns, rows[name])] for key, name in paper.items()]
        for averaged, heading in ((False, "not in the paper's table"), (True, "averaged weights")):
            keys = [key for key in _keys(columns) if key not in paper and key[1] == averaged]
            table.rows += [[f"{FAMILIES[family]}, {heading}"]] if keys else []
            table.rows += [[names.method(*key), *_cells(key, columns, (None, None))] for key in keys]
    return table


def snli(scales: Scales) -> Table:
    """Table 3: one row per loss, one column per optimizer."""
    found = {scale: _found(results, "bilstm", "snli") for scale, results in scales.items()}
    keys = _keys([list(found.values())])
    paper = [(name, name == "sgd") for name in (*published.TABLE_3["hinge"], "sgd*")]
    columns = list(dict.fromkeys([*paper, *((method.optimizer, method.scheduled) for method, _ in keys)]))
    heads = [names.OPTIMIZERS[n] if (n, s) in paper else names.optimizer(Method(n, "", s)) for n, s in columns]
    table = Table("Table 3: SNLI", ["loss", "from", *heads])
    losses = list(dict.fromkeys([*published.TABLE_3, *(method.loss for method, _ in keys)]))
    for averaged in (False, True):
        if averaged and any(key[1] for key in keys):
            table.rows.append(["Averaged weights"])
        for loss in losses:
            if not averaged and loss in published.TABLE_3:
                values = [published.TABLE_3[loss].get(name) for name, _ in columns]
                table.rows.append([names.LOSSES[loss], PUBLISHED, *(_printed(v, 1) for v in values)])
            for scale, per in found.items():
                if any(method.loss == loss and a == averaged for method, a in per):
                    cells = [_test(per, (Method(name, loss, s), averaged)) for name, s in columns]
                    table.rows.append([names.LOSSES.get(loss, loss), OBTAINED[scale], *cells])
    table.note = f"Test accuracy, %. {_note(_models([list(found.values())]))}"
    return table


def appendix(paper: published.Grid, scales: Scales) -> Table:
    """Tables 4 to 21: the validation accuracy of each setting that the paper or we tried."""
    if paper.model == "bilstm":
        heads, where = ("cross-entropy", "hinge"), [("snli", "ce"), ("snli", "hinge")]
    else:
        loss = "smooth-hinge" if paper.optimizer == "dfw" else "ce"
        heads, where = ("CIFAR-10", "CIFAR-100"), [("cifar10", loss), ("cifar100", loss)]
    ours = [
        [_tried(results, paper, dataset, _in_paper(paper.optimizer, loss)) for results in scales.values()]
        for dataset, loss in where
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
        embolden(lines, k)
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
        f"Validation accuracy, %: the best during training, as in the paper. {_note(models)}",
    )


def _in_paper(optimizer: str, loss: str) -> Method:
    """A row of the paper: only its SGD has a schedule."""
    return Method(optimizer, loss, optimizer == "sgd")


def _runs(results: Results, family: str, dataset: str, augment: bool) -> list[Run]:
    """The runs of a network family on a data set; with several tasks, those of the one with the most runs."""
    mine = [
        run
        for name, runs in results.items()
        for run in runs
        if not is_side(name)
        and run.config["model"].startswith(family)
        and (run.config["dataset"], bool(run.config.get("augment"))) == (dataset, augment)
    ]
    most = mode(run.task for run in mine) if mine else None
    return [run for run in mine if run.task == most]


def _found(results: Results, family: str, dataset: str, augment: bool = False) -> Found:
    mine = _runs(results, family, dataset, augment)
    return {(c.method, averaged): c for averaged in (False, True) for c in choose(mine, averaged)}


def _tried(results: Results, table: published.Grid, dataset: str, method: Method) -> dict[Any, Candidate]:
    """The best candidate at each setting of the table's fields."""
    groups: dict[tuple[float, ...], list[Candidate]] = {}
    mine = grid(_runs(results, table.model, dataset, table.augment))
    for c in candidates(run for run in mine if run.method == method):
        groups.setdefault(tuple(c.runs[0].config[name] for name in table.fields), []).append(c)
    return {at: best(group) for at, group in groups.items()}


def _keys(columns: Columns) -> list[tuple[Method, bool]]:
    keys = {key for column in columns for found in column for key in found}
    return sorted(keys, key=lambda key: (key[1], rank(key[0])))


def _models(columns: Columns) -> set[str]:
    return {c.runs[0].config["model"] for column in columns for found in column for c in found.values()}


def _cells(key: tuple[Method, bool], columns: Columns, values: Sequence[float | None]) -> list[str]:
    """Published, then obtained at each scale, column by column."""
    return [
        cell
        for value, column in zip(values, columns, strict=True)
        for cell in (_printed(value), *(_test(found, key) for found in column))
    ]


def _header(heads: Sequence[str], scales: Scales) -> list[str]:
    return [f"{head}: {which}" for head in heads for which in (PUBLISHED, *(OBTAINED[scale] for scale in scales))]


def _note(models: set[str]) -> str:
    return f"Obtained with {', '.join(sorted(models))}." if models else "Nothing obtained yet."


def _test(found: Found, key: tuple[Method, bool]) -> str:
    return str(found[key].test) if key in found else "—"


def _printed(value: float | None, digits: int = 2) -> str:
    return "—" if value is None else f"{value:.{digits}f}"
