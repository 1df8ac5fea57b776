"""The demo runs end to end, on fewer epochs."""

from __future__ import annotations

import sys

import torch

from experiments import demo


def test_the_demo_trains_verifies_and_draws(tmp_path, monkeypatch, capsys):
    torch.set_default_dtype(torch.float32)
    picture = tmp_path / "demo.png"
    monkeypatch.setattr(sys, "argv", ["demo", "--epochs", "4", "--out", str(picture)])
    demo.main()
    out = capsys.readouterr().out
    assert picture.stat().st_size > 10_000
    assert all(name in out for name in demo.COLORS)
    assert out.count("verdict") == 6
    assert out.rstrip().endswith("optimal")  # the cross-entropy in the diagonal metric
    assert "VIOLATED" not in out
