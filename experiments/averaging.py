"""Averages of the weights, and batch-norm statistics that fit them.

γ does not fall to zero on noisy data; an average removes the noise, without a schedule.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn


def average(model: nn.Module, form: str) -> AveragedModel:
    """w̄ ← β w̄ + (1 − β) w after each step t; batch-norm buffers are averaged as well.

    ``form`` is a decay, ``"0.995"``: β = min(decay, (1 + t) / (10 + t)). The warm-up keeps the random start out of the
    average: its memory is at most t/9 steps. Or it is the fraction of the steps so far that the average
    covers, ``"1/4"``: β = (1 + t) / (1 + 4 + t). This form has no constant that depends on the length of training.
    """
    try:
        part = Fraction(form)
    except (ValueError, ZeroDivisionError):
        part = Fraction(-1)
    if not (0 < part < 1 or form == "0"):
        raise ValueError(
            f"an average's form is {form!r}; expected a decay below 1, such as 0.995, or the fraction of steps that it "
            "covers, such as 1/4"
        )
    decay, warm_up = (1.0, 1 + float(1 / part)) if "/" in form else (float(part), 10.0)

    def blend(averaged: Tensor, current: Tensor, t: Tensor | int) -> Tensor:
        if not averaged.is_floating_point():
            return current  # the batch norm's count of batches
        t = torch.as_tensor(t)
        beta = torch.clamp((1 + t) / (warm_up + t), max=decay)
        return torch.lerp(current, averaged, beta.to(averaged))

    return AveragedModel(model, avg_fn=blend, use_buffers=True)


def with_fresh_statistics(model: nn.Module, batches: Iterable[tuple[Tensor, ...]]) -> nn.Module:
    """A copy of the model whose batch-norm statistics are those of its current weights over ``batches``.

    Needed where the evaluated weights are not those that were trained on: schedule-free's, and averages whose buffers
    are not averaged.
    """
    fresh = copy.deepcopy(model)
    update_bn(batches, fresh)
    return fresh
