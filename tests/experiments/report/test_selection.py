"""The choice on validation."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest

from experiments.report import names, selection, study_tables, table
from experiments.report.results import read
from experiments.report.selection import Spread, candidates, choose
from tests.experiments.report.lines import line, runs


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


@pytest.mark.parametrize(
    "study",
    ["california", "bike", "lm", "cifar10", "cifar10-augmented", "cifar100", "cifar100-augmented", "snli"],
)
def test_no_best_eta_of_the_committed_results_is_at_an_end_of_its_grid(study):
    root = Path(__file__).parents[3] / "experiments" / "results" / "small"
    grids = defaultdict(dict)
    for run in read(root)[study]:
        if not run.config["test"]:
            for average in (None, *run.curve[0].val_averaged):
                value = run.best(average) * (-1 if run.lower_is_better else 1)
                grids[run.method, run.config["momentum"], average][run.config["lr"]] = value
    grids = [grid for grid in grids.values() if len(grid) > 1]  # Prodigy and DoG have one setting for all tasks
    assert len(grids) > 9
    for grid in grids:
        best = max(grid, key=lambda eta: -math.inf if math.isnan(grid[eta]) else grid[eta])
        assert min(grid) < best < max(grid)
