"""What a logger shows of a run with nothing set: a small conv net on digits, batches of 64."""

from __future__ import annotations

import torch
from _network import digits, network
from _style import GREY, ORANGE, PURPLE, plt, save
from matplotlib.axes import Axes
from torch import Tensor

from examples.numbers import numbers
from proxsvm import ProxOptimizer, follow
from proxsvm.losses import CrossEntropy
from proxsvm.solvers import SingleStepFW

EPOCHS, SMOOTH = 30, 20  # steps of a running mean, drawn over the steps themselves
NAMES = ("gamma", "eta", "step_size", "loss")


def plot(axes: Axes, values: Tensor, color: str, label: str | None = None) -> None:
    axes.plot(values, color=color, lw=0.6, alpha=0.4)
    axes.plot(
        range(SMOOTH // 2, len(values) - SMOOTH // 2 + 1), values.unfold(0, SMOOTH, 1).mean(1), color=color, label=label
    )


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (x, y, x_test, y_test), model, criterion = digits(), network(), CrossEntropy()
    optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters())
    follow(model, optimizer)
    logged: list[dict[str, float]] = []
    for _ in range(EPOCHS):
        for chunk in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            criterion(model(x[chunk]), y[chunk]).backward()
            optimizer.step()
            logged.append(numbers(optimizer))
    model.eval()
    print(f"test accuracy {100 * (model(x_test).argmax(1) == y_test).float().mean():.1f} %")
    series = {name: torch.tensor([line[f"prox/{name}"] for line in logged]) for name in NAMES}
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    plot(axes[0], series["gamma"], ORANGE)
    axes[1].plot(series["eta"], color=GREY, label="η, automatic")
    plot(axes[1], series["step_size"], ORANGE, label="γη, the step")
    plot(axes[2], series["loss"], PURPLE)
    axes[0].set(title="prox/gamma", ylim=(0, 1.05))
    axes[1].set(title="prox/eta, prox/step_size", yscale="log", ylim=(1e-3, 0.6))
    axes[2].set(title="prox/loss", yscale="log")
    axes[1].legend(loc="upper center", ncols=2, columnspacing=1)
    for panel in axes:
        panel.set_xlabel("step")
        panel.grid(alpha=0.2)
    save(figure, "run.svg")


if __name__ == "__main__":
    main()
