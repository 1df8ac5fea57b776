"""What structures share whose scores are one tensor of parts: its checks, and a target that is φ(y) itself."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN, integer_target, one_hot, require, widened
from proxsvm.structures.base import Structure

Array: TypeAlias = "np.ndarray[Any, Any]"


class Parts(NamedTuple):
    """φ(y), shaped like the scores and 0 on padding, and the sizes of the samples, ``[B]`` or ``[B, 2]``.

    ``labels``: y itself, where Δ needs it.
    """

    phi: Tensor
    sizes: Tensor
    labels: Tensor | None = None


class PartStructure(Structure):
    """A structure whose prepared target is :class:`Parts`."""

    def features(self, target: Parts, scores: Any) -> Tensor:
        """φ(y)."""
        return target.phi


class ChartStructure(PartStructure):
    """Some cells of a chart have one of K labels: scores ``[B, S, T, K]``, labels ``[B, S, T]``, −1 elsewhere."""

    what = "label"

    def chart(self, name: str, u: Tensor, target: Any, sizes: Tensor, inside: Tensor) -> tuple[Tensor, Parts]:
        """Labels become indicators; ``inside`` says which cells exist."""
        phi, K = torch.zeros_like(u), u.shape[3]
        if target is not None:
            labels = torch.where(inside, integer_target(name, target, u.shape[:3], f"{self.what}s"), -1)
            require((labels >= -1) & (labels < K), f"{name} got a {self.what} outside [-1, {K}), those of the scores")
            self.check(name, labels, sizes)
            phi = one_hot(u, labels.clamp(min=0), K) * (labels >= 0)[..., None]
        return torch.where(inside[..., None], u, 0.0), Parts(phi, sizes)

    def check(self, name: str, labels: Tensor, sizes: Tensor) -> None:
        """Raise ValueError unless the labels ``[B, S, T]`` are those of a labelling."""

    def labels(self, phi: Tensor, target: Parts) -> Tensor:
        """The label of every cell that has one, −1 elsewhere."""
        return torch.where(phi.sum(3) > 0.5, phi.argmax(3), -1)


def check_parts(name: str, scores: Any, form: str) -> Tensor:
    """Scores of the shape that ``form`` describes, such as ``[B, T, T, 3]``; −inf becomes FORBIDDEN."""
    sizes: dict[str, int] = {}
    names = form.strip("[]").split(", ")
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else ()
    same = all(sizes.setdefault(n, int(n) if n.isdigit() else d) == d for n, d in zip(names, shape, strict=False))
    if len(shape) != len(names) or 0 in shape or not same:
        raise ValueError(f"{name} got scores of {shape or type(scores).__name__}; expected {form}")
    if not scores.is_floating_point():
        raise TypeError(f"{name} got scores of {scores.dtype}; expected floating-point numbers: scores.float()")
    return widened(scores).clamp(min=FORBIDDEN)


def unpack(target: Any, given: Any) -> tuple[Any, Any]:
    """A target that may be (labels, sizes); if it is not, the sizes are the ``given`` ones."""
    return tuple(target) if isinstance(target, (tuple, list)) and len(target) == 2 else (target, given)


def check_sizes(name: str, given: Any, most: tuple[int, ...], like: Tensor) -> Tensor:
    """The sizes of the samples: ``[B]``, or ``[B, d]`` for d numbers; all of them the largest possible if None."""
    shape = (len(like), len(most)) if len(most) > 1 else (len(like),)
    limit = torch.stack([like.new_full(shape[:1], n, dtype=torch.long) for n in most], 1).reshape(shape)
    if given is None:
        return limit
    sizes = torch.as_tensor(given, device=like.device)
    if sizes.is_floating_point() or sizes.dtype == torch.bool or sizes.shape != shape:
        raise ValueError(f"{name} got lengths of {tuple(sizes.shape)}, {sizes.dtype}; expected {shape} integers")
    require((sizes >= 1) & (sizes <= limit), f"{name} got a length outside [1, {most}]: leave out empty samples")
    return sizes.long()


def before(n: int, sizes: Tensor) -> Tensor:
    """Which of the positions 0 … n − 1 are before the sizes ``[B]``, ``[B, n]``."""
    return torch.arange(n, device=sizes.device) < sizes[:, None]


def at(x: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b]], ``[B, ...]``."""
    return x[torch.arange(len(x), device=x.device), index]


def lowered(u: Array, n: int) -> tuple[Array, float]:
    """``u`` with forbidden entries so low that no n of the others are worth one, and more than the others' range."""
    usual = u[u > FORBIDDEN / 2]
    low, high = (usual.min(), usual.max()) if len(usual) else (0.0, 0.0)
    spread = float(high - low + 1)
    return np.where(u > FORBIDDEN / 2, u, low - (n + 1) * spread), spread
