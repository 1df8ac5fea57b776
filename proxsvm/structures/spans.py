"""Binary brackets: a binary tree over the positions of a sequence, with a label on every span."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import require
from proxsvm.structures._parts import Parts, PartStructure, at, check_integers, check_parts, check_sizes, one_hot
from proxsvm.structures.base import Reduce


class Spans(PartStructure):
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

    def prepare(  # type: ignore[override]
        self, name: str, scores: Any, target: Any, *, lengths: Any = None
    ) -> tuple[Tensor, Parts]:
        """Labels become indicators."""
        u = check_parts(name, scores, "[B, T, T, K]")
        B, T, _, K = u.shape
        if u.shape[2] != T:
            raise ValueError(f"{name} got scores of shape {tuple(u.shape)}; expected [B, T, T, K]")
        if isinstance(target, (tuple, list)) and len(target) == 2:
            target, lengths = target
        sizes = check_sizes(name, lengths, (T,), u)
        real = torch.arange(T, device=u.device) < sizes[:, None]
        spans = (real[:, :, None] & real[:, None]).triu()
        phi = torch.zeros_like(u)
        if target is not None:
            labels = torch.where(spans, check_integers(name, "labels", target, (B, T, T)), -1)
            require((labels >= -1) & (labels < K), f"{name} got a label outside [-1, {K}), the K of the scores")
            self._check(name, labels >= 0, sizes)
            phi = one_hot(u, labels.clamp(min=0), K) * (labels >= 0)[..., None]
        return torch.where(spans[..., None], u, 0.0), Parts(phi, sizes)

    def _check(self, name: str, has: Tensor, sizes: Tensor) -> None:
        """Raise ValueError unless the spans ``[B, T, T]`` are those of a binary tree: 2n − 1, of which no two cross."""
        require(has.sum((1, 2)) == 2 * sizes - 1, f"{name} got spans that are no binary tree: expected 2n − 1 of them")
        longer = (has.sum(2, keepdim=True) - has.cumsum(2)).cumsum(1)  # spans from a start up to i to an end after j
        crossing = has & (longer.diagonal(0, 1, 2)[:, None] > longer)
        require(~crossing, f"{name} got spans that cross")

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """β(i, j) = ⊕ over labels of the score + ⊕ over cuts k of β(i, k) + β(k + 1, j), as in ``ProjectiveTree``."""
        u = reduce(scores, 3)
        T = u.shape[1]
        by_left = by_right = u.diagonal(0, 1, 2)[..., None]
        for w in range(1, T):
            span = u.diagonal(w, 1, 2) + reduce(by_left[:, : T - w] + by_right[:, w:], 2)
            by_left = torch.cat([by_left, F.pad(span, (0, w))[..., None]], 2)
            by_right = torch.cat([F.pad(span, (w, 0))[..., None], by_right], 2)
        return at(by_left[:, 0], target.sizes - 1)

    def labels(self, phi: Tensor, target: Parts) -> Tensor:
        """The label of every span of the tree, −1 elsewhere."""
        return torch.where(phi.sum(3) > 0.5, phi.argmax(3), -1)
