"""How wide is the range of usable η? Test accuracy on digits after a fixed budget, for η over six decades.

A small MLP, 5 epochs of batches of 64, no weight decay, no schedule; mean and range of three seeds.
"""

from __future__ import annotations

import torch
from _style import GREEN, ORANGE, PURPLE, plt, save
from torch import nn
from tqdm import tqdm

from experiments.demo import digits
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import MultiStepFW, SingleStepFW

ETAS = [10.0**k for k in range(-3, 4)]
EPOCHS, BATCH, SEEDS = 5, 64, (0, 1, 2)
METHODS = {
    "SGD, cross-entropy": PURPLE,
    "SingleStepFW": ORANGE,
    "MultiStepFW(max_steps=5)": GREEN,
}


def accuracy(method: str, eta: float, momentum: float, seed: int) -> float:
    torch.manual_seed(seed)
    x, y, x_test, y_test = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if method.startswith("SGD"):
        criterion: nn.Module = nn.CrossEntropyLoss()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=eta, momentum=momentum, nesterov=momentum > 0
        )
    else:
        criterion = MultiClassHinge(smooth=True)
        solver = SingleStepFW() if method == "SingleStepFW" else MultiStepFW(max_steps=5)
        paper = {"momentum": momentum, "metric": Euclidean(), "memory": 0.0, "average": None}
        optimizer = ProxOptimizer(criterion, solver, model.parameters(), lr=eta, **paper)
    for _ in range(EPOCHS):
        for chunk in torch.randperm(len(x)).split(BATCH):
            if isinstance(optimizer, ProxOptimizer):
                optimizer.step(lambda chunk=chunk: criterion(model(x[chunk]), y[chunk]))
            else:
                optimizer.zero_grad()
                criterion(model(x[chunk]), y[chunk]).backward()
                optimizer.step()
    with torch.no_grad():
        return 100 * (model(x_test).argmax(1) == y_test).float().mean().item()


def main() -> None:
    torch.set_num_threads(1)
    bar = tqdm(total=2 * len(METHODS) * len(ETAS) * len(SEEDS), unit="run")
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained", sharey=True)
    for axes, momentum in zip(panels, (0.0, 0.9), strict=True):
        rows = [[f"{eta:g}"] for eta in ETAS]
        for method, color in METHODS.items():
            found = torch.zeros(len(ETAS), len(SEEDS))
            for j, eta in enumerate(ETAS):
                for k, seed in enumerate(SEEDS):
                    found[j, k] = accuracy(method, eta, momentum, seed)
                    bar.update()
                rows[j].append(f"{found[j].mean():.1f}")
            axes.plot(ETAS, found.mean(1), "o-", color=color, label=method)
            axes.fill_between(ETAS, found.amin(1), found.amax(1), color=color, alpha=0.15)
        axes.set(title=f"momentum {momentum:g}", xlabel="η", xscale="log", ylim=(0, 102))
        axes.grid(alpha=0.2)
        table = [["η", *METHODS], ["---:"] * (len(METHODS) + 1), *rows]
        tqdm.write(f"\nmomentum {momentum:g}\n" + "\n".join("| " + " | ".join(row) + " |" for row in table))
    bar.close()
    panels[0].set_ylabel("test accuracy (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    save(figure, "eta.svg")


if __name__ == "__main__":
    main()
