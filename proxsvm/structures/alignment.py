"""Monotone alignments of two sequences, with gaps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, require
from proxsvm.structures._checks import before, check_parts, check_sizes, unpack
from proxsvm.structures.base import ChartStructure, Parts
from proxsvm.structures.semirings import Reduce

STEPS = ((1, 1), (1, 0), (0, 1))  # a match, a gap in the second sequence, a gap in the first


class Alignment(ChartStructure):
    """score(y) = Σ over the cells of a path of scores[i, j, move], from cell (0, 0) to the last one.

    The move into a cell is 0 (both sequences advance, and into the first cell), 1 (the first does) or 2 (the second).
    Scores ``[B, S, T, 3]``. Target: the move into every cell of the path and −1 elsewhere, ``[B, S, T]``, or
    ``(moves, lengths)`` with lengths ``[B, 2]``. Δ is the number of moves that y does not have. ``decode`` returns such
    moves. The sum is Needleman and Wunsch's, one anti-diagonal at a time.

    >>> from proxsvm.losses import StructuredHinge
    >>> scores = torch.tensor([0.0, -1.0, -1.0]).expand(1, 2, 3, 3)           # gaps cost 1
    >>> StructuredHinge(Alignment()).decode(scores).ge(0).sum()               # one match less than positions
    tensor(3)
    """

    what = "move"

    def prepare(self, name: str, scores: Any, target: Any, *, lengths: Any = None) -> tuple[Tensor, Parts]:
        u = check_parts(name, scores, "[B, S, T, 3]")
        target, lengths = unpack(target, lengths)
        sizes = check_sizes(name, lengths, (u.shape[1], u.shape[2]), u)
        inside = before(u.shape[1], sizes[:, 0])[:, :, None] & before(u.shape[2], sizes[:, 1])[:, None]
        return self.chart(name, u, target, sizes, inside)

    def check(self, name: str, labels: Tensor, sizes: Tensor) -> None:
        """Raise ValueError unless the moves are one path: each cell follows one of it, up to the last."""
        path, on = labels, F.pad(labels >= 0, (1, 0, 1, 0))  # with a border, so that a move from outside has a place
        previous = [on[:, 1 - di : on.shape[1] - di, 1 - dj : on.shape[2] - dj] for di, dj in STEPS]
        follows = torch.stack(previous, 3).gather(3, path.clamp(min=0)[..., None]).squeeze(3) | (path < 0)
        follows[:, 0, 0] = path[:, 0, 0] == 0
        steps = torch.tensor([sum(step) for step in STEPS], device=path.device)[path.clamp(min=0)] * (path >= 0)
        right = steps.sum((1, 2)) == sizes.sum(1)
        last = path.flatten(1).gather(1, ((sizes[:, 0] - 1) * path.shape[2] + sizes[:, 1] - 1)[:, None]) >= 0
        require(follows.flatten(1).all(1) & right & last[:, 0], f"{name} got moves that are no path to the last cell")

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """α(i, j) = ⊕ over the moves into (i, j) of their score + α of the cell before."""
        B, S, T, _ = scores.shape
        # Row i is shifted by i, so that column d of the result is the anti-diagonal i + j = d.
        shifted = F.pad(scores, (0, 0, 0, S), value=FORBIDDEN).flatten(1, 2)[:, : S * (S + T - 1)]
        diagonals = shifted.reshape(B, S, S + T - 1, 3).unbind(2)
        none = scores.new_full((B, S), FORBIDDEN)
        start = torch.arange(S, device=scores.device) == 0
        alpha = [none, torch.where(start, diagonals[0][..., 0], FORBIDDEN)]
        for u in diagonals[1:]:
            down = [F.pad(a[:, :-1], (1, 0), value=FORBIDDEN) for a in (alpha[-2], alpha[-1])]
            alpha.append(reduce(torch.stack([*down, alpha[-1]], 2) + u, 2).clamp(min=2 * FORBIDDEN))
        every = torch.stack(alpha[1:], 1)  # [B, S + T - 1, S]
        rows = torch.arange(B, device=scores.device)
        return every[rows, target.sizes.sum(1) - 2, target.sizes[:, 0] - 1]
