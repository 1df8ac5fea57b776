"""Scores as arrays: sample-major, ``[n, M]``, with the tensors of a sample side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import Scores, like, parts


def flatten(scores: Scores) -> Tensor:
    """Scores as one tensor ``[n, M]``, without their graph.

    >>> flatten((torch.zeros(2, 3), torch.zeros(2, 2, 2))).shape
    torch.Size([2, 7])
    """
    return torch.cat([u.detach().reshape(len(u), -1) for u in parts(scores)], 1)


def unflatten(flat: Tensor, scores: Scores) -> Scores:
    """The inverse of :func:`flatten`, in the structure of ``scores``."""
    pieces = torch.split(flat, [u[0].numel() for u in parts(scores)], 1)
    return like(scores, tuple(x.reshape(u.shape) for x, u in zip(pieces, parts(scores), strict=True)))


def to_numpy(x: Tensor) -> Array:
    """A tensor as a float64 array."""
    array: Array = x.detach().cpu().double().numpy()
    return array
