"""California housing and bike sharing as ℓ1 regression: the official files, standardised, and an MLP."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from pandas import DataFrame, read_csv
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from experiments.config import known
from experiments.task import HINTS, damaged, need

CALIFORNIA, BIKE = (HINTS["columns"][name].split() for name in ("california", "bike"))  # the target last


def california(data: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """8 features, the four counts as logarithms; the target is the median house value in dollars."""
    rows = read(data / "cal_housing.data", CALIFORNIA, "california")
    counts = ["total_rooms", "total_bedrooms", "population", "households"]
    rows[counts] = np.log(rows[counts])
    return rows[CALIFORNIA[:-1]].to_numpy(float), rows["median_house_value"].to_numpy(float), 8


def bike(data: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """7 numbers, then season, month, hour, weekday and weather one-hot; the target is the hour's count of rentals.

    ``casual`` and ``registered`` add up to the target, so they are not features; nor are the row number and the date.
    """
    rows = read(data / "hour.csv", BIKE, "bike")
    names = ["yr", "holiday", "workingday", "temp", "atemp", "hum", "windspeed"]
    levels = {"season": (1, 4), "mnth": (1, 12), "hr": (0, 23), "weekday": (0, 6), "weathersit": (1, 4)}
    one_hot = [rows[name].to_numpy()[:, None] == np.arange(low, high + 1) for name, (low, high) in levels.items()]
    return np.concatenate([rows[names], *one_hot], 1), rows["cnt"].to_numpy(float), len(names)


READERS = {"california": california, "bike": bike}


def load(data: Path, name: str, seed: int = 0) -> tuple[list[TensorDataset], float, float]:
    """Training, validation and test rows: 70, 15 and 15 %, drawn by ``seed``; the centre and the scale of the target.

    Numbers are standardised by the training rows' mean and deviation; one-hot columns are 0 or 1. The target is
    (y − median) / (mean of |y − median|) of the training rows, so predicting the median has a training loss of 1.
    In its own unit it is ``centre + scale · y``, and the mean absolute error ``scale`` times the one of y.

    Bike's rows are hours of two years: neighbours fall on both sides of a random split, as is usual for this set, so
    its error measures interpolation, not a forecast.
    """
    x, y, numbers = READERS[known("data set", name, READERS)](data)
    order = np.random.default_rng(seed).permutation(len(y))
    train, val, test = np.split(order, [int(0.7 * len(y)), int(0.85 * len(y))])
    mean, std = x[train, :numbers].mean(0), x[train, :numbers].std(0)
    x[:, :numbers] = (x[:, :numbers] - mean) / np.where(std > 0, std, 1)
    centre = float(np.median(y[train]))
    scale = float(np.abs(y[train] - centre).mean()) or 1.0

    columns = [torch.from_numpy(a.astype(np.float32)) for a in (x, (y[:, None] - centre) / scale)]
    return [TensorDataset(*(column[rows] for column in columns)) for rows in (train, val, test)], centre, scale


def digits() -> tuple[Tensor, Tensor]:
    """1,797 images of 8 × 8, embedded in scikit-learn, in one random order: pixels ``[n, 64]`` from -1 to 1, labels."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images, dtype=torch.float32)[order] / 8 - 1, torch.tensor(labels)[order]


def mlp(inputs: int, width: int = 128, depth: int = 2, dropout: float = 0.0) -> nn.Sequential:
    """``depth`` hidden ReLU layers of ``width`` units, perhaps with dropout, and one output.

    >>> mlp(8)(torch.zeros(2, 8)).shape
    torch.Size([2, 1])
    """
    sizes = [inputs] + [width] * depth
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))


def read(file: Path, names: list[str], name: str) -> DataFrame:
    """The rows of a comma-separated file, with its header if it has one."""
    own = {"header": 0} if name == "bike" else {"names": names, "index_col": False}
    try:
        rows = read_csv(need(file, name), **own)
    except ValueError as error:
        raise damaged(file, name, f": {error}") from error
    if list(rows) != names or rows.empty or rows.isna().any(axis=None):
        raise damaged(file, name, f" has no rows, or others; expected {','.join(names)}")
    return rows
