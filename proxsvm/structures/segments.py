"""Segmentations: a sequence is cut into labelled segments, as in a semi-Markov model."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import integer_target, require
from proxsvm.structures._checks import at, before, check_parts, check_sizes, label_costs
from proxsvm.structures.base import Parts, PartStructure
from proxsvm.structures.semirings import Reduce


class Segments(PartStructure):
    """score(y) = Σ over segments of scores[start, length − 1, label], for segments of at most L positions.

    Scores ``[B, T, L, K]``. Target: ``(labels, ends)`` or ``(labels, ends, lengths)``: the label of every position and
    whether a segment ends there, both ``[B, T]``; or, for each sample, a list of ``(start, end, label)`` with the
    positions start … end − 1. Δ is the number of positions with a wrong label. ``decode`` returns such lists.

    >>> from proxsvm.losses import StructuredHinge
    >>> scores = torch.zeros(1, 3, 2, 2)
    >>> scores[0, 0, 1, 1], scores[0, 2, 0, 0] = 2.0, 1.0      # positions 0 and 1 with label 1, position 2 with label 0
    >>> StructuredHinge(Segments()).decode(scores)
    [[(0, 2, 1), (2, 3, 0)]]
    """

    def prepare(self, name: str, scores: Any, target: Any, *, lengths: Any = None) -> tuple[Tensor, Parts]:
        u = check_parts(name, scores, "[B, T, L, K]")
        B, T, L, K = u.shape
        if isinstance(target, list) and not (target and isinstance(target[0], Tensor)):  # what a DataLoader collates
            target = self._from_lists(name, target, B, T)
        if target is not None:
            if not isinstance(target, (tuple, list)) or len(target) not in (2, 3):
                raise TypeError(f"{name} got a target that is not (labels, ends[, lengths]) or a list for each sample")
            lengths = target[2] if len(target) == 3 else None
        sizes = check_sizes(name, lengths, (T,), u)
        position, length = torch.arange(T, device=u.device), torch.arange(L, device=u.device)
        u = torch.where((position[:, None] + length < sizes[:, None, None])[..., None], u, 0.0)
        real = before(T, sizes)
        if target is None:
            return u, Parts(torch.zeros_like(u), sizes)
        labels = torch.where(real, integer_target(name, target[0], (B, T), "labels"), 0)
        ends = integer_target(name, target[1], (B, T), "ends").bool() & real
        begins = torch.cat([torch.ones_like(ends[:, :1]), ends[:, :-1]], 1) & real
        start = torch.where(begins, position, 0).cummax(1).values
        require((labels >= 0) & (labels < K), f"{name} got a label outside [0, {K}), the K of the scores")
        require(at(ends, sizes - 1), f"{name} got a last position at which no segment ends")
        require((position - start < L) | ~real, f"{name} got a segment of more than L = {L} positions, the scores' L")
        same = labels == labels.gather(1, start)
        require(same | ~real, f"{name} got a segment whose positions have different labels")
        part = (start * L + (position - start).clamp(max=L - 1)) * K + labels
        phi = u.new_zeros(B, T * L * K).scatter_add(1, torch.where(ends, part, 0), ends.to(u))
        return u, Parts(phi.reshape(u.shape), sizes, labels)

    def _from_lists(self, name: str, target: list[Any], B: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
        """(start, end, label) as labels, ends and lengths."""
        if len(target) != B:
            raise ValueError(f"{name} got {len(target)} lists of segments; expected one per sample, {B}")
        labels, ends, lengths = torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.long), [0] * B
        for i, segments in enumerate(target):
            for segment in segments:
                whole = len(segment) == 3 and all(isinstance(x, Integral) for x in segment)
                expected = f"integers (start, end, label) from {lengths[i]} on, up to at most {T}"
                if not whole or not lengths[i] == segment[0] < segment[1] <= T:
                    raise ValueError(f"{name} got the segment {segment}; expected {expected}")
                start, lengths[i], label = segment
                labels[i, start : lengths[i]], ends[i, lengths[i] - 1] = label, 1
        return labels, ends, torch.tensor(lengths)

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """α_e = ⊕ over the last segment of α_start + its score."""
        B, T, L, _ = scores.shape
        start = torch.arange(T, device=scores.device)[:, None] - torch.arange(L, device=scores.device)
        by_end = reduce(scores, 3).gather(1, start.clamp(min=0).expand(B, T, L)).unbind(1)  # those that end at e
        alpha = [scores.new_zeros(B)]
        for e, last in enumerate(by_end):
            n = min(L, e + 1)
            alpha.append(reduce(torch.stack(alpha[: -n - 1 : -1], 1) + last[:, :n], 1))
        return at(torch.stack(alpha, 1), target.sizes)

    def cost(self, target: Parts, scores: Tensor, table: Tensor | None = None) -> Tensor:
        """How many positions of a segment have another label in y, or the sum of their costs."""
        assert target.labels is not None
        each, L = label_costs(target.labels, scores, table), scores.shape[2]
        return F.pad(each, (0, 0, 0, L - 1)).unfold(1, L, 1).cumsum(3).transpose(2, 3)

    def size(self, target: Parts, scores: Tensor) -> Tensor:
        return target.sizes.to(scores)

    def labels(self, phi: Tensor, target: Parts) -> list[list[tuple[int, int, int]]]:
        return [[(t, t + n + 1, k) for t, n, k in (own > 0.5).nonzero().tolist()] for own in phi]
