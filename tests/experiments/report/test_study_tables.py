"""The tables of the studies, and the paper's beside them."""

from __future__ import annotations

import doctest

import pytest

from experiments import published
from experiments.report import gallery, names, page, paper_tables, selection, study_tables, table
from tests.experiments.report.lines import line, runs


@pytest.mark.parametrize("module", [names, selection, table])
def test_the_examples_in_the_docstrings_hold(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


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


def test_two_settings_of_one_method_are_two_rows():
    prox = {"study": "fixed-lm", "optimizer": "dfw", "loss": "ce", "metric": "diagonal", "average": "0.995"}
    mine = runs(
        *(line(**prox, dataset="lm", lr=lr, momentum=mu, test=v) for lr, mu, v in ((0.01, 0.0, 1.5), (0.001, 0.9, 1.4)))
    )
    assert [row[:2] for row in study_tables.fixed({"fixed-lm": mine}).rows] == [
        ["proxsvm, diagonal, η = 0.001, momentum 0.9", "1.400"],
        ["proxsvm, diagonal, η = 0.01, no momentum", "1.500"],
    ]


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


def test_gamma_at_the_first_and_the_last_epoch():
    prox = {"study": "fixed-lm", "optimizer": "dfw", "loss": "ce", "metric": "diagonal", "dataset": "lm", "lr": "auto"}
    lines = [line(**prox, seed=1), line(**prox, seed=2), line(**{**prox, "optimizer": "adamw"})]
    for made, (first, last) in zip(lines, ((1.0, 0.5), (0.8, 0.25), (0.0, 0.0)), strict=True):
        made["curve"] = [{**made["curve"][0], "gamma": first}, {**made["curve"][-1], "gamma": last}]
    table = study_tables.gammas({"fixed-lm": runs(*lines)})
    assert table.header == ["", "Language model"]
    assert table.rows == [["η = auto", "0.90, 0.38"]]


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
