"""The report: what validation chooses, the tables, the figures, the page, and the tables of the docs."""

import argparse
import json
import math
import re
import struct
from collections import defaultdict
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from matplotlib.textpath import TextPath
from pandas import DataFrame

from experiments import cost
from experiments.report import figures, names, page, results, tables
from experiments.report.results import candidates, choose, read, read_costs, rows_of
from experiments.studies import EVIDENCE

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


def line(study="cifar10", optimizer="dfw", lr=0.1, val=60.0, averaged=None, test=None, test_averaged=None, **config):
    """A finished run as a sweep writes it: three epochs that end at ``val``."""
    dataset = config.get("dataset", study)
    lower = dataset in results.LOWER
    loss = "l1" if lower else "smooth-hinge" if optimizer == "dfw" else "ce"
    full = {"dataset": dataset, "model": "wrn-10-1", "optimizer": optimizer, "loss": loss, "seed": 0}
    full |= {"lr": lr, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "wrn-jobs" if optimizer == "sgd" else ""}
    full |= {"epochs": 3, "batch": 128, "images": 10_000, "held": 5_000, "augment": False}
    curve = [
        {"epoch": epoch, "train_loss": 1 / epoch, "step_size": (0.1 if lr == "auto" else lr) / epoch, "seconds": 2.0}
        | {"val": val * 3 / epoch if lower else val * epoch / 3, "val_averaged": averaged or {}}
        | {"train_mae" if lower else "train_accuracy": 20.0 * epoch}
        for epoch in (1, 2, 3)
    ]
    provenance = {"torch": "2.13.0", "proxsvm": "0.1", "commit": "abc", "device": "cpu", "threads": 1}
    made = {"study": study, "config": full | config, "provenance": provenance, "curve": curve}
    return made | {"test": test, "test_averaged": test_averaged}


@cache
def committed():
    """The results in experiments/results, by study."""
    return read(RESULTS / "small", RESULTS / "tuned")


def frame(*lines):
    return DataFrame([row for each in lines for row in rows_of(each)])


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for each in lines:
        with (folder / f"{each['study']}.jsonl").open("a") as file:
            file.write(json.dumps(each) + "\n")
    return folder


def command(module, *words):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    module.main(parser.parse_args(list(map(str, words))))


def chosen(*lines, averaged=False):
    """(optimizer, η, mean validation) of what is chosen."""
    return [(c.optimizer, c.eta, c.runs.val.mean()) for c in choose(frame(*lines), averaged)]


def etas(*lines, averaged=False):
    return [eta for _, eta, _ in chosen(*lines, averaged=averaged)]


def test_runs_are_read_by_study_and_a_later_line_counts(tmp_path):
    write(tmp_path, line(val=50.0), line(val=60.0), line("snli"))
    found = read(tmp_path)
    assert {name: len(runs) for name, runs in found.items()} == {"cifar10": 1, "snli": 1}
    assert found["cifar10"]["last"].item() == 60.0
    assert read(tmp_path / "nowhere") == {}


def test_a_malformed_line_is_named_by_file_and_number(tmp_path):
    untested = {k: v for k, v in line().items() if k != "test"}
    for broken in (untested, {**line(), "config": {"rate": 1.0}}, {**line(), "curve": [{"epoch": 1}]}, "cut"):
        text = '{"study": "cifar10", "con' if broken == "cut" else json.dumps(broken)
        (tmp_path / "cifar10.jsonl").write_text(f"{json.dumps(line())}\n{text}\n")
        with pytest.raises(ValueError, match=r"cifar10\.jsonl, line 2: not a finished run"):
            read(tmp_path)


def test_the_best_validation_value_is_chosen_and_its_test_number_reported():
    adam, dfw = choose(
        frame(
            line(lr=0.01, val=50.0, test=99.0),  # a better test number decides nothing
            line(lr=0.1, val=60.0, test=58.0),
            line(lr=0.1, val=62.0, seed=1, test=61.0),
            line(optimizer="adam", lr=1e-3, val=55.0, test=54.0),
            line(optimizer="adam", lr=1e-2, val=54.0),
        )
    )
    assert (adam.optimizer, adam.eta, adam.test()) == ("adam", 1e-3, "54.0")
    assert (dfw.eta, dfw.validation, dfw.test()) == (0.1, "61.0 ± 1.4", "59.5 ± 2.1")


