"""What the benchmarks share: interleaved timing, tables, pictures, data."""

from __future__ import annotations

import gzip
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW


@dataclass(frozen=True)
class Options:
    """``quick``: a smaller variant of the same; ``out``: where results go; ``fashion``: Debian's Fashion-MNIST."""

    quick: bool
    out: Path
    fashion: Path
    repeats: int


def interleaved(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each run, all taken in turn so that a noisy machine disturbs them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine() -> str:
    """What the numbers were measured on."""
    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {threads} thread"


def write(options: Options, name: str, rows: list[dict[str, Any]], note: str = "") -> None:
    """Print ``rows`` as a Markdown table and keep them as ``name.md`` and ``name.json``."""
    options.out.mkdir(parents=True, exist_ok=True)
    text = f"## {name}\n\n{note}\n\n{table(rows)}\n\n({machine()})\n"
    print(text)
    (options.out / f"{name}.md").write_text(text)
    (options.out / f"{name}.json").write_text(json.dumps({"note": note, "machine": machine(), "rows": rows}, indent=1))


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table of dictionaries with the same keys."""
    rows = list(rows)
    if not rows:
        return "(nothing)"
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_text(row[k]) for k in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def figure(options: Options, name: str, draw: Callable[[Any, Any], None], **layout: Any) -> None:
    """Let ``draw(figure, axes)`` draw, and keep it as ``name.png``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3})
    fig, axes = plt.subplots(layout="constrained", **layout)
    draw(fig, axes)
    options.out.mkdir(parents=True, exist_ok=True)
    fig.savefig(options.out / f"{name}.png", dpi=120)
    plt.close(fig)
    print(f"wrote {options.out / f'{name}.png'}")


# Data and networks.


def digits(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """scikit-learn's digits: 1,797 images of 8 × 8, in [0, 1]."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=dtype), torch.tensor(y)


def mlp(width: int = 64) -> nn.Module:
    """64-width-10."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def conv_net() -> nn.Module:
    """Two convolutions with batch norm, for 8 × 8 images."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def begun(
    steps: int = 20, n: int = 128, dtype: torch.dtype = torch.float32, width: int = 64
) -> tuple[nn.Module, Tensor, Tensor]:
    """The MLP after a few steps of training on digits, and a batch for the next step."""
    torch.manual_seed(0)
    x, y = digits(dtype)
    net, loss = mlp(width).to(dtype), MultiClassHinge()
    optimizer = ProxOptimizer(loss, SingleStepFW(), net.parameters(), lr=0.3)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        optimizer.step(lambda batch=batch: loss(net(x[batch]), y[batch]))
    batch = torch.randperm(len(x))[:n]
    return net, x[batch], y[batch]


def fashion_mnist(path: Path, n: int) -> tuple[np.ndarray, np.ndarray, str]:
    """n images of Fashion-MNIST as ``[n, 784]`` in [0, 1], or, where they are missing, made-up ones of that size."""
    images, labels = path / "train-images-idx3-ubyte.gz", path / "train-labels-idx1-ubyte.gz"
    if images.exists():
        x = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 784)[:n] / 255
        return (
            x,
            np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)[:n].astype(np.int64),
            "Fashion-MNIST",
        )
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=n)
    x = np.clip(rng.random((10, 784))[y] + 0.8 * rng.standard_normal((n, 784)), 0, 1)
    return x, y, "MADE-UP data of 784 features (Fashion-MNIST is missing: apt-get install dataset-fashion-mnist)"


def text_like(n: int, features: int = 30_000, words: int = 80, classes: int = 20) -> tuple[Any, np.ndarray]:
    """Documents as sparse rows of unit length: words drawn by Zipf's law, a few of them typical of the class."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    rng = np.random.default_rng(0)
    y = rng.integers(classes, size=n)
    common = np.minimum(rng.zipf(1.3, (n, words)) - 1, features - 1)
    topical = (y[:, None] * 997 + np.minimum(rng.zipf(1.2, (n, words)) - 1, 2000)) % features
    columns = np.where(rng.random((n, words)) < 0.15, topical, common)
    rows = np.repeat(np.arange(n), words)
    counts = sparse.csr_matrix((np.ones(n * words), (rows, columns.reshape(-1))), shape=(n, features))
    counts.sum_duplicates()
    idf = np.log(n / np.maximum(1, np.bincount(counts.indices, minlength=features)))
    return sparse.csr_matrix(normalize(counts.multiply(idf[None]).tocsr())), y
