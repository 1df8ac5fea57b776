"""The demo: an η that hardly needs tuning, a structure that is learned, and a training step with a certificate.

make demo            or            python -m experiments.demo --out out/demo.png
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib import rcParams
from matplotlib.figure import Figure
from pandas import DataFrame
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from tqdm import tqdm

from experiments import tabular
from experiments.task import Neighbours
from proxsvm import ProxOptimizer
from proxsvm.losses import ChainHinge, ConvexLoss, CrossEntropy
from proxsvm.metrics import Diagonal, Euclidean, Metric
from proxsvm.solvers import CorrectiveFW, DualSolver, SingleStepFW, Trace
from proxsvm.verification import Report, verify

ETAS = [10.0**k for k in range(-3, 4)]
ORANGE, PURPLE, GREEN, GREY, BLUE, RED = "#d95f02", "#7570b3", "#1b9e77", "#777777", "#1f6fb4", "#d62728"
LENGTH, NOISE = 12, 1.1  # of a word; the standard deviation of its noise, on pixels from -1 to 1
Make = Callable[[ConvexLoss, list[nn.Parameter], float], Optimizer]


def prox(solver: DualSolver, metric: Metric, average: float | None = None) -> Make:
    options: dict[str, Any] = {"momentum": 0.0, "memory": 0.0, "metric": metric, "average": average}
    return lambda loss, params, lr: ProxOptimizer(loss, solver, params, lr, **options)


ADAPTIVE = prox(SingleStepFW(), Diagonal(), average=0.99)  # Adam's metric; no momentum, no schedule
METHODS: dict[str, tuple[int, str, str, Make]] = {  # passes through the network per step, marker, colour, optimizer
    "SGD": (2, "s--", PURPLE, lambda loss, params, lr: SGD(params, lr)),
    "Adam": (2, "D--", GREY, lambda loss, params, lr: Adam(params, lr)),
    "SingleStepFW": (2, "o-", ORANGE, prox(SingleStepFW(), Euclidean())),
    "CorrectiveFW(5)": (10, "^-", GREEN, prox(CorrectiveFW(5), Euclidean())),  # a forward pass, five vjps and four jvps
    "SingleStepFW, Diagonal, averaged": (2, "o-", BLUE, ADAPTIVE),
}


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,297 training and 500 test images of 8×8."""
    x, y = tabular.digits()
    return x[500:], y[500:], x[:500], y[:500]


def mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def percent(right: Tensor) -> float:
    return 100 * right.double().mean().item()


def fit(model: nn.Module, loss: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, epochs: int, batch: int) -> None:
    """The plain loop; it leaves the averaged weights in the model where the optimizer keeps them."""
    for _ in range(epochs):
        for chunk in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            if isinstance(optimizer, ProxOptimizer):  # it differentiates by itself, as often as its solver needs
                optimizer.step(lambda chunk=chunk: loss(model(x[chunk]), y[chunk]))
            else:
                loss(model(x[chunk]), y[chunk]).backward()
                optimizer.step()
    if isinstance(optimizer, ProxOptimizer):
        optimizer.eval()