def test_settings_are_compared_on_the_seeds_that_all_have():
    found = line(lr=0.1, val=60.0), line(lr=0.1, val=50.0, seed=1), line(lr=1.0, val=59.0)
    assert etas(*found) == [0.1]  # 60 against 59 on seed 0; the mean 55 would have lost
    assert etas(*found, line(lr=1.0, val=58.0, seed=1)) == [1.0]  # 55 against 58.5 on both seeds
    assert etas(line(lr=0.1, val=60.0), line(lr=1.0, val=61.0, seed=1)) == [1.0]  # no common seed: their means


def test_what_was_tested_is_what_was_chosen():
    grid = [line(lr=0.1, val=60.0, averaged={"0.9": 61.0}), line(lr=1.0, val=59.0, averaged={"0.9": 65.0})]
    found = *grid, line(lr=0.1, val=58.0, seed=1, test=57.0, averaged={"0.9": 62.0})
    assert chosen(*found) == [("dfw", 0.1, 58.0)]  # new seeds, no test number to miss
    assert etas(*found, averaged=True) == [0.1]
    (average,) = choose(frame(*found), averaged=True)
    assert results.preferred(average, frame(*found)).eta == 1.0  # and that is said
    assert etas(line(lr=0.1), line(lr=1.0, test=59.0)) == [1.0]  # of equal ones


def test_what_a_short_grid_chose_is_judged_by_its_long_runs_alone():
    long = [line(lr=0.1, val=50.0 + s, epochs=20, seed=s, test=49.0, averaged={"0.9": 52.0}) for s in (1, 2)]
    found = line(lr=0.1, averaged={"0.9": 61.0}), line(lr=1.0, val=59.0, averaged={"0.9": 65.0}), *long
    assert chosen(*found) == [("dfw", 0.1, 51.5)]
    assert set(results.grid(frame(*found)).epochs) == {3}
    note = tables.study("cifar10", frame(*found)).note
    assert "of runs of 3 epochs, and run again for 20" in note
    assert "would have preferred DFW + average: η = 1, decay = 0.9 (65.0)" in note


def test_the_value_of_a_run_is_that_of_its_best_epoch():
    peaks = line(lr=0.1, val=50.0, averaged={"0.9": 50.0})
    peaks["curve"][1] |= {"val": 61.0, "val_averaged": {"0.9": 62.0}}
    dips = line("bike", val=0.5)
    dips["curve"][0]["val"] = 0.3
    found = peaks, line(lr=1.0, val=60.0, averaged={"0.9": 60.0}), dips
    assert chosen(*found) == [("dfw", 0.1, 0.3), ("dfw", 0.1, 61.0)]
    assert chosen(*found, averaged=True) == [("dfw", 0.1, 62.0)]


def test_lower_is_better_in_regression_and_nothing_that_diverged_is_chosen():
    found = [line("bike", lr=lr, val=val) for lr, val in ((0.1, 0.5), (1.0, 0.4), (10.0, math.nan))]
    assert etas(*found) == [1.0]
    assert [c.validation for c in candidates(frame(*found))] == ["0.5000", "0.4000", "diverged"]
    dollars = tables.study("california", frame(line("california", val=32_150.4), line("california", "adam", val=9e3)))
    assert [row[3] for row in dollars.rows] == ["9,000", "32,150"]
    assert [isinstance(row[3], tables.Bold) for row in dollars.rows] == [True, False]


def test_losses_networks_metrics_and_schedules_make_their_own_choice():
    sgd = [line(optimizer="sgd", val=20.0), line(optimizer="sgd", schedule="", val=70.0)]
    assert len(chosen(line(), line(loss="hinge", val=40.0), line(model="densenet-22-12", val=30.0), *sgd)) == 5
    options = {"study": "lm", "loss": "ce"}
    found = [line(**options, val=1.5), line(**options, val=1.4, lr=1.0), line(**options, val=1.3, metric="diagonal")]
    picked = choose(frame(*found, line(**options, val=1.6, lr="auto", metric="diagonal")))
    expected = ["DFW", "proxsvm, diagonal", "proxsvm, diagonal, η = auto"]
    assert [names.optimizer(c.method) for c in picked] == expected


