"""The Trainer of Hugging Face transformers, which calls a bare ``optimizer.step()``.

pip install '.[trainers]' in the source folder
python -m examples.with_huggingface
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainingArguments

from examples.numbers import numbers
from examples.plain import BATCH, accuracy, dataset, network, prox
from proxsvm import follow
from proxsvm.losses import MultiClassHinge


class WithLoss(nn.Module):
    """The Trainer expects a model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.criterion = network(), MultiClassHinge(smooth=True)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.network(x)
        return {"loss": self.criterion(scores, labels), "logits": scores}


class Dicts(Dataset[dict[str, Tensor]]):
    """The Trainer expects samples that are dicts of the model's arguments."""

    def __init__(self) -> None:
        self.data = dataset()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x, y = self.data[i]
        return {"x": x, "labels": y}


class LogSteps(Trainer):
    """What the steps do, in everything that the Trainer logs. (A callback would come after those that write.)"""

    def log(self, logs: dict[str, float], *args: Any) -> None:
        super().log({**logs, **numbers(self.optimizer)}, *args)


class InOrder(LogSteps):
    """Only to compare with the plain loop: no shuffling."""

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(Dicts())


def trainer(folder: str, epochs: int = 3, accumulate: int = 1, bf16: bool = False, **options: Any) -> Trainer:
    """A trainer that writes into ``folder``; ``options`` are additional TrainingArguments."""
    model = WithLoss()
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        lr_scheduler_type="constant",  # γ needs no schedule
        max_grad_norm=0.0,  # clip with ProxOptimizer(max_grad_norm=...), which keeps γ right
        bf16=bf16,
        use_cpu=True,
        **{"logging_strategy": "no", **options},
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    optimizer = prox(model.criterion, model.network.parameters())
    follow(model.network, optimizer)  # the averages are evaluated and saved, even if nothing is ever evaluated
    return InOrder(model, arguments, train_dataset=Dicts(), eval_dataset=Dicts(), optimizers=(optimizer, None))


def train(epochs: int = 3, accumulate: int = 1, bf16: bool = False) -> nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        hugging = trainer(folder, epochs, accumulate, bf16, save_strategy="no")
        hugging.train()
    return hugging.model.network


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"transformers.Trainer: accuracy {accuracy(train()):.3f}")
