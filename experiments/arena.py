"""A public arena that nobody here chose: California housing of "Benchmarking Optimizers for Tabular MLPs" (2604.15297).

    python -m experiments.arena --data DIR --seeds 0 1 2 3 4       # some minutes per seed on one core; resumable

Their protocol (github.com/yandex-research/tabular-dl-optimizers): scikit-learn's features, a fifth of the rows for the
test and a fifth of the rest for validation, quantiles of a normal distribution, an MLP with dropout, the squared error
of the standardised target, batches of 256, until 16 epochs bring no better validation error. They tune network and
optimizer together; ours takes the network that they chose for Muon. "published AdamW" is their own setting, to check
that the protocol is theirs.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import QuantileTransformer
from torch import Tensor, nn
from tqdm import tqdm

from experiments.tabular import CALIFORNIA, mlp, read
from proxsvm import ProxOptimizer
from proxsvm.losses import SquaredError
from proxsvm.metrics import Diagonal
from proxsvm.optimizer import no_decay
from proxsvm.solvers import SingleStepFW

RESULTS = Path("experiments/results/arena.jsonl")
BATCH, PATIENCE = 256, 16
NETWORKS = {"AdamW": (784, 2, 0.3690073279296028), "Muon": (208, 5, 0.2396316883730869)}  # width, blocks, dropout
ROWS = {  # the network that it takes, and what is set
    "published AdamW": ("AdamW", {"lr": 0.0002722214565241805, "weight_decay": 0.4555843429087667}),
    "nothing set": ("Muon", {}),
    "weight_decay=0.3": ("Muon", {"weight_decay": 0.3}),
    "Diagonal()": ("Muon", {"metric": Diagonal()}),
    "Diagonal(), weight_decay=0.3": ("Muon", {"metric": Diagonal(), "weight_decay": 0.3}),
}


def load(data: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], float]:
    """Features and standardised targets of each part, and the deviation of the target in units of 100,000 dollars."""
    rows = read(data / "cal_housing.data", CALIFORNIA, "california")
    columns = ["median_income", "housing_median_age", "AveRooms", "AveBedrms", "population", "AveOccup"]
    for name, counts in {"AveRooms": "total_rooms", "AveBedrms": "total_bedrooms", "AveOccup": "population"}.items():
        rows[name] = rows[counts] / rows["households"]
    x = rows[[*columns, "latitude", "longitude"]].to_numpy(np.float32)
    y = (rows["median_house_value"] / 1e5).to_numpy(np.float32)
    rest, test = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
    train, val = train_test_split(rest, test_size=0.2, random_state=1)
    count = max(min(len(train) // 30, 1000), 10)
    quantiles = QuantileTransformer(n_quantiles=count, output_distribution="normal", subsample=None, random_state=0)
    noise = np.random.RandomState(0).normal(0.0, 1e-5, (len(train), x.shape[1])).astype(np.float32)
    quantiles.fit(x[train] + noise)
    mean, deviation = float(y[train].mean()), float(y[train].std())
    features = torch.from_numpy(quantiles.transform(x).astype(np.float32))
    target = torch.from_numpy((y - mean) / deviation)[:, None]
    parts = {"train": train, "val": val, "test": test}
    return {name: (features[at], target[at]) for name, at in parts.items()}, deviation


def run(
    name: str, seed: int, data: dict[str, tuple[Tensor, Tensor]], scale: float, most: int = 10**6
) -> dict[str, Any]:
    """The errors of the epoch with the best validation error; root mean squares, in units of 100,000 dollars."""
    torch.manual_seed(seed)
    (x, y), criterion, began = data["train"], SquaredError(), time.perf_counter()
    model = mlp(x.shape[1], *NETWORKS[ROWS[name][0]])
    make: Any = torch.optim.AdamW
    if name != "published AdamW":
        make = partial(ProxOptimizer, criterion, SingleStepFW(), follow=model)
    optimizer = make(no_decay(model), **ROWS[name][1])  # biases do not decay
    order = torch.Generator().manual_seed(seed)
    best: dict[str, Any] = {"val": float("inf"), "epoch": 0}
    bar = tqdm(desc=f"{name}, seed {seed}", unit="epoch", disable=None)
    for epoch in range(1, most + 1):
        model.train()
        for at in torch.randperm(len(x), generator=order).split(BATCH):
            optimizer.zero_grad()
            criterion(model(x[at]), y[at]).backward()
            if not isinstance(optimizer, ProxOptimizer):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            parts = {part: model(data[part][0]) - data[part][1] for part in ("val", "test")}
            errors = {part: scale * float(found.square().mean().sqrt()) for part, found in parts.items()}
        bar.update()
        if errors["val"] < best["val"]:
            best = {**errors, "epoch": epoch}
        if epoch - best["epoch"] >= PATIENCE:
            break
    bar.close()
    return {"optimizer": name, "network": ROWS[name][0], "seed": seed, **best, "seconds": time.perf_counter() - began}


def table(results: list[dict[str, Any]]) -> str:
    """Mean ± sample standard deviation of the test error."""
    groups = DataFrame(results).groupby(["optimizer", "network"], sort=False)
    rows = ["| optimizer | network of | test error (RMSE) | best epoch | seeds |", "|---|---|---|---|---|"]
    for (name, of), g in groups:
        rows.append(f"| {name} | {of} | {g.test.mean():.4f} ± {g.test.std():.4f} | {g.epoch.mean():.0f} | {len(g)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder with cal_housing.data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), help="these rows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="runs that it contains are not repeated")
    args = parser.parse_args()
    data, scale = load(args.data)
    known = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    for seed in args.seeds:
        for name in args.only:
            if not any((done["optimizer"], done["seed"]) == (name, seed) for done in known):
                known.append(run(name, seed, data, scale))
                with args.results.open("a") as file:
                    file.write(json.dumps(known[-1]) + "\n")
    print(table(known))


if __name__ == "__main__":
    main()