def test_averaged_weights_choose_their_own_setting_and_decay():
    found = (
        line(lr=0.1, val=60.0, averaged={"0.99": 62.0, "0.999": 55.0}, test=59.0, test_averaged={"0.99": 61.0}),
        line(lr=1.0, val=50.0, averaged={"0.99": 63.0, "0.999": 66.0}, test=49.0, test_averaged={"0.999": 65.0}),
    )
    (average,) = choose(frame(*found), averaged=True)
    assert etas(*found) == [0.1]
    assert (average.eta, average.decay, average.val, average.test()) == (1, "0.999", 66, "65.0")


@pytest.mark.parametrize("study", EVIDENCE)
def test_no_best_eta_of_the_committed_results_is_at_an_end_of_its_grid(study):
    runs, grids = committed()[study], defaultdict(dict)
    for run in runs[~runs.read].itertuples():
        value = run.val * (-1 if run.lower else 1)
        grids[run.method, run.config.momentum, run.decay][run.eta] = -math.inf if math.isnan(value) else value
    grids = [grid for grid in grids.values() if len(grid) > 1]  # Prodigy and DoG have one setting for all tasks
    assert len(grids) > 9
    for grid in grids:
        assert min(grid) < max(grid, key=grid.get) < max(grid)


def test_published_and_obtained_stand_side_by_side():
    small = {"cifar10": frame(line(test=58.0), line(optimizer="sgd", test=59.0))}
    small["averaging"] = frame(line("averaging", dataset="cifar10", val=99.0, test=99.0))  # not one of the paper's rows
    small["snli"] = frame(*(line("snli", model="bilstm-128", loss="hinge", test=69.0, lr=lr) for lr in (1.0, 10.0)))
    large = {"cifar100-wrn": frame(line("cifar100-wrn", dataset="cifar100", model="wrn-40-4", test=67.0))}
    shown = tables.published({"small": small, "paper": large})
    assert [int(re.match(r"Table (\d+):", table.title)[1]) for table in shown] == list(range(1, 22))
    rows = {tuple(row[:3]): row[4:] for row in shown[0].rows}
    assert rows["CIFAR-10", "WRN", "DFW"] == ["90.18", "58.0", "—"]
    assert rows["CIFAR-100", "WRN", "DFW"] == ["67.83", "—", "67.0"]
    assert rows["CIFAR-10", "WRN", "SGD"] == ["90.08", "59.0", "—"]
    assert rows["CIFAR-10", "DenseNet", "Adam"] == ["88.44", "—", "—"]
    assert ["SNLI", "BiLSTM", "DFW", "hinge", "85.2", "69.0", "—"] in shown[2].rows
    assert [row[4:6] for row in shown[19].rows] == [["0.1", "84.87"], ["1", "85.21"], ["10", "84.76"]]
    assert [row[6] for row in shown[19].rows] == ["—", "60.0", "60.0"]


PROX = {"optimizer": "dfw", "loss": "ce", "metric": "diagonal", "average": "0.995"}


NOTHING = {**PROX, "lr": "auto", "metric": "kronecker", "momentum": 0.0, "memory": 0.9}


def test_the_cost_of_a_step_is_measured_and_replaces_the_rows_of_its_task(tmp_path):
    old = DataFrame({"task": ["digits", "lm"], "setting": "SGD, constant", "ratio": 7.0})
    old.to_csv(tmp_path / "cost.csv", index=False)
    command(cost, "digits", "--seconds", 0, "--results", tmp_path)
    costs = read_costs(tmp_path / "cost.csv")
    assert costs.task.value_counts().to_dict() == {"digits": 18, "lm": 1}
    mine = costs[costs.task == "digits"].set_index("setting")
    assert mine.ratio["AdamW, constant"] == mine.ratio["AdamW, constant, lr = 0.01"] == 1.0  # measured once
    assert (mine.ms > 0).all()
    assert mine.rounds.eq(1).all()


