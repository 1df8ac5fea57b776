"""The demo on a small scale: what its picture claims must hold there, too."""

import sys
from functools import cache

import pytest

from experiments import demo


def test_structure_reads_whole_words_that_the_same_network_alone_does_not():
    _, read = demo.read_words(count=500, epochs=3)
    alone, structured = (demo.percent((read[name] == read["truth"]).all(1)) for name in ("without", "with"))
    assert structured > 5 * alone + 10


live_step = cache(demo.live_step)


def test_the_live_step_is_verified():
    solved, single, trace = live_step()
    assert solved.optimal
    assert solved.relative_gap <= 1e-8
    assert single.ok
    assert single.dual < single.exact < single.primal
    assert trace[1].primal == pytest.approx(single.primal)
    assert trace[1].dual == pytest.approx(single.dual)
    assert all(state.dual <= solved.exact + 1e-10 and solved.exact <= state.primal + 1e-10 for state in trace)


def test_the_demo_prints_its_tables_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "ETAS", [0.1, 1000.0])
    monkeypatch.setattr(demo, "live_step", live_step)
    picture = tmp_path / "demo.png"
    monkeypatch.setattr(sys, "argv", ["demo", "--seeds", "1", "--epochs", "2", "--words", "200", "--out", str(picture)])
    demo.main()
    out = capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000
    rows = [line.rsplit(maxsplit=3) for line in out.splitlines()]  # name, both accuracies, passes
    at_1000 = {row[0]: float(row[2]) for row in rows if row and row[0] in demo.METHODS}
    assert len(at_1000) == 5
    assert max(at_1000.pop("SGD"), at_1000.pop("Adam")) < 50 < 85 < min(at_1000.values())
    assert "verdict          optimal" in out
    assert "VIOLATED" not in out
    assert "False" not in out
