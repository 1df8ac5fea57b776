"""Binary brackets: a binary tree over the positions of a sequence, with a label on every span."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import require
from proxsvm.structures._checks import at, before, by_width, check_parts, check_sizes, unpack
from proxsvm.structures.base import ChartStructure, Parts
from proxsvm.structures.semirings import Reduce


class Spans(ChartStructure):
    """score(y) = Σ over the spans i … j of a binary tree of scores[i, j, label], single positions included.

    Scores ``[B, T, T, K]``, used where i ≤ j. Target: the label of every span of the tree and −1 elsewhere,
    ``[B, T, T]``, or ``(labels, lengths)``; a tree over n positions has 2n − 1 spans. Δ is the number of wrong spans or
    labels. ``decode`` returns such labels. The sum over all trees is CKY's, in O(T³).

    >>> from proxsvm.losses import StructuredHinge
    >>> scores = torch.zeros(1, 3, 3, 1)
    >>> scores[0, 1, 2] = 1.0                                         # positions 1 and 2 are a bracket
    >>> StructuredHinge(Spans()).decode(scores)[0]
    tensor([[ 0, -1,  0],
            [-1,  0,  0],
            [-1, -1,  0]])
    """

    def prepare(self, name: str, scores: Any, target: Any, *, lengths: Any = None) -> tuple[Tensor, Parts]:
        u = check_parts(name, scores, "[B, T, T, K]")
        target, lengths = unpack(target, lengths)
        sizes = check_sizes(name, lengths, (u.shape[1],), u)
        real = before(u.shape[1], sizes)
        return self.chart(name, u, target, sizes, (real[:, :, None] & real[:, None]).triu())

    def check(self, name: str, labels: Tensor, sizes: Tensor) -> None:
        """Raise ValueError unless the spans are those of a binary tree: 2n − 1, of which no two cross."""
        has = labels >= 0
        require(has.sum((1, 2)) == 2 * sizes - 1, f"{name} got spans that are no binary tree: expected 2n − 1 of them")
        longer = (has.sum(2, keepdim=True) - has.cumsum(2)).cumsum(1)  # spans from a start up to i to an end after j
        crossing = has & (longer.diagonal(0, 1, 2)[:, None] > longer)
        require(~crossing, f"{name} got spans that cross")

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """β(i, j) = ⊕ over labels of the score + ⊕ over cuts k of β(i, k) + β(k + 1, j), as in ``ProjectiveTree``."""
        spans = by_width(reduce(scores, 3))
        left = right = spans[0][..., None]
        for single in spans[1:]:
            left, right = left[:, :-1], right[:, 1:]
            span = (single + reduce(left + right, 2))[..., None]
            left, right = torch.cat([left, span], 2), torch.cat([span, right], 2)
        return at(left[:, 0], target.sizes - 1)
