"""PyTorch Lightning, with automatic and with manual optimization.

pip install '.[trainers]' in the source folder
python -m examples.with_lightning
"""

from __future__ import annotations

import logging
from itertools import product
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from examples.numbers import numbers
from examples.plain import AVERAGE, BATCH, OPTIONS, accuracy, dataset, network
from proxsvm import ProxOptimizer
from proxsvm.losses import MultiClassHinge
from proxsvm.optimizer.lightning import FollowOptimizer
from proxsvm.solvers import DualSolver, SingleStepFW


class Automatic(lightning.LightningModule):
    """Lightning calls ``optimizer.step(closure)`` with a closure that runs ``backward()``: nothing special to do."""

    def __init__(self, solver: DualSolver | None = None) -> None:
        super().__init__()
        self.model, self.criterion = network(), MultiClassHinge(smooth=True)
        self.solver = solver or SingleStepFW()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.criterion(self.model(x), y)

    def configure_optimizers(self) -> ProxOptimizer:
        return ProxOptimizer(self.criterion, self.solver, self.model.parameters(), average=AVERAGE, **OPTIONS)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean())


class Manual(Automatic):
    """Manual optimization: the loop is yours, and so is the accumulation."""

    def __init__(self, accumulate: int = 1) -> None:
        super().__init__()
        self.automatic_optimization, self.accumulate = False, accumulate

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        if batch_idx % self.accumulate == 0:
            optimizer.zero_grad()
        self.manual_backward(self.criterion(self.model(x), y) / self.accumulate)
        if batch_idx % self.accumulate == self.accumulate - 1:
            optimizer.step()


class ManualSeveralSteps(Automatic):
    """A multi-step solver gets a closure that only evaluates the loss."""

    def __init__(self, solver: DualSolver) -> None:
        super().__init__(solver)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.optimizers().step(closure=lambda: self.criterion(self.model(x), y))


class LogSteps(lightning.Callback):
    """Log what the steps do, with all of the trainer's loggers: ``Trainer(callbacks=[LogSteps()])``."""

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:  # reading the numbers synchronises
            for optimizer, logger in product(trainer.optimizers, trainer.loggers):
                logger.log_metrics(numbers(optimizer), trainer.global_step)


def trainer(epochs: int = 3, **options: Any) -> lightning.Trainer:
    """A trainer on the CPU, which writes no files unless ``callbacks`` do; the averages are evaluated and saved."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    callbacks = [FollowOptimizer(), *options.pop("callbacks", ())]
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=options.pop("logger", False),
        callbacks=callbacks,
        enable_checkpointing=len(callbacks) > 1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def fit(
    module: lightning.LightningModule, epochs: int = 3, resume: str | None = None, **options: Any
) -> lightning.LightningModule:
    loader = DataLoader(dataset(), BATCH)
    trainer(epochs, **options).fit(module, loader, loader, ckpt_path=resume)
    return module


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"automatic:                accuracy {accuracy(fit(Automatic())):.3f}")
    print(f"automatic, 2 accumulated: accuracy {accuracy(fit(Automatic(), accumulate_grad_batches=2)):.3f}")
    print(f"automatic, bf16:          accuracy {accuracy(fit(Automatic(), precision='bf16-mixed')):.3f}")
    print(f"manual:                   accuracy {accuracy(fit(Manual())):.3f}")
