"""The figures."""

from __future__ import annotations

import argparse
import struct

import numpy as np
import pytest

from experiments.report import gallery, style
from experiments.report.approximation import approximation
from tests.experiments.report.lines import line, runs, write


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


def test_what_was_not_measured_is_not_drawn():
    """The structured tasks measure neither the training score nor the step-size."""
    blank = line("camvid", metric="diagonal", dataset="camvid")
    for point in blank["curve"]:
        point |= {"train_accuracy": None, "step_size": None}
    assert list(gallery.drawings({"camvid": runs(blank)})) == ["figure-1"]


@pytest.mark.parametrize(("error", "marker"), [(9.0, None), (11.0, "x"), (float("inf"), "x")])
def test_an_error_above_ten_times_the_lowest_is_at_the_top(error, marker):
    """One such value would take the whole scale."""
    tried = [
        line("ablation-lm", name, 0.1, dataset="lm", loss="ce", averaged={"0.995": value})
        for name, value in (("dfw-full", error), ("dfw", 1.0))
    ]
    tried[1]["curve"][-1]["gamma"] = 0.5
    ax = gallery.drawings({"ablation-lm": runs(*tried)})["gamma"].draw().axes[0]
    assert [drawn.get_marker() for drawn in ax.lines] == (["o", "o"] if marker is None else ["o", "o", marker])
    assert np.isfinite(ax.lines[1].get_ydata()) == (marker is None)
