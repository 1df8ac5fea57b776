"""γη falls by itself where SGD needs a staircase: a small conv net on digits, drawn for the start page.

30 epochs of batches of 64, Nesterov momentum 0.9 and weight decay 1e-4 for all; SGD minimises the cross-entropy.
"""

from __future__ import annotations

import copy

import torch
from _network import digits, network
from _style import GREEN, ORANGE, PURPLE, plt, save
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR
from tqdm import tqdm

from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import SingleStepFW

EPOCHS, FLOOR = 30, 1e-5  # the floor of the logarithmic axes: zero is drawn there
OURS, CONSTANT, STAIRCASE = "proxsvm: γη, no schedule", "SGD, constant", "SGD, a staircase by hand"
COLORS = {OURS: ORANGE, CONSTANT: PURPLE, STAIRCASE: GREEN}


def train(name: str, model: nn.Module, data: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The mean step-size and the training hinge of each epoch."""
    x, y, x_test, y_test = data
    hinge, options = MultiClassHinge(), {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
    paper = {"metric": Euclidean(), "memory": 0.0, "average": None}
    if name == OURS:
        loss: nn.Module = MultiClassHinge(smooth=True)
        optimizer: torch.optim.Optimizer = ProxOptimizer(loss, SingleStepFW(), model.parameters(), **options, **paper)
    else:
        loss, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), nesterov=True, **options)
    schedule = MultiStepLR(optimizer, [EPOCHS // 2, 3 * EPOCHS // 4]) if name == STAIRCASE else None
    steps, losses, generator = [], [], torch.Generator().manual_seed(1)
    for _ in tqdm(range(EPOCHS), desc=name, unit="epoch"):
        model.train()
        for chunk in torch.randperm(len(x), generator=generator).split(64):
            optimizer.zero_grad()
            loss(model(x[chunk]), y[chunk]).backward()
            optimizer.step()
            gamma = optimizer.last.gamma.item() if name == OURS else 1.0
            steps.append(gamma * optimizer.param_groups[0]["lr"])
        if schedule:
            schedule.step()
        model.eval()
        with torch.no_grad():
            losses.append(hinge(model(x), y).item())
    accuracy = (model(x_test).argmax(1) == y_test).double().mean().item()
    print(f"{name}: {100 * accuracy:.1f} % test accuracy, hinge {losses[-1]:.5f}")
    return torch.tensor(steps).view(EPOCHS, -1).mean(1), torch.tensor(losses)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    initial, data = network(), digits()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    for name, color in COLORS.items():
        step_size, loss = train(name, copy.deepcopy(initial), data)
        dashes = "--" if name == STAIRCASE else "-"  # the two SGDs are one until the first stair
        epochs = range(1, EPOCHS + 1)
        left.plot(epochs, step_size.clamp(min=FLOOR), color=color, drawstyle="steps-mid", ls=dashes)
        right.plot(epochs, loss.clamp(min=FLOOR), color=color, ls=dashes, label=name)
    left.set(title="the step-size that was taken", xlabel="epoch", yscale="log")
    right.set(title="training loss (multi-class hinge)", xlabel="epoch", yscale="log")
    figure.legend(loc="outside lower center", ncols=3)
    for axes in (left, right):
        axes.grid(alpha=0.2)
    save(figure, "step-size.svg")


if __name__ == "__main__":
    main()
