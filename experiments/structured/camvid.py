"""CamVid, road against the rest: a small convolutional network; separate pixels, a grid, and the Jaccard index.

    python -m experiments.structured.camvid --data DIR       # two seeds; about 20 minutes on one core

The val split chooses the epoch. IoU of the road on the test frames, mean of two seeds, 2 cores, 2026-11-16: per-pixel
cross-entropy with Adam 82.8, with ProxOptimizer 79.7; per-pixel hinge 78.7, grid hinge 79.8, Lovász hinge 79.0
(first-camvid.jsonl).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from experiments.task import Task, indices, need, seen
from proxsvm._extras import load
from proxsvm.losses import BinaryCrossEntropy, GridHinge, LovaszHinge, MultiClassHinge
from proxsvm.structures import maxflow_cut, scipy_cut

ROAD, UNLABELLED = 3, 11
CUT = maxflow_cut if find_spec("maxflow") else scipy_cut  # the extra maxflow is faster, and GPL
Grid = partial(GridHinge, cut=CUT)


def read(folder: Path, split: str) -> TensorDataset:
    """Images ``[N, 3, H, W]`` in [0, 1], road or not ``[N, H, W]``, and where that is known.

    One split, in the order of the file names.
    """
    image = load("PIL.Image", extra="experiments")
    names = sorted(p.name for p in need(folder / split, "camvid").glob("*.png"))
    pictures = np.stack([np.asarray(image.open(folder / split / n).convert("RGB")) for n in names])
    labels = np.stack([np.asarray(image.open(folder / f"{split}annot" / n)) for n in names])
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    return TensorDataset(x, torch.from_numpy(labels == ROAD).long(), torch.from_numpy(labels != UNLABELLED))


class Network(nn.Module):
    """Scores (unary, right, down): dilated convolutions; weights that fall with the contrast of two neighbours."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, dilation in enumerate((1, 2, 4, 8)):
            layers += [nn.Conv2d(5 if i == 0 else width, width, 3, padding=dilation, dilation=dilation, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
        self.unary = nn.Sequential(*layers, nn.Conv2d(width, 1, 1))
        self.strength, self.decay = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.full((2,), 10.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, _, H, W = x.shape
        rows = torch.linspace(-1, 1, H)[:, None].expand(B, 1, H, W)
        columns = torch.linspace(-1, 1, W).expand(B, 1, H, W)
        unary = self.unary(torch.cat([4 * (x - 0.45), rows, columns], 1))[:, 0]
        right = (x[..., 1:] - x[..., :-1]).square().sum(1).sqrt()
        down = (x[..., 1:, :] - x[..., :-1, :]).square().sum(1).sqrt()
        weight = [F.softplus(self.strength[i] - self.decay[i] * c) for i, c in enumerate((right, down))]
        return unary, weight[0], weight[1]


def pixels(scores: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Each known pixel separately: the pairwise scores are not used."""
    return scores[0][target[1]], target[0][target[1]]


def two_classes(scores: Any, target: Any) -> tuple[Tensor, Tensor]:
    u, road = pixels(scores, target)
    return torch.stack([torch.zeros_like(u), u], 1), road


def images(scores: Any, target: Any) -> tuple[Tensor, Tensor]:
    """The road of each image, over its known pixels."""
    return scores[0], target[0].masked_fill(~target[1], LovaszHinge().ignore_index)


LOSSES: dict[str, Any] = {
    "likelihood": seen(BinaryCrossEntropy, pixels),
    "hinge": Grid,
    "pixel-hinge": seen(MultiClassHinge, two_classes),
    "lovasz-hinge": seen(LovaszHinge, images),
}


@torch.no_grad()
def iou(outputs: Iterable[tuple[Any, tuple[Tensor, Tensor]]], grid: bool) -> float:
    """Intersection over union of the road, over all known pixels, in percent; the grid's labelling is a cut."""
    both = either = 0
    for scores, (road, known) in outputs:
        a, b = (Grid().decode(scores) if grid else scores[0] > 0) == 1, road == 1
        both, either = both + int((a & b & known).sum()), either + int(((a | b) & known).sum())
    return 100 * both / either


def task(folder: Path) -> Task:
    """The dilated convolutions; the val split is the data set's own."""
    train, val, test = (read(folder / "camvid", split) for split in ("train", "val", "test"))
    return Task(
        *(train, val, test),
        network=Network,
        batches=lambda _, generator: indices(len(train), 4, generator),
        losses=LOSSES,
        judge=lambda outputs, loss: iou(outputs, grid=loss == "hinge"),
        evaluated=8,
    )


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("first-camvid")
