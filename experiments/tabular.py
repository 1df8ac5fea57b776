"""California housing and bike sharing as ℓ1 regression: the official files, standardised, and an MLP."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CALIFORNIA = [  # the columns of the files, the target last
    *("longitude", "latitude", "housing_median_age", "total_rooms", "total_bedrooms", "population", "households"),
    *("median_income", "median_house_value"),
]
BIKE = [
    *("instant", "dteday", "season", "yr", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit"),
    *("temp", "atemp", "hum", "windspeed", "casual", "registered", "cnt"),
]
HOW = {
    "california": "Get cal_housing.tgz of Luís Torgo's regression data sets, unpack cal_housing.data",
    "bike": "Get https://archive.ics.uci.edu/static/public/275/bike+sharing+dataset.zip, unpack hour.csv",
}


@dataclass(frozen=True)
class Table:
    """Features ``x [n, d]`` and target ``y [n, 1]`` in float32; the target's own unit is ``centre + scale · y``.

    The mean absolute error in that unit is ``scale`` times the one of y.
    """

    x: Tensor
    y: Tensor
    centre: float
    scale: float

    def __len__(self) -> int:
        return len(self.y)


def california(data: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """8 features, the four counts as logarithms; the target is the median house value in dollars."""
    rows = _read(data / "cal_housing.data", CALIFORNIA, "california", header=False)
    columns = {name: rows[:, k].astype(np.float64) for k, name in enumerate(CALIFORNIA)}
    counts = ("total_rooms", "total_bedrooms", "population", "households")
    x = np.stack([np.log(columns[n]) if n in counts else columns[n] for n in CALIFORNIA[:-1]], 1)
    return x, columns["median_house_value"], x.shape[1]


def bike(data: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """7 numbers, then season, month, hour, weekday and weather one-hot; the target is the hour's count of rentals.

    ``casual`` and ``registered`` add up to the target, so they are not features; nor are the row number and the date.
    """
    rows = _read(data / "hour.csv", BIKE, "bike", header=True)
    columns = {name: rows[:, k] for k, name in enumerate(BIKE)}
    names = ("yr", "holiday", "workingday", "temp", "atemp", "hum", "windspeed")
    numbers = np.stack([columns[name].astype(np.float64) for name in names], 1)
    levels = {"season": (1, 4), "mnth": (1, 12), "hr": (0, 23), "weekday": (0, 6), "weathersit": (1, 4)}
    one_hot = [columns[name].astype(int)[:, None] == np.arange(low, high + 1) for name, (low, high) in levels.items()]
    return np.concatenate([numbers, *one_hot], 1), columns["cnt"].astype(np.float64), len(names)


READERS = {"california": california, "bike": bike}


def load(data: Path, name: str, seed: int = 0) -> tuple[Table, Table, Table]:
    """Training, validation and test rows: 70, 15 and 15 %, drawn by ``seed``.

    Numbers are standardised by the training rows' mean and deviation; one-hot columns are 0 or 1. The target is
    (y − median) / (mean of |y − median|) of the training rows, so predicting the median has a training loss of 1.
    Bike's rows are hours of two years: neighbours fall on both sides of a random split, as is usual for this set, so
    its error measures interpolation, not a forecast.
    """
    if name not in READERS:
        raise ValueError(f"no data set named {name!r}; there are {', '.join(READERS)}")
    x, y, numbers = READERS[name](data)
    order = np.random.default_rng(seed).permutation(len(y))
    train, val, test = np.split(order, [int(0.7 * len(y)), int(0.85 * len(y))])
    mean, std = x[train, :numbers].mean(0), x[train, :numbers].std(0)
    x[:, :numbers] = (x[:, :numbers] - mean) / np.where(std > 0, std, 1)
    centre = float(np.median(y[train]))
    scale = float(np.abs(y[train] - centre).mean()) or 1.0

    def part(rows: np.ndarray) -> Table:
        features, target = (torch.from_numpy(a[rows].astype(np.float32)) for a in (x, (y[:, None] - centre) / scale))
        return Table(features, target, centre, scale)

    return part(train), part(val), part(test)


def mlp(inputs: int, width: int = 128, depth: int = 2) -> nn.Sequential:
    """``depth`` hidden ReLU layers of ``width`` units, and one output.

    >>> mlp(8)(torch.zeros(2, 8)).shape
    torch.Size([2, 1])
    """
    sizes = [inputs] + [width] * depth
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))


def _read(file: Path, names: list[str], name: str, *, header: bool) -> np.ndarray:
    """The cells of a comma-separated file as text, ``[rows, len(names)]``."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing. {HOW[name]}, and pass its folder: --data DIR")
    lines = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if header and lines and lines.pop(0) != names:
        raise ValueError(f"{file} has another first line; expected {','.join(names)}. {HOW[name]}")
    for number, cells in enumerate(lines, 1 + header):
        if len(cells) != len(names):
            raise ValueError(
                f"{file}, line {number} has {len(cells)} cells; expected {len(names)}: is it whole? {HOW[name]}"
            )
    if not lines:
        raise ValueError(f"{file} has no rows: is it whole? {HOW[name]}")
    return np.array(lines)
