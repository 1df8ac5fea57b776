"""The demo: train a small conv net on the digits with no schedule, and verify live steps against the exact QP.

make demo            or            python -m experiments.demo --epochs 20 --out out/demo.png
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import lr_scheduler
from tqdm import tqdm

from proxsvm import ProxOptimizer
from proxsvm.losses import CrossEntropy, MultiClassHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import BlockFW, CorrectiveFW, ExactQP, MultiStepFW, SingleStepFW
from proxsvm.verification import verify

COLORS = {"DFW, no schedule": "#d95f02", "SGD, no schedule": "#7570b3", "SGD, schedule": "#1b9e77", "Adam": "#666666"}
FLOOR = 1e-5  # of the logarithmic axes: zero is drawn here


@dataclass
class Run:
    """One optimizer's training: how it is made, and what it left behind."""

    name: str
    loss: nn.Module
    make: Callable[[list[nn.Parameter], nn.Module], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer, int], lr_scheduler.LRScheduler] | None = None
    train_loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    step_size: list[float] = field(default_factory=list)


def runs() -> list[Run]:
    """Nesterov momentum 0.9 and weight decay 1e-4 for all but Adam; the baselines minimise the cross-entropy."""

    def sgd(params: list[nn.Parameter], loss: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)

    def staircase(optimizer: torch.optim.Optimizer, epochs: int) -> lr_scheduler.LRScheduler:
        return lr_scheduler.MultiStepLR(optimizer, [epochs // 2, 3 * epochs // 4], gamma=0.1)

    def dfw(params: list[nn.Parameter], loss: nn.Module) -> torch.optim.Optimizer:
        return ProxOptimizer(loss, SingleStepFW(), params, lr=0.1, momentum=0.9, weight_decay=1e-4)

    return [
        Run("DFW, no schedule", MultiClassHinge(smooth=True), dfw),
        Run("SGD, no schedule", nn.CrossEntropyLoss(), sgd),
        Run("SGD, schedule", nn.CrossEntropyLoss(), sgd, staircase),
        Run("Adam", nn.CrossEntropyLoss(), lambda params, loss: torch.optim.Adam(params, lr=1e-3)),
    ]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(8 * 16, 10),
    )


def digits(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,297 training and 500 test images of 8×8, embedded in scikit-learn."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 8 - 1
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].to(device), y[order].to(device)
    return x[500:], y[500:], x[:500], y[:500]


def train(run: Run, model: nn.Module, data: tuple[Tensor, Tensor, Tensor, Tensor], epochs: int, batch: int) -> None:
    x, y, x_test, y_test = data
    optimizer = run.make(list(model.parameters()), run.loss)
    schedule = run.schedule(optimizer, epochs) if run.schedule else None
    hinge = MultiClassHinge()  # one yardstick for all
    generator = torch.Generator().manual_seed(1)
    for _ in (bar := tqdm(range(epochs), desc=f"{run.name:>16}", unit="epoch")):
        model.train()
        for chunk in torch.randperm(len(x), generator=generator).to(x.device).split(batch):
            optimizer.zero_grad()
            run.loss(model(x[chunk]), y[chunk]).backward()
            optimizer.step()
            gamma = optimizer.last.gamma.item() if isinstance(optimizer, ProxOptimizer) and optimizer.last else 1.0
            run.step_size.append(gamma * optimizer.param_groups[0]["lr"])
        if schedule:
            schedule.step()
        model.eval()
        with torch.no_grad():
            run.train_loss.append(hinge(model(x), y).item())
            run.accuracy.append(100 * (model(x_test).argmax(1) == y_test).float().mean().item())
        bar.set_postfix(hinge=f"{run.train_loss[-1]:.4f}", test=f"{run.accuracy[-1]:.1f}%")


def table(results: list[Run]) -> str:
    lines = [f"{'optimizer':<18}{'train hinge':>12}{'test accuracy':>15}{'first step-size':>17}{'last':>10}"]
    for run in results:
        first, last = per_epoch(run)[[0, -1]].tolist()
        lines.append(f"{run.name:<18}{run.train_loss[-1]:>12.5f}{run.accuracy[-1]:>14.1f}%{first:>17.1e}{last:>10.1e}")
    return "\n".join(lines)


def per_epoch(run: Run) -> Tensor:
    """The mean step-size of each epoch: one batch's γ is noisy."""
    return torch.tensor(run.step_size).view(len(run.train_loss), -1).mean(1)


def draw(results: list[Run], path: Path) -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for run in results:
        color = COLORS[run.name]
        epochs = range(1, len(run.train_loss) + 1)
        left.plot(epochs, torch.tensor(run.train_loss).clamp(min=FLOOR), color=color, label=run.name)
        middle.plot(epochs, run.accuracy, color=color)
        right.plot(epochs, per_epoch(run).clamp(min=FLOOR), color=color, drawstyle="steps-mid")
    left.set(title="training loss (multi-class hinge)", xlabel="epoch", yscale="log")
    middle.set(title="test accuracy (%)", xlabel="epoch", ylim=(92, 100))
    right.set(title="step-size: γη for DFW, the learning rate else", xlabel="epoch", yscale="log")
    left.legend(frameon=False)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def verify_live_steps(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The next step of training as each solver would take it, against the exact solution of that very step."""
    live = copy.deepcopy(model).train()
    criterion = MultiClassHinge(smooth=True)
    optimizer = ProxOptimizer(criterion, SingleStepFW(), live.parameters(), lr=1.0, weight_decay=1e-4)
    problem = optimizer.problem(criterion(live(x), y))
    for solver in (SingleStepFW(), MultiStepFW(max_steps=5), CorrectiveFW(max_steps=20), BlockFW(tol=1e-5), ExactQP()):
        print(verify(problem, solver, tol=1e-4), end="\n\n")
    print("The same for the cross-entropy, in the diagonal metric of Adam:\n")
    entropy = CrossEntropy()
    adaptive = ProxOptimizer(entropy, SingleStepFW(), live.parameters(), lr=0.01, metric=Diagonal())
    print(verify(adaptive.problem(entropy(live(x), y)), CorrectiveFW(max_steps=60, tol=1e-5), tol=1e-4), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path, default=Path("out/demo.png"))
    args = parser.parse_args()

    torch.manual_seed(0)
    initial = network().to(args.device)
    data = digits(args.device)
    print("A small conv net on scikit-learn's digits; one hyper-parameter, no schedule for DFW.\n")
    results = runs()
    for run in results:
        train(run, copy.deepcopy(initial), data, args.epochs, args.batch)
    print("\n" + table(results))
    draw(results, args.out)
    print(f"\nThe picture: {args.out}")

    print("\nOne live step early in training, as each solver takes it, against the exact QP of that step:\n")
    early = copy.deepcopy(initial)
    train(Run("warm-up", MultiClassHinge(smooth=True), runs()[0].make), early, data, 1, args.batch)
    verify_live_steps(early, data[0][:16], data[1][:16])


if __name__ == "__main__":
    main()
