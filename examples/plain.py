"""The plain PyTorch loop; every other example in this folder must give the same weights and averages.

python -m examples.plain
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from proxsvm import ProxOptimizer, checkpoint, follow
from proxsvm.losses import MultiClassHinge
from proxsvm.metrics import Euclidean
from proxsvm.solvers import SingleStepFW

BATCH, CLASSES = 8, 3
# Without options nothing has to be set; these suit the 24 steps of this example, and FSDP2.
OPTIONS: dict[str, Any] = {"lr": 2.0, "momentum": 0.5, "weight_decay": 1e-3, "memory": 0.0, "metric": Euclidean()}
AVERAGE = 0.9  # over some 10 of the 24 steps; use 0.995 for thousands


def dataset(n: int = 64) -> TensorDataset:
    """Three Gaussian clusters in the plane."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (n,), generator=generator)
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    return TensorDataset(centres[y] + torch.randn(n, 2, generator=generator), y)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def prox(criterion: MultiClassHinge, params: object) -> ProxOptimizer:
    return ProxOptimizer(criterion, SingleStepFW(), params, average=AVERAGE, **OPTIONS)  # type: ignore[arg-type]


def accuracy(model: nn.Module) -> float:
    """The accuracy of the averages: the model follows its optimizer."""
    x, y = dataset().tensors
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train(
    epochs: int = 3, accumulate: int = 1, bf16: bool = False, save: str | None = None, resume: str | None = None
) -> nn.Module:
    """Train, and ``save`` a checkpoint after every epoch; ``resume`` is one to resume from."""
    model, criterion = network(), MultiClassHinge(smooth=True)
    optimizer = prox(criterion, model.parameters())
    follow(model, optimizer)  # model.eval() and what is saved use the averages
    first = checkpoint.load(resume, model=model, optimizer=optimizer)["epochs"] if resume else 0
    for epoch in range(first, epochs):
        model.train()
        for i, (x, y) in enumerate(DataLoader(dataset(), BATCH)):
            if i % accumulate == 0:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss: Tensor = criterion(model(x), y)
            (loss / accumulate).backward()
            if i % accumulate == accumulate - 1:
                optimizer.step()
        if save:
            checkpoint.save(save, model=model, optimizer=optimizer, epochs=epoch + 1)
    return model


if __name__ == "__main__":
    print(f"plain loop: accuracy {accuracy(train()):.3f}")
