"""Averages of the weights, and batch-norm statistics that fit them.

γ does not fall to zero on noisy data; an average does that part, without a schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Inputs = tuple[Tensor, ...]


def exponential(model: nn.Module, decay: float) -> AveragedModel:
    """w̄ ← β w̄ + (1 − β) w with β = min(decay, (1 + t) / (10 + t)); batch-norm buffers are averaged as well.

    The warm-up of β keeps the random start out of the average: after t steps it looks back over t/9 of them at most.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"an average's decay is {decay}; expected a number in [0, 1), such as 0.995")

    def blend(averaged: Tensor, current: Tensor, t: Tensor | int) -> Tensor:
        if not averaged.is_floating_point():
            return current  # the batch norm's count of batches
        beta = torch.clamp((1 + torch.as_tensor(t)) / (10 + torch.as_tensor(t)), max=decay)
        return torch.lerp(current, averaged, beta.to(averaged))

    return AveragedModel(model, avg_fn=blend, use_buffers=True)


@contextmanager
def fresh_statistics(model: nn.Module, batches: Iterable[Inputs]) -> Iterator[None]:
    """Batch-norm statistics of the present weights over ``batches``, put back as they were at the end.

    Needed where the evaluated weights are not those that were trained on: schedule-free's, and averages whose buffers
    are not averaged.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    before = [(norm.momentum, {name: buffer.clone() for name, buffer in norm.named_buffers()}) for norm in norms]
    if norms:
        mode = model.training
        model.train()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all of them
        with torch.no_grad():
            for inputs in batches:
                model(*inputs)
        model.train(mode)
    try:
        yield
    finally:
        for norm, (momentum, buffers) in zip(norms, before, strict=True):
            norm.momentum = momentum
            for name, buffer in norm.named_buffers():
                buffer.copy_(buffers[name])
