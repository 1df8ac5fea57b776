"""A Lightning callback, with which a LightningModule follows its optimizer."""

from __future__ import annotations

from typing import Any

from proxsvm._extras import load
from proxsvm.optimizer.follow import follow, followed
from proxsvm.optimizer.prox_optimizer import ProxOptimizer

Callback: Any = load("lightning.pytorch", extra="trainers").Callback


class FollowOptimizer(Callback):  # type: ignore[misc]
    """Validate, test and predict with the averages, and save them: ``Trainer(callbacks=[FollowOptimizer()])``.

    It calls :func:`proxsvm.follow` for the module and its optimizer, unless ``configure_optimizers`` has done so (as
    it should with several optimizers: each with the part of the module that it trains), and puts the training weights
    back before every training batch: Lightning restores the modules' modes without ``train()``.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        for optimizer in followed(pl_module):  # of an earlier fit; a test may have left the averages in place
            optimizer.train()
        for optimizer in (o for o in trainer.optimizers if isinstance(o, ProxOptimizer)):
            if optimizer not in followed(pl_module) and any(g["average"] is not None for g in optimizer.param_groups):
                follow(pl_module, optimizer)
        if not followed(pl_module):
            raise ValueError("no optimizer keeps an average to follow: ProxOptimizer(..., average=0.995)")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        for optimizer in followed(pl_module):
            optimizer.train()
