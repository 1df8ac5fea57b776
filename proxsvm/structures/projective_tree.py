"""Projective dependency trees, by Eisner's algorithm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, require
from proxsvm.structures._checks import at
from proxsvm.structures._parts import Parts
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
        cut a span in two lie at the same index, and one ⊕ over the last dimension takes all spans of a width.
        """
        u = scores if scores.dim() == 3 else reduce(scores, 3)
        root, arc = u[:, 0, 1:], u[:, 1:, 1:]
        B, T = root.shape
        zero = scores.new_zeros(B, T, 1)
        right_l = right_r = left_l = left_r = zero  # complete, headed at the left end (right_) or right end (left_)
        open_right, open_left = zero[..., :0], zero[..., :0]  # with an arc i → j, by left end; j → i, by right end
        for w in range(1, T):
            n = T - w
            inner = reduce(right_l[:, :n] + left_r[:, w:], 2)
            to_right = inner + arc.diagonal(w, 1, 2)
            to_left = inner + arc.diagonal(-w, 1, 2)
            open_right = torch.cat([open_right, F.pad(to_right, (0, w))[..., None]], 2)
            open_left = torch.cat([F.pad(to_left, (w, 0))[..., None], open_left], 2)
            right = reduce(open_right[:, :n] + right_r[:, w:], 2)
            left = reduce(left_l[:, :n] + open_left[:, w:], 2)
            right_l = torch.cat([right_l, F.pad(right, (0, w))[..., None]], 2)
            right_r = torch.cat([F.pad(right, (w, 0))[..., None], right_r], 2)
            left_l = torch.cat([left_l, F.pad(left, (0, w))[..., None]], 2)
            left_r = torch.cat([F.pad(left, (w, 0))[..., None], left_r], 2)
        child = torch.arange(T, device=u.device)
        ends = at(right_r, target.sizes - 1).gather(1, (child + T - target.sizes[:, None]).clamp(max=T - 1))
        whole = root + left_l[:, 0] + ends
        return reduce(torch.where(child < target.sizes[:, None], whole, FORBIDDEN), 1)