def test_one_setting_where_some_have_no_error_or_no_task():
    def of(study, dataset, **tests):
        options = {"loss": "ce", "dataset": dataset, "lr": 1e-3}
        return frame(*(line(study, optimizer, test=test, **options) for optimizer, test in tests.items()))

    studies = {"fixed-cifar10": of("fixed-cifar10", "cifar10", adamw=98.0, soap=100.0, muon=99.0)}
    studies["fixed-lm"] = of("fixed-lm", "lm", adamw=1.5, soap=3.0)
    rows = tables.fixed(studies).rows  # Muon was not run on all tasks: it is ahead of nobody
    assert [[row[0], *row[3:]] for row in rows] == [
        ["AdamW, constant", "1.5", "inf"],
        ["SOAP, lr = 0.001", "1.5", "2.00"],
    ]
    assert tables.fixed({}).rows == []
    assert tables.ranks({"fixed-lm": studies["fixed-lm"]}).title == "One setting for 1 task"


def test_five_decades():
    base = {"dataset": "lm", **NOTHING, "average": "", "averaged": {"0.995": 1.0}}
    made = [line("decades-lm", **base | {"lr": lr}) for lr in ("auto", 0.1, 0.01)]
    peers = [line("decades-lm", "soap", lr, dataset="lm", loss="ce", averaged={"0.995": 2.0}) for lr in (0.1, 0.01)]
    drawn = figures.drawings({"decades-lm": frame(*made, *peers)})
    assert list(drawn) == ["decades", "decades-all", "decades-last"]
    for legend in (drawing.draw().legends[0] for drawing in drawn.values()):
        assert [text.get_text() for text in legend.get_texts()] == ["proxsvm at this η", "proxsvm, nothing set", "SOAP"]


def test_figures_are_written_by_name_and_an_unknown_name_lists_them(tmp_path, capsys):
    folder = write(tmp_path / "results", *(line(optimizer=o, lr=lr) for o in ("dfw", "sgd") for lr in (0.1, 1.0)))
    command(figures, "--results", folder, "--list")
    listed = capsys.readouterr().out.split()
    assert listed == ["sensitivity-cifar10", "errors-cifar10", "step-size-cifar10"]
    out = tmp_path / "out"
    command(figures, "--results", folder, "--out", out)
    assert {file.stem for file in out.iterdir()} == set(listed)
    for file in out.iterdir():
        width, height = struct.unpack(">II", file.read_bytes()[16:24])
        assert width == round(figures.WIDTH * 160)
        assert height > 500
    with pytest.raises(SystemExit, match=r"no figure named 'figure-7'.*there are sensitivity-cifar10, "):
        command(figures, "figure-7", "--results", folder)


@pytest.mark.parametrize(("error", "marker"), [(9.0, None), (11.0, "x"), (float("inf"), "x")])
def test_what_gamma_is_worth_and_an_error_above_ten_times_the_lowest_is_at_the_top(error, marker):
    """One such value would take the whole scale."""
    options = {"study": "ablation-lm", "lr": 0.1, "dataset": "lm", "loss": "ce"}
    values = (("dfw-full", error), ("dfw", 1.0))
    tried = [line(optimizer=o, averaged={"0.995": value}, val=value, **options) for o, value in values]
    tried[1]["curve"][-1]["gamma"] = 0.25
    studies = {"ablation-lm": frame(*tried)}
    shown = "∞" if math.isinf(error) else f"{error:.3f}" if error < 10 else f"{error:.2f}"
    (row,) = tables.ablation(studies).rows
    assert row[:5] == ["Language model", "cross-entropy", "Euclidean, 0.9", "0.1", "0.25"]
    assert row[5:8] == row[8:] == ["1.000", shown, "—"]
    (ax, _) = figures.drawings(studies)["gamma"].draw().axes
    drawn = [each.get_marker() for each in ax.lines]
    assert (drawn.count("o"), drawn.count("x")) == (2, int(marker is not None))
    assert [text.get_text() for text in ax.texts] == ["0.25"]


