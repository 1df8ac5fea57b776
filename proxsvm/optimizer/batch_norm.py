"""Batch-norm statistics, re-estimated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from proxsvm.optimizer.follow import followed


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, loader: Iterable[Any], batches: int | None = None) -> None:
    """Re-estimate the batch-norm statistics for the weights that evaluation uses, as the mean over batches.

    Batch-norm layers run in training mode, all others in evaluation mode. For a model that follows its optimizer
    these are the averaged weights, and training is not affected: afterwards the model is in the mode
    that it was in, and the training weights have their own statistics. For any other model it is whatever is in place
    (call ``optimizer.eval()`` first), and there is only one set of statistics. torch's ``update_bn`` calls
    ``model.train()``, which puts the training weights back.

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
    if not norms:
        return
    with _evaluating(model):
        before = [[b.clone() for b in norm.buffers(recurse=False)] for norm in norms]
        momenta, seen = [norm.momentum for norm in norms], 0
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum, norm.training = None, True  # None: the mean over all batches
            for seen, batch in enumerate(islice(loader, batches), 1):  # noqa: B007
                model(**batch) if isinstance(batch, Mapping) else model(
                    batch if isinstance(batch, Tensor) else batch[0]
                )
            if not seen:
                raise ValueError("the loader yielded no batch to estimate batch-norm statistics from")
        except BaseException:
            for norm, old in zip(norms, before, strict=True):
                for buffer, value in zip(norm.buffers(recurse=False), old, strict=True):
                    buffer.copy_(value)
            raise
        finally:
            for norm, momentum, old in zip(norms, momenta, before, strict=True):
                norm.momentum, norm.training = momentum, False
                if norm.num_batches_tracked is not None:
                    norm.num_batches_tracked.copy_(old[-1])


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module and every optimizer is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    training = [optimizer for optimizer in followed(model) if not optimizer.averaged]
    model.eval()
    try:
        yield
    finally:
        for optimizer in training:
            optimizer.train()
        for module, mode in modes:
            module.training = mode
