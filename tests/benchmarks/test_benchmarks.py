"""The benchmarks' own parts: timing in turn, tables, interrupted runs, objectives; and what needs no clock."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pandas import DataFrame

from benchmarks import calls
from benchmarks.__main__ import FILES, NAMES
from benchmarks.common import Options, interleaved, kept, ratio, table, write
from benchmarks.compare import compare, run_in_turn
from benchmarks.linear import THEIRS, Case
from benchmarks.step import TORCHS, networks, peers, update, whole

ROOT = Path(__file__).parents[2]


def test_runs_are_timed_in_turn():
    order: list[str] = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, inner=2, warm_up=1)
    assert order == ["a", "a", "b", "b"] * 4
    assert len(times["a"].times) == 3
    assert ratio(times, "a", "a") == 1.0


def test_a_result_is_a_table_and_a_file(tmp_path, capsys):
    rows = [{"x": 1, "y": 0.123456}]
    assert table(DataFrame(rows)).splitlines()[-1].split() == ["|", "1", "|", "0.123", "|"]
    write(Options(out=tmp_path), "trial", rows, "A note.")
    assert json.loads((tmp_path / "trial.json").read_text())["rows"] == rows
    assert "A note." in capsys.readouterr().out


def test_what_was_measured_is_not_measured_again(tmp_path):
    file = tmp_path / "out" / "parts.json"
    assert kept(file, "a", lambda: {"ms": 1.0}) == {"ms": 1.0}
    assert kept(file, "b", lambda: {"ms": 2.0}) == {"ms": 2.0}
    assert kept(file, "a", lambda: pytest.fail("measured again")) == {"ms": 1.0}


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_a_function(name):
    file = importlib.import_module(f"benchmarks.{FILES.get(name, name)}")
    assert callable(getattr(file, name if name in FILES else "main"))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", THEIRS)
def test_the_objective_is_that_of_our_estimators_and_of_scikit_learns(loss, classes):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4))
    y = rng.standard_normal(60) if "insensitive" in loss else np.arange(60) % classes
    case = Case("", X, y, loss, C=0.1)
    model = case.fit("ours", 1e-6)
    if loss != "weston_watkins":
        assert case.objective(model.coef_) == pytest.approx(model.objective_)
    for name in THEIRS[loss]:
        assert case.objective(case.fit(name, 1e-6).coef_) == pytest.approx(model.objective_, rel=1e-4)


def test_calls_that_grow_with_the_tensors_are_seen():
    pytest.importorskip("prodigyopt", reason="the extra 'peers' is not installed")
    few, many = (calls.count(update(peers()["Prodigy"], [(8, 8), (8,)] * n)) for n in (5, 100))
    assert len(many.names) > 10 * len(few.names)
    assert many.waits


def test_a_training_step_trains():
    torch.set_default_dtype(torch.float32)
    model = torch.nn.Linear(512, 10)
    before = model.weight.clone()
    _, x, y = networks(1)["MLP 4 × 512, batch 128"]
    whole((lambda: model, x, y), TORCHS["AdamW fused"], average=True)()
    assert not torch.equal(model.weight, before)


def test_two_folders_of_runs_are_compared_by_their_medians(tmp_path):
    for label, seconds in {"before": (1.0, 9.0, 2.0), "after": (1.0, 1.0, 3.0)}.items():
        for round, value in enumerate(seconds):
            rows = [{"of": "a", "seconds": value}, {"of": "b", "seconds": 0.0}]
            (tmp_path / label / str(round)).mkdir(parents=True)
            (tmp_path / label / str(round) / "trial.json").write_text(json.dumps({"rows": rows}))
    (row,) = compare(tmp_path / "before", tmp_path / "after").to_dict("records")
    assert row == {"bench": "trial", "of": "a", "what": "seconds", "before": 2.0, "after": 1.0, "ratio": 0.5}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a checkout of git is needed")
def test_another_commit_is_benchmarked_in_turn_with_this_tree(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run_in_turn("HEAD", 1, tmp_path, ["calls", "--quick"])
    found = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("calls.json")}
    assert found == {"before", "after"}
    assert not (tmp_path / "tree").exists()
