"""Hugging Face Accelerate.

pip install '.[trainers]' in the source folder
python -m examples.with_accelerate
"""

from __future__ import annotations

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from examples.plain import BATCH, accuracy, dataset, network, prox
from proxsvm import follow
from proxsvm.losses import MultiClassHinge


def train(
    epochs: int = 3, accumulate: int = 1, bf16: bool = False, save: str | None = None, resume: str | None = None
) -> nn.Module:
    """Train, and ``save`` the state and the model into a folder; ``resume`` is one to resume from."""
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, mixed_precision="bf16" if bf16 else "no"
    )
    criterion, model = MultiClassHinge(smooth=True), network()
    optimizer = prox(criterion, model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(dataset(), BATCH))
    follow(model, optimizer)  # model.eval() and what is saved use the averages
    if resume:
        accelerator.load_state(resume)
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                with accelerator.autocast():
                    loss = criterion(model(x), y)
                accelerator.backward(loss)
                optimizer.step()  # both do nothing until the last micro-batch of a step
                optimizer.zero_grad()
    if save:
        accelerator.save_state(save)  # to resume from: the averages and the training weights
        accelerator.save_model(model, f"{save}/model")  # for inference: the averages
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    print(f"accelerate: accuracy {accuracy(train()):.3f}")
