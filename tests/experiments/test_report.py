"""The report: reading results, the choice on validation, tables, figures, and the page in a real browser."""

from __future__ import annotations

import argparse
import doctest
import html
import json
import math
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from experiments import published
from experiments.report import gallery, names, page, paper_tables, selection, study_tables, style, table
from experiments.report.approximation import approximation
from experiments.report.results import Run, parse, read, read_structured
from experiments.report.selection import Spread, candidates, choose

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def line(
    study: str = "cifar10",
    optimizer: str = "dfw",
    lr: float | str = 0.1,
    seed: int = 0,
    val: float = 60.0,
    averaged: dict[str, float] | None = None,
    test: float | None = None,
    test_averaged: dict[str, float] | None = None,
    **config: Any,
) -> dict[str, Any]:
    """A finished run as a sweep writes it: three epochs that end at ``val``."""
    regression = study in ("california", "bike", "lm")
    loss = "l1" if regression else "smooth-hinge" if optimizer == "dfw" else "ce"
    full = {"dataset": study.removesuffix("-augmented"), "model": "wrn-10-1", "optimizer": optimizer, "loss": loss}
    full |= {"lr": lr, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "wrn-jobs" if optimizer == "sgd" else ""}
    full |= {"epochs": 3, "batch": 128, "images": 10_000, "held": 5_000, "augment": study.endswith("augmented")}
    full |= {
        "averages": sorted(averaged or {}),
        "seed": seed,
        "test": test is not None,
        "device": "cpu",
        "data": "data",
    }
    curve = [
        {"epoch": epoch, "train_loss": 1 / epoch, "step_size": (0.1 if lr == "auto" else lr) / epoch, "seconds": 2.0}
        | {"val": val * 3 / epoch if regression else val * epoch / 3}
        | {"train_mae" if regression else "train_accuracy": 20.0 * epoch}
        | {"val_averaged": averaged or {}}
        for epoch in (1, 2, 3)
    ]
    provenance = {"torch": "2.13.0", "proxsvm": "0.1", "commit": "abc", "device": "cpu", "threads": 1}
    return {"study": study, "config": full | config, "provenance": provenance, "curve": curve} | {
        "test": test,
        "test_averaged": test_averaged,
    }


def runs(*lines: dict[str, Any]) -> list[Run]:
    return [parse(line) for line in lines]


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for each in lines:
        with (folder / f"{each['study']}.jsonl").open("a") as file:
            file.write(json.dumps(each) + "\n")
    return folder


def everything() -> list[dict[str, Any]]:
    """A little of each kind of study: a short grid, what it chose with two seeds, a name that nobody knows."""
    average = {"0.99": 58.0, "0.999": 61.0}
    lines = []
    for study in ("cifar10", "averaging"):
        for optimizer in ("dfw", "sgd", "adam", "unheard-of"):
            lines += [line(study, optimizer, lr, val=60 - lr, averaged=average, dataset="cifar10") for lr in (0.1, 1.0)]
            for seed in (1, 2):
                lines.append(
                    line(study, optimizer, seed=seed, epochs=20, dataset="cifar10", averaged=average, test=59.0)
                )
    for optimizer, loss in (("dfw", "hinge"), ("sgd", "ce"), ("sgd", "hinge"), ("adam", "ce")):
        lines.append(line("snli", optimizer, 0.1, model="bilstm-128", loss=loss, val=70.0, test=69.0))
    lines += [line("california", o, lr, val=lr, model="mlp", schedule="") for o in ("dfw", "adam") for lr in (0.4, 0.5)]
    lines += [line("sensitivity", o, lr, dataset="cifar10") for o in ("multistep", "dfw") for lr in (0.1, 1.0, 10.0)]
    return lines


# Reading.


