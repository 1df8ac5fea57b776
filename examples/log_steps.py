"""What the steps do, in TensorBoard; ``with_lightning`` and ``with_huggingface`` log the same numbers.

pip install tensorboard
python -m examples.log_steps             # writes out/runs
tensorboard --logdir out/runs
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

from examples.numbers import numbers
from examples.plain import BATCH, dataset, network
from proxsvm import ProxOptimizer, follow
from proxsvm.losses import CrossEntropy
from proxsvm.solvers import SingleStepFW


def train(folder: str, epochs: int = 20, every: int = 1) -> nn.Module:
    """Train with nothing set, and log one of ``every`` steps."""
    model, criterion = network(), CrossEntropy()
    optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters())
    follow(model, optimizer)
    step = 0
    with SummaryWriter(folder) as writer:
        for _ in range(epochs):
            for x, y in DataLoader(dataset(), BATCH):
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
                step += 1
                for name, value in numbers(optimizer).items() if step % every == 0 else ():
                    writer.add_scalar(name, value, step)
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)
    train("out/runs")
