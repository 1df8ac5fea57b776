"""The benchmarks' own parts: timing in turn, tables, and data of the right shape."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.__main__ import NAMES
from benchmarks.common import Options, fashion_mnist, interleaved, table, text_like, write


def test_runs_are_timed_in_turn():
    order: list[str] = []
    seconds = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 3
    assert set(seconds) == {"a", "b"}


def test_a_result_is_a_table_and_a_file(tmp_path, capsys):
    rows = [{"x": 1, "y": 0.123456}]
    assert table(rows).splitlines()[-1] == "| 1 | 0.123 |"
    write(Options(True, tmp_path, Path("none"), 1), "trial", rows, "A note.")
    assert json.loads((tmp_path / "trial.json").read_text())["rows"] == rows
    assert "A note." in capsys.readouterr().out


def test_every_benchmark_is_a_file():
    folder = Path(__file__).parents[2] / "benchmarks"
    assert all((folder / f"{name}.py").exists() for name in NAMES)


def test_missing_images_are_made_up_and_said_so(tmp_path):
    x, y, name = fashion_mnist(tmp_path, 50)
    assert x.shape == (50, 784)
    assert len(y) == 50
    assert "MADE-UP" in name


def test_text_like_rows_are_sparse_and_of_unit_length():
    x, y = text_like(60)
    assert x.nnz < 60 * 81
    np.testing.assert_allclose(np.sqrt(x.multiply(x).sum(1)), 1.0)
    assert len(y) == 60