def everything() -> list[dict[str, Any]]:
    """A little of each kind of study: a short grid, what it chose with two seeds, a name that nobody knows."""
    average, lines = {"0.99": 58.0, "0.999": 61.0}, []
    for study in ("cifar10", "averaging"):
        for optimizer in ("dfw", "sgd", "adam", "unheard-of"):
            options = {"dataset": "cifar10", "averaged": average}
            lines += [line(study, optimizer, lr, val=60 - lr, **options) for lr in (0.1, 1.0)]
            lines += [line(study, optimizer, seed=seed, epochs=20, test=59.0, **options) for seed in (1, 2)]
    for optimizer, loss in (("dfw", "hinge"), ("sgd", "ce"), ("sgd", "hinge"), ("adam", "ce")):
        lines.append(line("snli", optimizer, 0.1, model="bilstm-128", loss=loss, val=70.0, test=69.0))
    lines += [line("california", o, lr, val=lr, model="mlp", schedule="") for o in ("dfw", "adam") for lr in (0.4, 0.5)]
    lines += [line("sensitivity", o, lr, dataset="cifar10") for o in ("multistep", "dfw") for lr in (0.1, 1.0, 10.0)]
    lines += [line("fixed-lm", **PROX, dataset="lm", test=1.0), line("fixed-lm", "adamw", dataset="lm", test=2.0)]
    return [*lines, line("ablation-bike", averaged={"0.995": 1.0}, dataset="bike")]


def test_the_page_holds_every_figure_and_table_and_asks_for_nothing_outside(tmp_path):
    assert "90.18" in page.render({"small": {}}, "without results", read_costs(tmp_path / "none"))
    write(tmp_path / "small", *everything())
    write(tmp_path / "paper", line("cifar10-wrn", test=58.0, dataset="cifar10", model="wrn-40-4"))
    command(page, "--results", tmp_path, "--out", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    drawn = set(figures.drawings(read(tmp_path / "small")))
    assert {"errors-cifar10", "step-size-snli", "sensitivity", "errors-california", "gamma"} <= drawn
    assert all(f'<figure id="{name}">' in text for name in {*drawn, "paper-errors-cifar10-wrn"})
    assert all(f"Table {number}:" in text for number in range(1, 22))
    assert not re.search(r'(?:src|href)="(?!#|data:)|<link|<script\s|@import|url\(', text)
    assert "Not run yet, and so not on this page: CIFAR-10, with augmentation; CIFAR-100; " in text
    sections = re.findall('<section id="(.*?)">', text)
    assert sections[:4] == ["fixed", "tuned", "gamma", "tables"]
    assert "One setting for 1 task<" in text
    assert "wrn-10-1: 8 runs of 3 epochs, 8 runs of 20 epochs." in text


def test_an_unknown_study_lists_those_that_have_results(tmp_path):
    write(tmp_path / "small", line())
    with pytest.raises(SystemExit, match=r"no results of a study named 'cifar'; there are results of: cifar10"):
        command(page, "--results", tmp_path, "--markdown", "cifar")


SHOWN = [
    ("docs/reproduction.md", "study"),
    ("docs/structured.md", "structured"),
    ("README.md", "ranks"),
    ("docs/index.md", "ranks"),
]


@pytest.mark.parametrize(("file", "kind"), SHOWN)
def test_the_docs_show_what_the_results_say(file, kind):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert f"<!-- {kind} " in text
    assert page.filled(text, committed(), read_costs(RESULTS / "cost.csv")) == text


def test_the_widest_table_of_the_page_fits_1400_pixels(monkeypatch):
    """By the widths of DejaVu Sans, which is wider than what browsers have; only heads and names wrap.

    The widest are those with a column for each task.
    """
    monkeypatch.setattr(page, "drawings", lambda found: {})
    studies = {name: runs for name, runs in committed().items() if names.kind(name) in ("fixed", "decay", "factors")}
    html = page.render({"small": studies}, "", read_costs(RESULTS / "cost.csv"))
    width = cache(lambda text: TextPath((0, 0), unescape(text) or "0", size=14.08).get_extents().width + 16)

    def narrowest(cell: str, first: bool) -> float:
        text = re.sub("<.*?>", "", cell)
        wraps = first or cell.startswith("<th") or 'class="long"' in cell
        return max(map(width, text.split() or [""] if wraps else [text]))

    for table in re.findall("<table>.*?</table>", html, re.DOTALL):
        rows = [re.findall("<t[hd].*?</t[hd]>", row) for row in re.findall("<tr>.*?</tr>", table)]
        columns = zip(*rows, strict=True)
        assert sum(max(narrowest(cell, k == 0) for cell in column) for k, column in enumerate(columns)) <= 1400 - 34
