"""The public arena: its split, its protocol, and its table."""

import numpy as np
import pytest
import torch

from experiments import arena
from tests.experiments.conftest import write_housing


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    write_housing(tmp_path, np.column_stack([rng.uniform(1, 9, (200, 8)), rng.uniform(1e5, 5e5, 200)]))
    return arena.load(tmp_path)


def test_split_and_scales_are_theirs(data):
    parts, deviation = data
    assert [len(parts[name][1]) for name in ("train", "val", "test")] == [128, 32, 40]
    x, y = parts["train"]
    assert x.shape[1] == 8
    assert x.median(0).values.abs().max() < 0.3  # quantiles of a normal distribution
    torch.testing.assert_close(y.std(correction=0), torch.tensor(1.0))
    assert 0 < deviation < 5  # in units of 100,000 dollars


@pytest.mark.parametrize("name", arena.ROWS)
def test_best_epoch_is_reported_and_patience_stops(name, data, monkeypatch):
    monkeypatch.setattr(arena, "NETWORKS", dict.fromkeys(arena.NETWORKS, (8, 1, 0.1)))
    monkeypatch.setattr(arena, "PATIENCE", 2)
    found = arena.run(name, 0, *data, most=6)
    assert 1 <= found["epoch"] <= 6
    assert 0 < found["val"] < 10 > found["test"] > 0
    assert f"| {name} | {arena.ROWS[name][0]} | {found['test']:.4f}" in arena.table([found, found])
