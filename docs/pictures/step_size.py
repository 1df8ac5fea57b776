"""γη falls by itself: the demo's training on digits, drawn for the start page.

The same networks, data and seeds as `make demo`.
"""

from __future__ import annotations

import copy

import torch
from _style import GREEN, ORANGE, PURPLE, plt, save

from experiments.demo import FLOOR, digits, network, per_epoch, runs, train

COLORS = {"DFW, no schedule": ORANGE, "SGD, no schedule": PURPLE, "SGD, schedule": GREEN}
LABELS = {
    "DFW, no schedule": "proxsvm: γη, no schedule",
    "SGD, no schedule": "SGD, constant",
    "SGD, schedule": "SGD, a staircase by hand",
}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    initial, data = network(), digits(torch.device("cpu"))
    chosen = [run for run in runs() if run.name in COLORS]
    for run in chosen:
        train(run, copy.deepcopy(initial), data, epochs=30, batch=64)
        print(f"{run.name}: {run.accuracy[-1]:.1f} % test accuracy, hinge {run.train_loss[-1]:.5f}")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    for run in chosen:
        dashes = "--" if run.name == "SGD, schedule" else "-"  # the two SGDs are one until the first stair
        epochs = range(1, len(run.train_loss) + 1)
        left.plot(epochs, per_epoch(run).clamp(min=FLOOR), color=COLORS[run.name], drawstyle="steps-mid", ls=dashes)
        loss = torch.tensor(run.train_loss).clamp(min=FLOOR)
        right.plot(epochs, loss, color=COLORS[run.name], ls=dashes, label=LABELS[run.name])
    left.set(title="the step-size that was taken", xlabel="epoch", yscale="log")
    right.set(title="training loss (multi-class hinge)", xlabel="epoch", yscale="log")
    figure.legend(loc="outside lower center", ncols=3)
    for axes in (left, right):
        axes.grid(alpha=0.2)
    save(figure, "step-size.svg")


if __name__ == "__main__":
    main()
