"""California housing and bike sharing: official files round-trip, splits, units."""

import numpy as np
import pytest
import torch

from experiments import tabular
from tests.experiments.conftest import write_housing


@pytest.fixture
def data(tmp_path):
    """Both sets in the official format, 200 rows each."""
    rng = np.random.default_rng(0)
    house = [rng.uniform(-120, -110, (200, 2)), rng.uniform(1, 50, (200, 6)), np.arange(200)[:, None]]
    write_housing(tmp_path, np.concatenate(house, 1))
    rows = []
    for k in range(200):
        casual, registered = k % 7, k % 11
        level = [k % 4 + 1, k % 2, k % 12 + 1, k % 24, 0, k % 7, 1, k % 4 + 1]
        numbers = [*rng.uniform(0, 1, 4).round(4), casual, registered, casual + registered]
        rows.append(",".join(map(str, [k + 1, "2011-01-01", *level, *numbers])))
    (tmp_path / "hour.csv").write_text("\n".join([",".join(tabular.BIKE), *rows]) + "\n")
    return tmp_path


@pytest.mark.parametrize(("name", "features", "numbers"), [("california", 8, 8), ("bike", 58, 7)])
def test_splits_and_units(data, name, features, numbers):
    parts, centre, scale = tabular.load(data, name, seed=0)
    assert [len(part) for part in parts] == [140, 30, 30]
    x, y = parts[0].tensors
    assert x.shape == (140, features)
    assert y.shape == (140, 1)
    assert x[:, :numbers].mean(0).abs().max() < 1e-5
    std = x[:, :numbers].std(0, correction=0)
    assert torch.all((std - 1).abs().lt(1e-5) | (std == 0))  # a constant column is 0
    assert y.abs().mean() == pytest.approx(1)
    assert y.median().abs() < 0.05
    back = torch.cat([part.tensors[1] for part in parts]) * scale + centre
    truth = range(200) if name == "california" else [k % 7 + k % 11 for k in range(200)]
    torch.testing.assert_close(back.flatten().sort().values, torch.tensor(sorted(truth), dtype=torch.float32))
    again, other = (tabular.load(data, name, seed=seed)[0][0].tensors for seed in (0, 1))
    assert torch.equal(again[0], x)
    assert not torch.equal(other[1], y)


def test_bike_does_not_see_the_parts_of_its_target(data):
    before = tabular.load(data, "bike")[0][0].tensors[0]
    file = data / "hour.csv"
    head, *rows = file.read_text().splitlines()
    cells = [row.split(",") for row in rows]
    moved = [[*row[:14], "0", "0", row[16]] for row in cells]
    file.write_text("\n".join([head, *(",".join(row) for row in moved)]))
    assert torch.equal(tabular.load(data, "bike")[0][0].tensors[0], before)
    levels = before[:, 7:].split([4, 12, 24, 7, 4], 1)
    assert all(torch.equal(part.sum(1), torch.ones(140)) for part in levels)


def test_missing_and_broken_files_are_named(data, tmp_path):
    with pytest.raises(ValueError, match="there are california, bike"):
        tabular.load(data, "boston")
    empty = tmp_path / "empty"
    empty.mkdir()
    for file, name in (("cal_housing.data", "california"), ("hour.csv", "bike")):
        with pytest.raises(FileNotFoundError, match=f"{file} is missing. python -m experiments download {name}"):
            tabular.load(empty, name)
        whole = (data / file).read_text()
        for broken in (whole[:-30], "", "a,b\n1,2\n"):
            (data / file).write_text(broken)
            with pytest.raises(ValueError, match=rf"{file}.*python -m experiments download {name} gets it"):
                tabular.load(data, name)
