"""What the criterion costs, forward and backward, compared with torch's losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.common import Options, interleaved, ratio, write
from proxsvm.losses import CrossEntropy, MultiClassHinge

SHAPES = [(128, 10), (128, 1000), (4096, 100), (64, 100_000)]
LOSSES: dict[str, nn.Module] = {
    "CrossEntropyLoss": nn.CrossEntropyLoss(),
    "MultiMarginLoss": nn.MultiMarginLoss(),
    "CrossEntropy()": CrossEntropy(),
    "MultiClassHinge()": MultiClassHinge(),
    "MultiClassHinge(smooth=True)": MultiClassHinge(smooth=True),
}


def both(loss: nn.Module, scores: Tensor, target: Tensor) -> Callable[[], None]:
    """The value and its gradient."""

    def run() -> None:
        scores.grad = None
        loss(scores, target).backward()

    return run


def main(options: Options) -> None:
    rows, (first, *others) = [], LOSSES
    for n, K in SHAPES:
        scores, target = torch.randn(n, K, requires_grad=True), torch.randint(K, (n,))
        runs = {name: both(loss, scores, target) for name, loss in LOSSES.items()}
        times = interleaved(runs, options.rounds(25, quick=5), inner=max(5, 300_000 // (n * K)), warm_up=1)
        ratios = {f"{name} /": ratio(times, name, first) for name in others}
        rows.append({"scores": f"[{n}, {K}]", f"{first}, µs": 1e6 * times[first].median, **ratios})
    write(options, "criterion", rows, "Forward and backward; ratios to torch's CrossEntropyLoss.")