def words(images: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` words, each letter a random image of its digit, with noise: ``[count, T, 64]`` and ``[count, T]``.

    The digit d is followed by 2d or 2d + 1 (mod 10). The model is not told: it learns a score for each pair of digits.
    """
    letters = [torch.randint(10, (count,), generator=generator)]
    while len(letters) < LENGTH:
        letters.append((2 * letters[-1] + torch.randint(2, (count,), generator=generator)) % 10)
    word = torch.stack(letters, 1)
    x = torch.empty(count, LENGTH, images.shape[1])
    for digit in range(10):
        here, of_digit = word == digit, images[labels == digit]
        x[here] = of_digit[torch.randint(len(of_digit), (int(here.sum()),), generator=generator)]
    return x + NOISE * torch.randn(x.shape, generator=generator), word


def accuracies(seeds: int, epochs: int) -> DataFrame:
    """Test accuracies on the digits in percent, a row per run: an MLP, the cross-entropy, a constant η."""
    x, y, x_test, y_test = digits()
    found = []
    for method, eta, seed in tqdm(list(product(METHODS, ETAS, range(seeds))), desc="accuracy against η", unit="run"):
        model, loss = mlp(seed), CrossEntropy()
        fit(model, loss, METHODS[method][-1](loss, list(model.parameters()), eta), x, y, epochs, batch=64)
        found.append((method, eta, percent(model(x_test).argmax(1) == y_test)))
    return DataFrame(found, columns=["method", "eta", "accuracy"])


def read_words(count: int, epochs: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Test words and what was read, ``[500, T]`` each: the same network trained letter by letter, and in the hinge."""
    generator = torch.Generator().manual_seed(0)
    images, labels, test_images, test_labels = digits()
    x, word = words(images, labels, count, generator)
    x_test, truth = words(test_images, test_labels, 500, generator)
    alone, reader = mlp(seed=0), Neighbours(mlp(seed=0), 10)
    per_letter = (alone, CrossEntropy(), x.flatten(0, 1), word.flatten(), 32 * LENGTH)
    structured = (reader, ChainHinge(), x, word, 32)
    for model, loss, inputs, target, batch in tqdm([per_letter, structured], desc="words", unit="run"):
        fit(model, loss, ADAPTIVE(loss, list(model.parameters()), 0.01), inputs, target, epochs, batch)
    decoded = ChainHinge().decode(reader(x_test))
    return x_test, {"truth": truth, "without": alone(x_test).argmax(2), "with": decoded}


def live_step() -> tuple[Report, Report, list[Trace]]:
    """The eleventh training step with two solvers, each verified, and the bounds along the steps of the first one."""
    x, y = digits()[0].double().split(64), digits()[1].split(64)
    model, loss = mlp(seed=0).double(), CrossEntropy()
    optimizer = prox(SingleStepFW(), Diagonal())(loss, list(model.parameters()), 0.01)
    for k in range(10):
        optimizer.step(lambda k=k: loss(model(x[k]), y[k]))
    problem = optimizer.problem(loss(model(x[10]), y[10]))
    trace: list[Trace] = []
    solver = CorrectiveFW(max_steps=100, tol=1e-8, callback=trace.append)
    return verify(problem, solver), verify(problem, SingleStepFW()), trace


def tables(found: DataFrame, read: dict[str, Tensor], solved: Report, single: Report) -> str:
    accuracy = found.pivot_table("accuracy", "method", "eta", sort=False).rename(columns="{:g}".format)
    accuracy["passes per step"] = [METHODS[name][0] for name in accuracy.index]
    right = {name: read[name] == read["truth"] for name in ("without", "with")}
    words = {f"the network {name} structure": [percent(x), percent(x.all(1))] for name, x in right.items()}
    columns = ["letters right", f"whole words of {LENGTH} noisy digits right"]
    shown = [accuracy.rename_axis(None).rename_axis("test accuracy in % at η =", axis=1)]
    shown += [DataFrame.from_dict(words, "index", columns=columns).rename_axis("in %", axis=1)]
    lines = [frame.to_string(float_format="%.1f") + "\n" for frame in shown]
    lines += [f"One live step of training (cross-entropy, Adam's metric) and its exact solution P*:\n\n{solved}\n"]
    lines += [f"SingleStepFW: D ≤ P* ≤ P is {single.dual:.4f} ≤ {single.exact:.4f} ≤ {single.primal:.4f}, {single.ok}"]
    return "\n".join(lines)


def draw(found: DataFrame, x: Tensor, read: dict[str, Tensor], solved: Report, trace: list[Trace], path: Path) -> None:
    rcParams.update({"font.size": 13, "axes.titlesize": 14, "legend.fontsize": 12, "legend.frameon": False})
    rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.2})
    figure = Figure(figsize=(7.5, 10), layout="constrained")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=(4, 3, 3), hspace=0.04)

    axes = top.subplots()
    for name, (passes, line, color, _) in METHODS.items():
        rows = found[found.method == name].groupby("eta").accuracy.agg(["mean", "min", "max"])
        axes.plot(rows.index, rows["mean"], line, color=color, label=f"{name}: {passes}".replace(", ", ",\n", 1))
        axes.fill_between(rows.index, rows["min"], rows["max"], color=color, alpha=0.15)
    axes.set(title="Digits: test accuracy (%) against η", xlabel="η", xscale="log", ylim=(0, 102))
    axes.legend(title="passes per step", loc="center right", bbox_to_anchor=(1, 0.52), alignment="left")

    whole = [percent((read[name] == read["truth"]).all(1)) for name in ("without", "with")]
    middle.suptitle("Whole words right: {:.1f} % without structure, {:.1f} % with".format(*whole), fontsize=14)
    for k, axes in enumerate(middle.subplots(2, 1)):
        for t, image in enumerate(x[k].view(-1, 8, 8).numpy()):
            axes.imshow(image, cmap="gray_r", extent=(t, t + 0.9, 0.9, 0))
        for y, name in ((1.35, "without"), (1.95, "with")):  # mistakes are marked red
            axes.text(-0.2, y, name, ha="right", va="center")
            for t, letter in enumerate(read[name][k].tolist()):
                red = {"color": "white", "bbox": {"boxstyle": "circle", "fc": RED, "ec": "none"}}
                mark = red if letter != read["truth"][k, t] else {}
                axes.text(t + 0.45, y, str(letter), ha="center", va="center", **mark)
        axes.set(xlim=(0, LENGTH), ylim=(2.3, 0))
        axes.axis("off")

    axes, steps = bottom.subplots(), [state.step for state in trace]
    axes.plot(steps, [state.primal - solved.exact for state in trace], "v-", color=ORANGE, label="P − P*, from above")
    axes.plot(steps, [solved.exact - state.dual for state in trace], "^-", color=BLUE, label="P* − D, from below")
    axes.set(title="One live training step: bounds on its exact value P*", yscale="log")
    axes.set_xlabel("steps of CorrectiveFW (the first one is SingleStepFW's)")
    axes.legend(title=f"last relative gap: {solved.relative_gap:.1e}", alignment="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--seeds", 3), ("--epochs", 10), ("--words", 6000)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("out/demo.png"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # the networks are tiny
    found = accuracies(args.seeds, args.epochs)
    x, read = read_words(args.words, epochs=5)
    solved, single, trace = live_step()
    print("\n" + tables(found, read, solved, single))
    draw(found, x, read, solved, trace, args.out)
    print(f"\nThe picture: {args.out}")


if __name__ == "__main__":
    main()
