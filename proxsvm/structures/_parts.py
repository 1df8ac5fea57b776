"""What structures share whose scores are one tensor of parts: its checks, and a target that is φ(y) itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN, require, widened
from proxsvm.structures.base import Structure


class Parts(NamedTuple):
    """φ(y), shaped like the scores and 0 on padding, and the sizes of the samples, ``[B]`` or ``[B, 2]``."""

    phi: Tensor
    sizes: Tensor


class PartStructure(Structure):
    """A structure whose prepared target is :class:`Parts`."""

    def features(self, target: Parts, scores: Any) -> Tensor:
        """φ(y)."""
        return target.phi


def check_parts(name: str, scores: Any, form: str) -> Tensor:
    """Scores of the shape that ``form`` describes, such as ``[B, T, T, K]``; −inf becomes FORBIDDEN."""
    dims = form.count(",") + 1
    if not isinstance(scores, Tensor) or scores.dim() != dims or scores.numel() == 0:
        given = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"{name} got scores of {given}; expected {form}")
    if not scores.is_floating_point():
        raise TypeError(f"{name} got scores of {scores.dtype}; expected floating-point numbers: scores.float()")
    return widened(scores).clamp(min=FORBIDDEN)


def check_sizes(name: str, given: Any, most: tuple[int, ...], like: Tensor) -> Tensor:
    """The sizes of the samples: ``[B]``, or ``[B, d]`` for d numbers; all of them the largest possible if None."""
    B, limit = len(like), torch.tensor(most if len(most) > 1 else most[0], device=like.device)
    if given is None:
        return limit.expand(B, *limit.shape)
    sizes = torch.as_tensor(given, device=like.device)
    if sizes.is_floating_point() or sizes.dtype == torch.bool or sizes.shape != (B, *limit.shape):
        expected = f"[{B}]" if len(most) == 1 else f"[{B}, {len(most)}]"
        raise ValueError(f"{name} got lengths of {tuple(sizes.shape)}, {sizes.dtype}; expected {expected} integers")
    require(
        (sizes >= 1) & (sizes <= limit),
        f"{name} got a length outside [1, {limit.tolist()}]: leave out empty samples",
    )
    return sizes.long()


def check_integers(name: str, what: str, given: Any, shape: tuple[int, ...]) -> Tensor:
    """An integer tensor of a shape."""
    if not isinstance(given, Tensor) or given.is_floating_point():
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise TypeError(f"{name} got {what} of {kind}; expected an integer tensor")
    if tuple(given.shape) != shape:
        raise ValueError(f"{name} got {what} of shape {tuple(given.shape)}; expected {shape}")
    return given.long()


def one_hot(scores: Tensor, index: Tensor, K: int) -> Tensor:
    """Indicators of ``index`` in a new last dimension of size K, in the scores' dtype."""
    return scores.new_zeros(*index.shape, K).scatter(-1, index[..., None], 1.0)


def at(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b]], ``[B, ...]``."""
    return x[torch.arange(len(x), device=x.device), index]
