"""The plain PyTorch loop that every other example of this folder must equal, weight for weight.

python -m examples.plain
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW

BATCH, CLASSES = 8, 3


def dataset(n: int = 64) -> TensorDataset:
    """Three Gaussian clouds in the plane."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (n,), generator=generator)
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    return TensorDataset(centres[y] + torch.randn(n, 2, generator=generator), y)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def prox(criterion: MultiClassHinge, params: object) -> ProxOptimizer:
    return ProxOptimizer(criterion, SingleStepFW(), params, lr=2.0, momentum=0.5, weight_decay=1e-3)  # type: ignore[arg-type]


def accuracy(model: nn.Module) -> float:
    x, y = dataset().tensors
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def train(epochs: int = 3, accumulate: int = 1, bf16: bool = False) -> nn.Module:
    model, criterion = network(), MultiClassHinge(smooth=True)
    optimizer = prox(criterion, model.parameters())
    for _ in range(epochs):
        for i, (x, y) in enumerate(DataLoader(dataset(), BATCH)):
            if i % accumulate == 0:
                optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss: Tensor = criterion(model(x), y)
            (loss / accumulate).backward()
            if i % accumulate == accumulate - 1:
                optimizer.step()
    return model


if __name__ == "__main__":
    print(f"plain loop: accuracy {accuracy(train()):.3f}")
