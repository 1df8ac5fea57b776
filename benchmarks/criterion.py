"""What the criterion costs, forward and backward, compared with torch's losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.common import Options, spread, write
from proxsvm.losses import CrossEntropy, MultiClassHinge

SHAPES = [(128, 10), (128, 1000), (4096, 100), (64, 100_000)]


def both(loss: nn.Module, scores: Tensor, target: Tensor) -> Callable[[], None]:
    """The value and its gradient, as something to time."""

    def run() -> None:
        scores.grad = None
        loss(scores, target).backward()

    return run


def main(options: Options) -> None:
    """Time value and gradient of each loss on scores of four shapes."""
    losses: dict[str, nn.Module] = {
        "CrossEntropyLoss": nn.CrossEntropyLoss(),
        "MultiMarginLoss": nn.MultiMarginLoss(),
        "CrossEntropy()": CrossEntropy(),
        "MultiClassHinge()": MultiClassHinge(),
        "MultiClassHinge(smooth=True)": MultiClassHinge(smooth=True),
    }
    rows = []
    for n, K in SHAPES:
        scores, target = torch.randn(n, K, requires_grad=True), torch.randint(K, (n,))
        runs = {name: both(loss, scores, target) for name, loss in losses.items()}
        seconds = spread(runs, repeats=5 if options.quick else 25, inner=max(5, 300_000 // (n * K)), warm_up=1)
        reference = seconds["CrossEntropyLoss"][1]
        rows.append(
            {"scores": f"[{n}, {K}]", "CrossEntropyLoss, µs": 1e6 * reference}
            | {
                f"{name} /": median / reference
                for name, (_, median, _) in seconds.items()
                if name != "CrossEntropyLoss"
            }
        )
    write(options, "criterion", rows, "Forward and backward; ratios to torch's CrossEntropyLoss.")
