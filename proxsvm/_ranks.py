"""The processes that work together, over torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

ProcessGroup: TypeAlias = "dist.ProcessGroup | Literal['default'] | None"


def ranks_of(group: ProcessGroup) -> Ranks | None:
    """The ranks of ``group``, or None if there is only one."""
    if group is None or not (dist.is_available() and dist.is_initialized()):
        return None
    chosen = None if isinstance(group, str) else group
    size = dist.get_world_size(chosen)
    return Ranks(chosen, size) if size > 1 else None


class Ranks:
    """The processes of a group. Every rank must call the same methods in the same order."""

    def __init__(self, group: dist.ProcessGroup | None, size: int) -> None:
        self.group, self.size = group, size

    @property
    def rank(self) -> int:
        """Which of them this process is."""
        return dist.get_rank(self.group)

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its sum over ranks, and return it."""
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def max(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by its maximum over ranks, and return it."""
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tensor

    def mean(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The average over ranks of each tensor, in one reduction for each dtype."""
        means: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            chosen = [i for i, t in enumerate(tensors) if t.dtype == dtype]
            flat = self.sum(torch.cat([tensors[i].detach().reshape(-1) for i in chosen]).div_(self.size))
            pieces = torch.split(flat, [tensors[i].numel() for i in chosen])
            means.update({i: piece.view(tensors[i].shape) for i, piece in zip(chosen, pieces, strict=True)})
        return [means[i] for i in range(len(tensors))]

    def gather(self, mine: Any) -> list[Any]:
        """What each rank passes, in the order of the ranks."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self.group)
        return found

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Give all ranks the tensors of the first one, in place, in one broadcast for each dtype."""
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            chosen = [t.detach() for t in tensors if t.dtype == dtype]
            flat = torch.cat([t.reshape(-1) for t in chosen])
            dist.broadcast(flat, first, group=self.group)
            pieces = torch.split(flat, [t.numel() for t in chosen])
            torch._foreach_copy_(chosen, [piece.view(t.shape) for piece, t in zip(pieces, chosen, strict=True)])
