"""``python -m benchmarks gpu``: says so where there is no GPU; its parts run on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import gpu, launches
from benchmarks.common import Options

SHAPES = [(4, 3), (5,)]


@pytest.fixture(autouse=True)
def float32(float64):
    torch.set_default_dtype(torch.float32)


def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main(Options(True, tmp_path / "out", Path("none"), 1))
    assert "no GPU here" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_kernels_agree():
    assert all(row["largest difference"] < 1e-5 for row in gpu.agreement("cpu", SHAPES))


def test_every_optimizer_takes_its_step():
    rows = gpu.step_rows("cpu", {"small": SHAPES}, repeats=1)
    assert len(rows) == 4 + len(gpu.OURS)
    assert all(row["ms"] > 0 and math.isnan(row["MB"]) for row in rows)


def test_every_criterion_is_timed():
    assert len(gpu.criterion_rows("cpu", [(4, 3)], repeats=1)) == 4


def test_every_training_step_is_timed():
    rows = gpu.training_rows("cpu", lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), n=2, repeats=1)
    assert {row["how"] for row in rows} == {"eager"}
    assert len(rows) == 4 + len(gpu.OURS)


def test_ddp_is_timed():
    assert [row["ranks"] for row in gpu.ddp_rows("gloo", world=2, n=2, repeats=1)] == [2, 2]


# The launches.


def test_ours_waits_for_nothing_and_the_number_of_tensors_does_not_matter():
    for make in launches.OURS.values():
        few, many = (launches.count(make, SHAPES * k, "cuda") for k in (1, 30))
        assert few.names == many.names
        assert not few.waits


def test_peers_launch_more_the_more_tensors_there_are_or_wait():
    pytest.importorskip("momo")
    for name in ("MoMo", "Prodigy"):
        few, many = (launches.count(launches.PEERS[name], SHAPES * k, "cpu") for k in (1, 30))
        assert len(many.names) > 10 * len(few.names)
        assert many.waits
