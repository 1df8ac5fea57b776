"""Batch-norm statistics, re-estimated."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from proxsvm.optimizer.follow import followed


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, loader: Iterable[Any], batches: int | None = None) -> None:
    """Re-estimate the batch-norm statistics for the weights that evaluation uses, as the mean over batches.

    A model that follows its optimizer is evaluated with the averaged weights, and training is not affected: afterwards
    the model is in its former mode, and the training weights have their own statistics. Any other model is taken as it
    is. (torch's ``update_bn`` calls ``model.train()``, which puts the training weights back.)

    Args:
        model: the model, in any mode.
        loader: yields inputs, tuples that start with one, or dicts of the model's arguments, on the model's device.
        batches: at most this many of them; all if None.

    >>> model = nn.Sequential(nn.BatchNorm1d(1))
    >>> refresh_batch_norm(model, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
    >>> model[0].running_mean, model[0].running_var
    (tensor([4.]), tensor([2.]))
    """
    if batches is not None and batches < 1:
        raise ValueError(f"batches is {batches}; expected None, for all, or 1 or more")
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    modes = [(module, module.training) for module in model.modules()]
    training = [optimizer for optimizer in followed(model) if not optimizer.averaged]
    model.eval()
    before = [(norm, norm.momentum, copy.deepcopy(norm.state_dict())) for norm in norms]
    seen = 0
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum, norm.training = None, True  # None: the mean over all batches
        for seen, batch in enumerate(islice(loader, batches if norms else 0), 1):  # noqa: B007
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(batch if isinstance(batch, Tensor) else batch[0])
        if norms and not seen:
            raise ValueError("the loader yielded no batch to estimate batch-norm statistics from")
    except BaseException:
        for norm, _, state in before:
            norm.load_state_dict(state)
        raise
    finally:
        for norm, momentum, state in before:
            norm.momentum = momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(state["num_batches_tracked"])
        for optimizer in training:
            optimizer.train()
        for module, mode in modes:
            module.training = mode
