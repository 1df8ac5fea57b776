"""What every kernel and every loss must know about a tensor: its precision and its layout."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"
Tensors: TypeAlias = Sequence[Tensor]

PLAIN = frozenset({Tensor, torch.nn.Parameter})  # exact types only: a subclass may have no memory of its own
NAMES = {"v": "second moment", "q": "past", "z": "velocity", "moved": "distance"}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are accumulated: float32 for half precision, else the dtype itself.

    >>> accumulator(torch.bfloat16), accumulator(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def is_dense(t: Tensor) -> bool:
    """Whether a tensor fills its memory without gaps or overlaps, whatever the order of its dimensions.

    >>> is_dense(torch.ones(2, 3).t()), is_dense(torch.ones(2, 3)[:, :2]), is_dense(torch.ones(3).expand(2, 3))
    (True, False, False)
    """
    return t.is_contiguous() or torch.empty_like(t, device="meta").stride() == t.stride()  # which keeps them if dense


def require_dense(gradients: Sequence[Tensor | None]) -> None:
    """Raise RuntimeError where a gradient is sparse.

    >>> require_dense([torch.ones(2), None, torch.ones(2).to_sparse()])
    Traceback (most recent call last):
    RuntimeError: a gradient is sparse; proxsvm needs dense ones: nn.Embedding(..., sparse=False)
    """
    if any(x is not None and x.is_sparse for x in gradients):
        raise RuntimeError("a gradient is sparse; proxsvm needs dense ones: nn.Embedding(..., sparse=False)")


def compare(what: str, w: Tensors, x: Tensors) -> None:
    """Raise RuntimeError unless every tensor of ``x`` has the shape and device of its parameter.

    >>> compare("z", [torch.ones(3)], [torch.ones(2)])
    Traceback (most recent call last):
    RuntimeError: the velocity of parameter 0 has shape (2,) on cpu, the parameter (3,) on cpu: was p.data replaced ...
    """
    device, shape = attrgetter("device"), attrgetter("shape")
    if list(map(shape, w)) == list(map(shape, x)) and list(map(device, w)) == list(map(device, x)):
        return
    for i, (a, b) in enumerate(zip(w, x, strict=True)):
        if a.shape != b.shape or a.device != b.device:
            raise RuntimeError(
                f"the {NAMES.get(what, what)} of parameter {i} has shape {tuple(b.shape)} on {b.device}, the parameter "
                f"{tuple(a.shape)} on {a.device}: was p.data replaced or moved between two steps? Make a new "
                "optimizer, or clear what belongs to the old: optimizer.zero_grad() and optimizer.state.pop(p, None)"
            )