def test_runs_are_read_by_study_and_a_later_line_counts(tmp_path):
    write(tmp_path, line(val=50.0), line(val=60.0), line("snli"))
    results = read(tmp_path)
    assert {name: len(found) for name, found in results.items()} == {"cifar10": 1, "snli": 1}
    assert results["cifar10"][0].last.val == 60.0
    assert read(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ('{"study": "cifar10", "con', "Unterminated"),
        (json.dumps({**line(), "curve": []}), "its curve is empty"),
        (json.dumps({k: v for k, v in line().items() if k != "test"}), "'test' is missing"),
        (json.dumps({**line(), "config": {"lr": 1.0}}), "'config.dataset' is missing"),
        (json.dumps({**line(), "curve": [{"epoch": 1}]}), "'train_loss' is missing"),
        ("[1, 2]", "not a finished run"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(tmp_path, broken, said):
    write(tmp_path, line())
    with (tmp_path / "cifar10.jsonl").open("a") as file:
        file.write(broken + "\n")
    with pytest.raises(ValueError, match=rf"cifar10\.jsonl, line 2: .*{re.escape(said)}"):
        read(tmp_path)


# The choice on validation.


def test_the_best_validation_value_is_chosen_and_its_test_number_reported():
    found = runs(
        line(lr=0.01, val=50.0, test=99.0),  # a better test number decides nothing
        line(lr=0.1, val=60.0, test=58.0),
        line(lr=0.1, val=62.0, seed=1, test=61.0),
        line(optimizer="adam", lr=1e-3, val=55.0, test=54.0),
        line(optimizer="adam", lr=1e-2, val=54.0),
    )
    adam, dfw = choose(found)
    assert (adam.method.optimizer, adam.eta, adam.test.mean) == ("adam", 1e-3, 54.0)
    assert (dfw.method.optimizer, dfw.eta) == ("dfw", 0.1)
    assert dfw.val == Spread(61.0, pytest.approx(math.sqrt(2)), 2)
    assert dfw.test == Spread(59.5, pytest.approx(3 / math.sqrt(2)), 2)


def test_settings_are_compared_on_the_seeds_that_all_have():
    found = runs(line(lr=0.1, val=60.0), line(lr=0.1, val=50.0, seed=1), line(lr=1.0, val=59.0))
    (chosen,) = choose(found)  # 60 against 59 on seed 0; the mean 55 would have lost
    assert chosen.eta == 0.1
    both = choose([*found, *runs(line(lr=1.0, val=58.0, seed=1))])  # 55 against 58.5 on both seeds
    assert both[0].eta == 1.0


def test_what_was_tested_is_what_was_chosen():
    grid = [line(lr=0.1, val=60.0, averaged={"0.9": 61.0}), line(lr=1.0, val=59.0, averaged={"0.9": 65.0})]
    found = runs(*grid, line(lr=0.1, val=58.0, seed=1, test=57.0, averaged={"0.9": 62.0}))
    (plain,), (averaged,) = choose(found), choose(found, averaged=True)
    assert (plain.eta, plain.val.mean, averaged.eta) == (0.1, 58.0, 0.1)  # new seeds, no test number to miss
    assert selection.preferred(averaged, found).eta == 1.0  # and that is said


def test_settings_without_a_common_seed_are_compared_by_their_means():
    (chosen,) = choose(runs(line(lr=0.1, val=60.0), line(lr=1.0, val=61.0, seed=1)))
    assert chosen.eta == 1.0


def test_what_a_short_grid_chose_is_judged_by_its_long_runs_alone():
    found = runs(
        line(lr=0.1, val=60.0, epochs=3, averaged={"0.9": 61.0}),
        line(lr=1.0, val=59.0, epochs=3, averaged={"0.9": 65.0}),
        *(line(lr=0.1, val=50.0 + seed, epochs=20, seed=seed, test=49.0, averaged={"0.9": 52.0}) for seed in (1, 2)),
    )
    (chosen,) = choose(found)
    assert (chosen.eta, chosen.val.mean, chosen.test.count) == (0.1, 51.5, 2)
    assert [run.epochs for run in selection.grid(found)] == [3, 3]
    assert selection.preferred(chosen, found) is None
    (averaged,) = choose(found, averaged=True)
    assert selection.preferred(averaged, found).eta == 1.0  # the average was not run to the end where it is best
    note = study_tables.study("cifar10", found).note
    assert "of runs of 3 epochs, and run again for 20" in note
    assert "would have preferred DFW + average: η = 1, decay = 0.9 (65.0)" in note


def test_the_value_of_a_run_is_that_of_its_best_epoch():
    peaks = line(lr=0.1, val=50.0, averaged={"0.9": 50.0})
    peaks["curve"][1] |= {"val": 61.0, "val_averaged": {"0.9": 62.0}}
    dips = line("bike", val=0.5)
    dips["curve"][0]["val"] = 0.3
    found = runs(peaks, line(lr=1.0, val=60.0, averaged={"0.9": 60.0}), dips)
    assert [(c.eta, c.val.mean) for c in choose(found)] == [(0.1, 0.3), (0.1, 61.0)]
    assert [(c.eta, c.val.mean) for c in choose(found, averaged=True)] == [(0.1, 62.0)]


def test_a_row_speaks_of_the_seeds_whose_test_number_was_read():
    found = runs(line(val=70.0), *(line(val=60.0 + seed, seed=seed, test=50.0) for seed in (1, 2)))
    (row,) = study_tables.study("cifar10", found).rows
    assert row[3:] == ["61.5 ± 0.7", "50.0 ± 0.0", "2"]


def test_lower_is_better_in_regression_and_nothing_that_diverged_is_chosen():
    found = runs(line("bike", lr=0.1, val=0.5), line("bike", lr=1.0, val=0.4), line("bike", lr=10.0, val=math.nan))
    assert choose(found)[0].eta == 1.0
    assert [str(c.val) for c in candidates(found)] == ["0.5000", "0.4000", "diverged"]
    assert str(choose(runs(line("bike", val=41.234)))[0].val) == "41.23"
    dollars = study_tables.study(
        "california", runs(line("california", lr=0.1, val=32_150.4), line("california", "adam", val=9e3))
    )
    assert [row[3] for row in dollars.rows] == ["9,000", "32,150"]
    assert [isinstance(row[3], table.Bold) for row in dollars.rows] == [True, False]


def test_of_equal_settings_the_one_whose_test_number_was_read_is_chosen():
    assert choose(runs(line(lr=0.1), line(lr=1.0, test=59.0)))[0].eta == 1.0


def test_losses_networks_and_schedules_make_their_own_choice():
    found = runs(
        line(),
        line(loss="hinge", val=40.0),
        line(model="densenet-22-12", val=30.0),
        line(optimizer="sgd", val=20.0),
        line(optimizer="sgd", schedule="", val=70.0),
    )
    assert len(choose(found)) == 5


def test_averaged_weights_choose_their_own_setting_and_decay():
    found = runs(
        line(lr=0.1, val=60.0, averaged={"0.99": 62.0, "0.999": 55.0}, test=59.0, test_averaged={"0.99": 61.0}),
        line(lr=1.0, val=50.0, averaged={"0.99": 63.0, "0.999": 66.0}, test=49.0, test_averaged={"0.999": 65.0}),
    )
    (plain,), (averaged,) = choose(found), choose(found, averaged=True)
    assert (plain.eta, plain.decay, plain.val.mean, plain.test.mean) == (0.1, None, 60.0, 59.0)
    assert (averaged.eta, averaged.decay, averaged.val.mean, averaged.test.mean) == (1.0, "0.999", 66.0, 65.0)


# Tables.


@pytest.mark.parametrize("module", [names, selection, table])
def test_the_examples_in_the_docstrings_hold(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


def test_a_study_as_markdown(tmp_path, capsys):
    write(
        tmp_path / "small",
        line(lr=0.1, val=60.0, averaged={"0.99": 64.0}, test=58.0, test_averaged={"0.99": 63.0}),
        line(lr=0.1, val=61.0, seed=1, averaged={"0.99": 65.0}, test=60.0, test_averaged={"0.99": 63.0}),
        line(lr=1.0, val=59.0),
        line(optimizer="sgd", val=62.0, weight_decay=5e-4),
        line(optimizer="sgd", val=61.0, weight_decay=1e-4),
    )
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    page.main(parser.parse_args(["--results", str(tmp_path), "--markdown", "cifar10"]))
    assert capsys.readouterr().out.splitlines() == [
        "| optimizer | loss | setting | validation (accuracy, %) | test (accuracy, %) | seeds |",
        "|---|---|---|---|---|---|",
        "| DFW | smoothed hinge | η = 0.1 | 60.5 ± 0.7 | 59.0 ± 1.4 | 2 |",
        "| SGD, schedule | cross-entropy | η = 0.1, l₂ = 0.0005 | **62.0** | — | 1 |",
        "| *Averaged weights* |  |  |  |  |  |",
        "| DFW + average | smoothed hinge | η = 0.1, decay = 0.99 | 64.5 ± 0.7 | 63.0 ± 0.0 | 2 |",
        "",
        "Settings were chosen by the validation value of the best epoch. Mean ± sample standard deviation over the "
        "seeds.",
    ]
    with pytest.raises(SystemExit, match=r"no results of a study named 'cifar'; there are results of: cifar10"):
        page.main(parser.parse_args(["--results", str(tmp_path), "--markdown", "cifar"]))


def test_published_and_obtained_stand_side_by_side():
    small = {"cifar10": runs(line(test=58.0), line(optimizer="momo", test=57.0), line(optimizer="sgd", test=59.0))}
    small["averaging"] = runs(line("averaging", dataset="cifar10", val=99.0, test=99.0))  # not one of the paper's rows
    large = {"cifar100-wrn": runs(line("cifar100-wrn", dataset="cifar100", model="wrn-40-4", test=67.0))}
    shown = paper_tables.cifar(1, {"small": small, "paper": large})
    rows = {row[0]: row[1:] for row in shown.rows[:9]}
    assert rows["DFW"] == ["90.18", "58.0", "—", "67.83", "—", "67.0"]
    assert rows["SGD"] == ["90.08", "59.0", "—", "66.78", "—", "—"]
    assert rows["Adam"] == ["84.86", "—", "—", "58.46", "—", "—"]
    assert rows["MoMo"] == ["—", "57.0", "—", "—", "—", "—"]
    assert study_tables.claims(small).rows[0] == ["CIFAR-10", "58.0", "—", "—", "59.0", "−1.0", "—"]


def test_the_table_of_snli_has_the_papers_layout():
    small = {"snli": runs(*(line("snli", "dfw", model="bilstm-128", loss="hinge", test=69.0, lr=lr) for lr in (1, 10)))}
    shown = paper_tables.snli({"small": small})
    assert shown.header[2:] == ["Adagrad", "Adam", "AMSGrad", "BPGrad", "DFW", "SGD", "SGD*"]
    assert [row[6] for row in shown.rows] == ["—", "85.2", "69.0"]
    grid = next(grid for grid in published.APPENDIX if grid.table == 20)
    rows = paper_tables.appendix(grid, {"small": small}).rows
    assert [row[0] for row in rows] == ["0.1", "1", "10"]
    assert [row[3:] for row in rows] == [["84.87", "—"], ["85.21", "60.0"], ["84.76", "60.0"]]


def test_the_papers_tables_are_whole_and_their_best_are_those_it_prints_in_bold():
    assert [grid.table for grid in published.APPENDIX] == list(range(4, 22))
    bold = """88.18 55.72  86.4 56.16  89.42 63.9  86.1 58.7  90.4 68.54  87.02 59.6  91.7 59.7  89.24 59.9  92.72 69.66
        91.88 69.3  95.34 74.1  94.98 75.34  83.77 84.62  84.56 84.69  84.69 84.83  84.28 84.73  0 85.21  85.06 85.15"""
    best = [max(row[k] or 0 for row in grid.rows) for grid in published.APPENDIX for k in (-2, -1)]
    assert best == [float(number) for number in bold.split()]
    assert all(len(row) == len(grid.fields) + 2 for grid in published.APPENDIX for row in grid.rows)


# Figures.


def test_figure_1_draws_the_minima_of_its_own_curves():
    a = approximation(points=5301)
    near = 2 * float(a.w[1] - a.w[0])
    assert a.w_sgd == pytest.approx(a.w[(a.sgd + a.proximal).argmin()].item(), abs=near)
    assert a.w_preserving == pytest.approx(a.w[(a.preserving + a.proximal).argmin()].item(), abs=near)
    assert abs(a.w_preserving - a.w_best) < abs(a.w_sgd - a.w_best)


def test_figures_are_written_by_name_and_an_unknown_name_lists_them(tmp_path, capsys):
    results = write(tmp_path / "results", *(line(optimizer=o, lr=lr) for o in ("dfw", "sgd") for lr in (0.1, 1.0)))
    parser = argparse.ArgumentParser()
    gallery.add_arguments(parser)
    gallery.main(parser.parse_args(["--results", str(results), "--list"]))
    listed = capsys.readouterr().out.split()
    assert listed == [
        "figure-1",
        "errors-cifar10",
        "convergence-cifar10",
        "step-size-cifar10",
        "sensitivity-cifar10",
    ]
    out = tmp_path / "out"
    gallery.main(parser.parse_args(["--results", str(results), "--out", str(out)]))
    assert {file.stem for file in out.iterdir()} == set(listed)
    for file in out.iterdir():
        width, height = struct.unpack(">II", file.read_bytes()[16:24])
        assert width == round(style.WIDTH * 160)
        assert height > 500
    with pytest.raises(SystemExit, match=r"no figure named 'figure-7'.*there are figure-1, "):
        gallery.main(parser.parse_args(["figure-7", "--results", str(results)]))


def test_the_sensitivity_study_also_shows_other_studies_runs_of_its_task():
    cifar = runs(*(line(optimizer="adam", lr=lr, averaged={"0.9": 1.0}) for lr in (0.001, 0.01)))
    results = {
        "cifar10": cifar,
        "sensitivity": runs(*(line("sensitivity", lr=lr, dataset="cifar10") for lr in (1, 10))),
    }
    figure = gallery.drawings(results)["sensitivity"].draw()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Adam", "DFW"]


# The page.


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(folder / "results" / "small", *everything())
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    out = folder / "report.html"
    page.main(parser.parse_args(["--results", str(folder / "results"), "--out", str(out)]))
    return out


def test_the_page_holds_every_figure_and_table_and_asks_for_nothing_outside(report):
    text = report.read_text()
    drawn = gallery.drawings(read(report.parent / "results" / "small"))
    kinds = {"figure-1", "errors-cifar10", "convergence-cifar10", "step-size-snli", "sensitivity", "averaging"}
    assert kinds | {"regression-california", "sensitivity-cifar10", "averaging-cifar10"} <= set(drawn)
    assert all(f'<figure id="{name}">' in text for name in drawn)
    assert all(f"Table {number}:" in text for number in range(1, 22))
    assert not re.search(r'(?:src|href)="(?!#|data:)|<link|<script\s|@import|url\(', text)
    missing = "CIFAR-10, with augmentation; CIFAR-100; CIFAR-100, with augmentation; Bike sharing; Language model"
    missing += "; One fixed setting; Ablation"
    assert f"Not run yet, and so not on this page: {missing}." in text


def test_the_papers_scale_has_its_own_studies_on_the_page():
    results = {"cifar10": runs(line(test=58.0), line(optimizer="sgd", test=59.0))}
    text = page.render({"small": {}, "paper": results}, "python -m experiments report")
    assert '<section id="paper-cifar10">' in text
    assert '<figure id="paper-errors-cifar10">' in text


def test_without_results_the_page_says_what_is_missing_and_shows_the_published_numbers(tmp_path):
    text = page.render({"small": {}}, "python -m experiments report")
    assert "Not run yet, and so not on this page: CIFAR-10; " in text
    assert "90.18" in text
    assert '<figure id="figure-1">' in text


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome, which is not installed")
@pytest.mark.parametrize("width", [375, 1280])
def test_a_real_browser_loads_every_picture_and_the_page_never_scrolls_sideways(report, tmp_path, width):
    # Chromium's own window is never narrower than 500 pixels, so the page is looked at in a frame.
    measure = """<script>addEventListener("load", () => {
        document.querySelectorAll("details").forEach(each => each.open = true)
        const images = [...document.images]
        parent.postMessage(JSON.stringify({
            images: images.length, loaded: images.filter(each => each.complete && each.naturalWidth > 500).length,
            tables: document.querySelectorAll(".wide > div > table").length, window: innerWidth,
            wide: document.documentElement.scrollWidth}), "*")})</script></body>"""
    (tmp_path / "page.html").write_text(report.read_text().replace("</body>", measure))
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<body><script>addEventListener('message', event => { document.body.dataset.seen = event.data })</script>"
        f"<iframe src='page.html' style='border: 0; width: {width}px; height: 800px'></iframe></body>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/user"]
    command = [CHROMIUM, *options, "--virtual-time-budget=20000", "--dump-dom", frame.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    seen = json.loads(html.unescape(re.search(r'data-seen="([^"]*)"', dom)[1]))
    assert seen["window"] == width
    assert seen["loaded"] == seen["images"] == len(gallery.drawings(read(report.parent / "results" / "small")))
    assert seen["tables"] > 30
    assert seen["wide"] <= width


def test_the_forms_of_the_average_stand_side_by_side():
    tried = [line("averaging", lr=lr, seed=1, averaged={"0.99": 60.0 + lr, "1/4": 62.0}, val=55.0) for lr in (0.1, 1.0)]
    for each in tried:
        each["curve"][-1]["val_averaged_fresh"] = {"0.99": 60.0 + each["config"]["lr"] - 1.5, "1/4": 62.0 - 0.5}
    table = study_tables.averages(
        "averaging", runs(*tried, line("averaging", epochs=2, lr=7.0))
    )  # what is shorter is left out
    assert table.header == ["optimizer", "setting", "not averaged", "1/4", "0.99", "statistics re-estimated"]
    assert table.rows == [
        ["DFW", "η = 0.1", "55.0", "62.0", "60.1", "−1.0"],
        ["DFW", "η = 1", "55.0", "62.0", "61.0", "−1.0"],
    ]


def test_a_text_gets_the_kind_of_table_that_it_asks_for(tmp_path):
    found = {"cifar10": runs(line(lr=0.1), line(lr=1.0, averaged={"1/4": 62.0}))}
    text = "a\n<!-- study cifar10 -->\nold\n<!-- end -->\nb\n<!-- settings cifar10 -->\n<!-- end -->\nc"
    new = page.filled(text, found)
    assert new.startswith("a\n<!-- study cifar10 -->\n\n| optimizer | loss | setting |")
    assert "old" not in new
    assert "62.0 (1/4)" in new[new.index("<!-- settings") :]
    assert page.filled(new, found) == new


def test_one_fixed_setting_over_all_tasks():
    def of(study, **values):
        made = []
        for optimizer, test in values.items():
            options = {"loss": "ce", "optimizer": optimizer, "test": test, "dataset": study.removeprefix("fixed-")}
            made.append(line(study, **options, averaged={"0.995": 1.0}, test_averaged={"0.995": test + 1}))
        prox = {"optimizer": "dfw", "loss": "ce", "metric": "diagonal", "average": "0.995", "lr": "auto"}
        made.append(line(study, **prox, test=80.0 if "cifar" in study else 1.0, dataset=options["dataset"]))
        return runs(*made)

    studies = {"fixed-cifar10": of("fixed-cifar10", adamw=70.0, dog=60.0), "fixed-lm": of("fixed-lm", adamw=1.5)}
    table = study_tables.fixed(studies)
    assert table.header == ["", "CIFAR-10", "Language model", "mean rank", "worst"]
    assert table.rows == [
        ["proxsvm, diagonal, η = auto", "80.0", "1.000", "1.0", "1.00"],
        ["AdamW, constant", "70.0", "1.500", "2.5", "1.50"],
        ["AdamW, constant + average", "71.0", "2.500", "2.5", "2.50"],
    ]  # DoG was not run on all tasks
    assert study_tables.fixed({}).rows == []
    faultless = study_tables.fixed({"fixed-cifar10": of("fixed-cifar10", adamw=98.0, dog=99.0)})
    assert {row[0]: row[-1] for row in faultless.rows}["AdamW, constant"] == "inf"  # DoG, averaged, has no error at all
    tuned = {
        "cifar10": runs(line(test=99.0), line(optimizer="adam", val=50.0, test=71.0), line(optimizer="dog", test=70.0))
    }
    assert study_tables.fixed(studies, tuned).rows[-1] == ["*best peer, tuned on each task*", "70.0", "—", "—", "—"]


def test_the_best_of_ours_beside_the_best_of_the_others():
    """Validation chooses; the test value decides who is first, unless it is within one standard error."""

    def of(ours, theirs):
        given = (("dfw", "smooth-hinge", 60.0, ours), ("adam", "ce", 62.0, theirs), ("sgd", "ce", 10.0, (99.0, 99.0)))
        return runs(
            *(
                line(optimizer=name, loss=loss, val=val, test=test, seed=seed)
                for name, loss, val, tests in given
                for seed, test in enumerate(tests, 1)
            )
        )

    studies = {"cifar10": of((71.0, 73.0), (70.0, 70.2)), "cifar100": of((70.0, 72.0), (71.5, 71.7)), "snli": []}
    table = study_tables.tuned(studies)
    assert table.rows == [
        ["CIFAR-10", "DFW", "72.0 ± 1.4", "Adam", "70.1 ± 0.1", "first"],
        ["CIFAR-100", "DFW", "71.0 ± 1.4", "Adam", "71.6 ± 0.1", "level"],
        ["*first or level*", "", "", "", "", "2 of 2"],
    ]
    behind = study_tables.tuned({"cifar10": of((60.0, 60.0), (61.0, 61.0))})
    assert [row[-1] for row in behind.rows] == ["behind", "0 of 1"]


def test_what_was_not_measured_is_not_drawn():
    """The structured tasks measure neither the training score nor the step-size."""
    blank = line("camvid", metric="diagonal", dataset="camvid")
    for point in blank["curve"]:
        point |= {"train_accuracy": None, "step_size": None}
    assert list(gallery.drawings({"camvid": runs(blank)})) == ["figure-1"]


def test_the_page_opens_with_one_setting_for_all_tasks():
    fixed = {"metric": "diagonal", "average": "0.995"}
    results = {
        "fixed-cifar10": runs(
            line("fixed-cifar10", test=58.0, **fixed), line("fixed-cifar10", optimizer="adamw", test=5)
        ),
        "cifar10": runs(line(test=58.0), line(optimizer="sgd", test=59.0)),
        "camvid": runs(
            line("camvid", dataset="camvid", test=58.0), line("camvid", dataset="camvid", optimizer="adam", test=1)
        ),
        "ablation-bike": runs(line("ablation-bike", averaged={"0.995": 1.0}, dataset="bike")),
    }
    text = page.render({"small": results}, "python -m experiments report")
    sections = re.findall('<section id="(.*?)">', text)
    assert sections[:4] == ["fixed", "tuned", "gamma", "idea"]
    assert not [name for name in sections if name.startswith(("fixed-", "ablation-"))]
    assert "1 of 2" in text
    assert "<i>first or level</i>" in text
    assert '<th scope="col">proxsvm is</th>' in text


def test_structured_runs_are_read_in_the_form_of_a_sweep(tmp_path):
    config = {"loss": "likelihood", "how": "diagonal", "eta": 0.001, "epochs": 1, "seed": 1}
    trace = [{"epoch": 1, "weights": "last", "val": 90.0}, {"epoch": 1, "weights": "average", "val": 92.0}]
    tested = {"config": config, "seconds": 1.0, "trace": trace, "test_last": 80.0, "test_average": 81.0}
    peer = tested | {"config": config | {"how": "AdamW"}, "test_average": 82.0}
    tried = {"config": config | {"seed": 0, "eta": 1.0}, "seconds": 1.0, "trace": trace}
    (tmp_path / "ocr-large.jsonl").write_text("\n".join(map(json.dumps, (tested, peer, tried))))
    studies = read_structured(tmp_path)
    ours = "proxsvm, diagonal + average, likelihood"
    row = ["OCR letters, large", ours, "81.0", "AdamW, constant + average", "82.0", "behind"]
    assert study_tables.tuned(studies).rows[0] == row
    (tmp_path / "chunking.jsonl").write_text(json.dumps({"config": config}))
    with pytest.raises(ValueError, match=r"chunking.jsonl, line 1: not a finished run: 'trace' is missing"):
        read_structured(tmp_path)


def test_two_settings_of_one_method_are_two_rows():
    prox = {"study": "fixed-lm", "optimizer": "dfw", "loss": "ce", "metric": "diagonal", "average": "0.995"}
    mine = runs(
        *(line(**prox, dataset="lm", lr=lr, momentum=mu, test=v) for lr, mu, v in ((0.01, 0.0, 1.5), (0.001, 0.9, 1.4)))
    )
    assert [row[:2] for row in study_tables.fixed({"fixed-lm": mine}).rows] == [
        ["proxsvm, diagonal, η = 0.001, momentum 0.9", "1.400"],
        ["proxsvm, diagonal, η = 0.01, no momentum", "1.500"],
    ]


def test_what_gamma_is_worth():
    options = {"study": "ablation-cifar10", "dataset": "cifar10", "loss": "ce", "averaged": {"0.995": 62.0}}
    lines = [line(optimizer=name, lr=0.1, val=v, **options) for name, v in (("dfw", 60.0), ("dfw-full", 10.0))]
    lines[0]["curve"][-1]["gamma"] = 0.25
    studies = {"ablation-cifar10": runs(*lines)}
    assert study_tables.ablation(studies).rows == [
        ["CIFAR-10", "cross-entropy", "Euclidean, 0.9", "0.1", "0.25", "60.0", "10.0", "—", "62.0", "62.0", "—"]
    ]
    drawn = gallery.drawings(studies)
    assert list(drawn) == ["figure-1", "gamma"]
    texts = [text.get_text() for ax in drawn["gamma"].draw().axes for text in ax.texts]
    assert texts == ["0.25"]


def test_nats_are_to_be_small_and_metrics_are_methods():
    options = {"study": "lm", "optimizer": "dfw", "loss": "ce"}
    found = choose(
        runs(
            line(**options, val=1.5, lr=0.1),
            line(**options, val=1.4, lr=1.0),
            line(**options, val=1.3, lr=0.01, metric="diagonal"),
            line(**options, val=1.6, lr="auto", metric="diagonal"),
        )
    )
    assert [(names.optimizer(c.method), round(c.val.mean, 6)) for c in found] == [
        ("DFW", 1.4),
        ("proxsvm, diagonal", 1.3),
        ("proxsvm, diagonal, η = auto", 1.6),
    ]
    assert found[0].runs[0].unit == "nats per character"


def test_studies_stand_side_by_side():
    both = runs(
        line(averaged={"0.9": 70.0}, test=61.0, test_averaged={"0.9": 71.0}),
        line(optimizer="adam", loss="ce", test=65.0),
    )
    table = study_tables.beside({"cifar10": both, "cifar100": runs(line("cifar100", test=20.0))})
    assert table.header == ["", "CIFAR-10", "averaged", "CIFAR-100", "averaged"]
    assert table.rows == [["DFW", "61.0", "71.0", "20.0", "—"]]  # the other has no Adam
    text = "<!-- beside cifar10 cifar10 -->\n<!-- end -->"
    assert "| DFW | 61.0 | 71.0 |" in page.filled(text, {"cifar10": both})
    with pytest.raises(SystemExit, match="no results of a study named 'mnist'"):
        page.filled(text.replace("cifar10 -->", "mnist -->"), {"cifar10": both})


@pytest.mark.parametrize(
    ("file", "kind"), [("docs/reproduction.md", "study"), ("README.md", "ranks"), ("docs/index.md", "ranks")]
)
def test_the_docs_show_what_the_results_say(file, kind):
    root = Path(__file__).parents[2]
    text = (root / file).read_text(encoding="utf-8")
    assert f"<!-- {kind} " in text
    results = root / "experiments" / "results"
    assert page.filled(text, read(results / "small") | read_structured(results / "tuned")) == text


def test_gamma_at_the_first_and_the_last_epoch():
    prox = {"study": "fixed-lm", "optimizer": "dfw", "loss": "ce", "metric": "diagonal", "dataset": "lm", "lr": "auto"}
    lines = [line(**prox, seed=1), line(**prox, seed=2), line(**{**prox, "optimizer": "adamw"})]
    for made, (first, last) in zip(lines, ((1.0, 0.5), (0.8, 0.25), (0.0, 0.0)), strict=True):
        made["curve"] = [{**made["curve"][0], "gamma": first}, {**made["curve"][-1], "gamma": last}]
    table = study_tables.gammas({"fixed-lm": runs(*lines)})
    assert table.header == ["", "Language model"]
    assert table.rows == [["η = auto", "0.90, 0.38"]]
