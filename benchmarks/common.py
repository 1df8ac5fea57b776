"""What the benchmarks share: interleaved timing, tables, pictures, data."""

from __future__ import annotations

import gzip
import json
import os
import platform
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
    """``quick``: a smaller variant of the same; ``out``: where results go; ``fashion``: Debian's Fashion-MNIST;
    ``data``: a folder with SNLI and CoNLL-2000."""

    quick: bool
    out: Path
    fashion: Path
    repeats: int
    data: Path = Path("data")


def interleaved(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each run, all measured in turn so that a noisy machine disturbs them equally."""
    return {name: median for name, (_, median, _) in spread(runs, repeats).items()}


def spread(
    runs: Mapping[str, Callable[[], Any]], repeats: int, inner: int = 1, warm_up: int = 0
) -> dict[str, tuple[float, float, float]]:
    """Quartiles of the seconds of each run (the mean of ``inner`` calls), all measured in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round in range(warm_up + repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            for _ in range(inner):
                run()
            if round >= warm_up:
                seconds[name].append((time.perf_counter() - began) / inner)
    return {name: tuple(np.quantile(values, [0.25, 0.5, 0.75]).tolist()) for name, values in seconds.items()}


def machine() -> str:
    """What the numbers were measured on."""
    chip = platform.processor() or platform.machine()
    return f"{chip}, {os.cpu_count()} cores, torch {torch.__version__}, threads: {torch.get_num_threads()}"


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
    steps: int = 20, n: int = 128, dtype: torch.dtype = torch.float32, width: int = 64, seed: int = 0
) -> tuple[nn.Module, Tensor, Tensor]:
    """The MLP after a few steps of training on digits, and a batch for the next step."""
    torch.manual_seed(seed)
    x, y = digits(dtype)
    net, loss = mlp(width).to(dtype), MultiClassHinge()
    optimizer = ProxOptimizer(loss, SingleStepFW(), net.parameters(), lr=0.3)
    for _ in range(steps):
        batch = torch.randint(len(x), (64,))
        optimizer.step(lambda batch=batch: loss(net(x[batch]), y[batch]))
    batch = torch.randperm(len(x))[:n]
    return net, x[batch], y[batch]


def fashion_mnist(path: Path, n: int) -> tuple[np.ndarray, np.ndarray, str]:
    """n images of Fashion-MNIST as ``[n, 784]`` in [0, 1], or, where they are missing, synthetic ones of that size."""
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
    return x, y, "SYNTHETIC data of 784 features (Fashion-MNIST is missing: apt-get install dataset-fashion-mnist)"


def text_like(
    n: int, features: int = 30_000, words: int = 80, classes: int = 20, seed: int = 0
) -> tuple[Any, np.ndarray]:
    """Documents as sparse rows of unit length: words drawn by Zipf's law, a few of them typical of the class."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    common = np.minimum(rng.zipf(1.3, (n, words)) - 1, features - 1)
    topical = (y[:, None] * 997 + np.minimum(rng.zipf(1.2, (n, words)) - 1, 2000)) % features
    columns = np.where(rng.random((n, words)) < 0.15, topical, common)
    rows = np.repeat(np.arange(n), words)
    counts = sparse.csr_matrix((np.ones(n * words), (rows, columns.reshape(-1))), shape=(n, features))
    counts.sum_duplicates()
    idf = np.log(n / np.maximum(1, np.bincount(counts.indices, minlength=features)))
    return sparse.csr_matrix(normalize(counts.multiply(idf[None]).tocsr())), y


def snli(path: Path, n: int) -> tuple[Any, np.ndarray] | None:
    """n labelled sentence pairs of SNLI's dev set: tf-idf of the premise's words and of the hypothesis' words and
    pairs of words, one of 3 labels. None where ``path/snli_1.0_dev.jsonl`` is missing."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    file = path / "snli_1.0_dev.jsonl"
    if not file.exists():
        return None
    pairs = [json.loads(line) for line in file.read_text().splitlines()]
    pairs = [pair for pair in pairs if pair["gold_label"] != "-"][:n]
    premise = TfidfVectorizer().fit_transform([pair["sentence1"] for pair in pairs])
    hypothesis = TfidfVectorizer(ngram_range=(1, 2)).fit_transform([pair["sentence2"] for pair in pairs])
    labels = np.unique([pair["gold_label"] for pair in pairs], return_inverse=True)[1]
    return sparse.hstack([premise, hypothesis], format="csr"), labels


def conll(path: Path, n: int) -> tuple[Any, np.ndarray] | None:
    """n words of CoNLL-2000: indicators of the word, its endings and its neighbours, one of its chunk tags. None where
    ``path/train.txt`` is missing."""
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.preprocessing import normalize

    file = path / "train.txt"
    if not file.exists():
        return None
    seen: list[dict[str, str]] = []
    tags: list[str] = []
    for sentence in file.read_text().split("\n\n"):
        lines = [line.split() for line in sentence.splitlines()]
        words = ["<s>", *(line[0].lower() for line in lines), "</s>"]
        for before, word, after, (_, _, tag) in zip(words, words[1:], words[2:], lines, strict=False):
            pair = {"pair": f"{before} {word}", "next": f"{word} {after}"}
            seen.append({"word": word, "before": before, "after": after, "end3": word[-3:], "end2": word[-2:], **pair})
            tags.append(tag)
        if len(tags) >= n:
            break
    X = normalize(DictVectorizer().fit_transform(seen[:n]).tocsr())
    return X, np.unique(tags[:n], return_inverse=True)[1]
