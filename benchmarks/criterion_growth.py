"""Time and memory of the criterion, forward and backward, as the classes or the batch grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.allocations import Allocations
from benchmarks.common import Options, figure, spread, write
from benchmarks.criterion import both
from proxsvm.losses import CrossEntropy, MultiClassHinge

LOSSES = {
    "CrossEntropyLoss": nn.CrossEntropyLoss(),
    "CrossEntropy()": CrossEntropy(),
    "MultiClassHinge()": MultiClassHinge(),
    "MultiClassHinge(smooth=True)": MultiClassHinge(smooth=True),
}


def copies(loss: nn.Module, scores: Tensor, target: Tensor) -> float:
    """The most memory that forward and backward hold at one time, in copies of the scores; the gradient is one."""
    scores.grad = None
    with Allocations() as made:
        loss(scores, target).backward()
    return made.peak / scores.untyped_storage().nbytes()


def main(options: Options) -> None:
    step = 2 if options.quick else 1
    sizes = [("K", 64, 10**k) for k in range(1, 6)][::step] + [("n", 4**k, 1000) for k in range(2, 7)][::step]
    rows = []
    for grows, n, K in sizes:
        scores, target = torch.randn(n, K, requires_grad=True), torch.randint(K, (n,))
        runs = {name: both(loss, scores, target) for name, loss in LOSSES.items()}
        seconds = spread(runs, repeats=5 if options.quick else 15, inner=max(5, 300_000 // (n * K)), warm_up=1)
        rows.append(
            {"grows": grows, "n": n, "K": K}
            | {f"{name}, µs": 1e6 * median for name, (_, median, _) in seconds.items()}
            | {f"{name}, copies": copies(loss, scores, target) for name, loss in LOSSES.items()}
        )

    def slope(grows: str, name: str) -> float:
        mine = [r for r in rows if r["grows"] == grows][-2:]  # below them the call overhead dominates
        ratio = [np.log(mine[1][what] / mine[0][what]) for what in (f"{name}, µs", grows)]
        return float(ratio[0] / ratio[1])

    fits = "; ".join(f"{name} K^{slope('K', name):.2f}, n^{slope('n', name):.2f}" for name in LOSSES)
    note = (
        "Forward and backward. Copies: the most memory held by torch's operations at one time, in units of the scores, "
        f"the gradient included. Growth between the two largest sizes: {fits}."
    )
    write(options, "criterion_growth", rows, note)

    def draw(fig: Any, axes: Any) -> None:
        for ax, grows, label in zip(axes, ("K", "n"), ("classes K, n = 64", "batch n, K = 1,000"), strict=False):
            mine = [r for r in rows if r["grows"] == grows]
            x = np.array([r[grows] for r in mine])
            for name in LOSSES:
                ax.plot(x, [r[f"{name}, µs"] for r in mine], "o-", label=name)
            ax.plot(x[-2:], mine[-1]["CrossEntropyLoss, µs"] * x[-2:] / x[-1], "k--", lw=1, label="slope 1")
            ax.set(xscale="log", yscale="log", xlabel=label, ylabel="µs")
        mine = [r for r in rows if r["grows"] == "K"]
        for name in LOSSES:
            axes[2].plot([r["K"] for r in mine], [r[f"{name}, copies"] for r in mine], "o-", label=name)
        axes[2].set(xscale="log", xlabel="classes K, n = 64", ylabel="peak memory, copies of the scores", ylim=0)
        axes[0].legend(fontsize=8)

    figure(options, "criterion_growth", draw, ncols=3, figsize=(13, 4))
