"""What structures share whose scores are one tensor of parts: a target that is φ(y) itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxsvm._scores import integer_target, require
from proxsvm.structures.base import Structure


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
        labels, K = torch.full_like(inside, -1, dtype=torch.long), u.shape[3]
        if target is not None:
            labels = torch.where(inside, integer_target(name, target, u.shape[:3], f"{self.what}s"), -1)
            require((labels >= -1) & (labels < K), f"{name} got a {self.what} outside [-1, {K}), those of the scores")
            self.check(name, labels, sizes)
        phi = (labels[..., None] == torch.arange(K, device=u.device)).to(u)  # scatter() would copy its zeros
        every = inside[..., None].expand_as(u).contiguous()  # in one run over memory
        return torch.where(every, u, 0.0), Parts(phi, sizes)

    def check(self, name: str, labels: Tensor, sizes: Tensor) -> None:
        """Raise ValueError unless the labels ``[B, S, T]`` are those of a labelling."""

    def labels(self, phi: Tensor, target: Parts) -> Tensor:
        """The label of every cell that has one, −1 elsewhere."""
        return torch.where(phi.sum(3) > 0.5, phi.argmax(3), -1)
