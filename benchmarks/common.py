"""What the benchmarks share: interleaved timing, tables, pictures, a network on digits."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.benchmark import Measurement, TaskSpec

from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import SingleStepFW


@dataclass(frozen=True)
class Options:
    """``quick``: a smaller variant; ``out``: where results go; ``data``: the folder of the data sets."""

    quick: bool = False
    out: Path = Path("out/bench")
    repeats: int | None = None
    data: Path = Path("data")

    def rounds(self, full: int, quick: int) -> int:
        """``--repeats``, or how often a benchmark repeats its timings by itself."""
        return self.repeats or (quick if self.quick else full)


def interleaved(
    runs: Mapping[str, Callable[[], Any]], rounds: int, inner: int = 1, warm_up: int = 0
) -> dict[str, Measurement]:
    """Seconds of each run (the mean of ``inner`` calls), measured in turn: noise of the machine meets all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round in range(warm_up + rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            for _ in range(inner):
                run()
            if round >= warm_up:
                seconds[name].append(time.perf_counter() - began)
    return {name: Measurement(inner, times, TaskSpec(stmt=name, setup="")) for name, times in seconds.items()}


def ratio(times: Mapping[str, Measurement], name: str, reference: str) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(times[name].times, times[reference].times, strict=True))


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


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, with ReLUs between them.

    >>> len(mlp(64, 32, 10))
    3
    """
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for inputs, outputs in pairwise(widths[1:]):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


def begun(n: int, width: int, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """An MLP after twenty steps of training on scikit-learn's digits, and a batch for the next step."""
    torch.manual_seed(seed)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    net, loss = mlp(64, width, 10), MultiClassHinge()
    optimizer = ProxOptimizer(loss, SingleStepFW(), net.parameters(), lr=0.3, metric=Euclidean(), memory=0.0)
    for _ in range(20):
        batch = torch.randint(len(x), (64,))
        optimizer.step(lambda batch=batch: loss(net(x[batch]), y[batch]))
    batch = torch.randperm(len(x))[:n]
    return net, x[batch], y[batch]
