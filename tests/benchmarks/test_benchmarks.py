"""The benchmarks' own parts: timing in turn, tables, and data of the right shape."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import NAMES
from benchmarks.common import Options, fashion_mnist, interleaved, table, text_like, write
from benchmarks.compare import compare, run_in_turn

ROOT = Path(__file__).parents[2]


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
    assert "SYNTHETIC" in name


def test_text_like_rows_are_sparse_and_of_unit_length():
    x, y = text_like(60)
    assert x.nnz < 60 * 81
    np.testing.assert_allclose(np.sqrt(x.multiply(x).sum(1)), 1.0)
    assert len(y) == 60


def test_two_folders_of_runs_are_compared_by_their_medians(tmp_path):
    for label, seconds in {"before": (1.0, 9.0, 2.0), "after": (1.0, 1.0, 3.0)}.items():
        for round, value in enumerate(seconds):
            rows = [{"of": "a", "seconds": value}, {"of": "b", "seconds": 0.0}]
            (tmp_path / label / str(round)).mkdir(parents=True)
            (tmp_path / label / str(round) / "trial.json").write_text(json.dumps({"rows": rows}))
    (row,) = compare(tmp_path / "before", tmp_path / "after")
    assert row == {"bench": "trial", "of": "a", "what": "seconds", "before": 2.0, "after": 1.0, "ratio": 0.5}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a checkout of git is needed")
def test_another_commit_is_benchmarked_in_turn_with_this_tree(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run_in_turn("HEAD", ["launches"], 1, tmp_path, ["--quick"])
    found = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("launches.json")}
    assert found == {"before", "after"}
    assert not (tmp_path / "tree").exists()
