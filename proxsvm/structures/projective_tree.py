"""Projective dependency trees, by Eisner's algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm._scores import require
from proxsvm.structures._checks import before, by_width
from proxsvm.structures.base import Parts
from proxsvm.structures.dependencies import Dependencies
from proxsvm.structures.semirings import Reduce


class ProjectiveTree(Dependencies):
    """Dependency trees without crossing arcs: scores, targets and Δ as in :class:`Dependencies`, in O(T³).

    Reference: Eisner, Three new probabilistic models for dependency parsing, COLING 1996.

    >>> from proxsvm.losses import StructuredHinge
    >>> scores = torch.zeros(1, 3, 3)
    >>> scores[0, 0, 2], scores[0, 2, 1] = 1.0, 1.0                   # the root's child is 2, the head of 1 is 2
    >>> StructuredHinge(ProjectiveTree()).decode(scores)
    tensor([[2, 0]])
    """

    def check(self, name: str, heads: Tensor) -> None:
        """Raise ValueError unless the heads are a tree whose arcs do not cross (those of padding, from 0, never do)."""
        super().check(name, heads)
        own = torch.arange(heads.shape[1], device=heads.device)
        low, high = torch.minimum(own, heads), torch.maximum(own, heads)
        crossing = (
            (low[:, :, None] < low[:, None]) & (low[:, None] < high[:, :, None]) & (high[:, :, None] < high[:, None])
        )
        require(~crossing, f"{name} got heads whose arcs cross: the tree is not projective (use SpanningTree)")

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """Spans of words i … j = i + w, wider and wider: with an arc between their ends, or complete, headed at one.

        A chart exists twice, by left end with widths 0, 1, … and by right end with widths …, 1, 0: then all ways to
        cut a span in two lie at the same index, and one ⊕ over the last dimension takes all spans of a width. Each word
        of padding depends on the one before it, which adds nothing.
        """
        u = scores if scores.dim() == 3 else reduce(scores, 3)
        arcs_right, arcs_left = by_width(u[:, 1:, 1:]), by_width(u[:, 1:, 1:].transpose(1, 2))
        B, T = u.shape[0], u.shape[1] - 1
        right_l = right_r = left_l = left_r = scores.new_zeros(B, T, 1)  # complete, headed at the left or right end
        open_right = open_left = scores.new_zeros(B, T, 0)  # with an arc i → j, by left end; j → i, by right end
        for w in range(1, T):
            right_l, left_l, open_right = right_l[:, :-1], left_l[:, :-1], open_right[:, :-1]
            right_r, left_r, open_left = right_r[:, 1:], left_r[:, 1:], open_left[:, 1:]
            inner = reduce(right_l + left_r, 2)
            to_right = inner + arcs_right[w]
            if w == 1:
                to_right = torch.where(before(T, target.sizes)[:, 1:], to_right, 0.0)
            open_right = torch.cat([open_right, to_right[..., None]], 2)
            open_left = torch.cat([(inner + arcs_left[w])[..., None], open_left], 2)
            right = reduce(open_right + right_r, 2)[..., None]
            left = reduce(left_l + open_left, 2)[..., None]
            right_l, right_r = torch.cat([right_l, right], 2), torch.cat([right, right_r], 2)
            left_l, left_r = torch.cat([left_l, left], 2), torch.cat([left, left_r], 2)
        return reduce(u[:, 0, 1:] + left_l[:, 0] + right_r[:, 0], 1)
