"""Dependency trees: every word has one head, another word or the root, and one word has the root as its head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, integer_target, one_hot, require
from proxsvm.structures._checks import before, check_parts, check_sizes
from proxsvm.structures.base import Parts, PartStructure


class Dependencies(PartStructure):
    """score(y) = Σ_m scores[head(m), m] over the words m = 1 … T; node 0 is the root.

    Scores ``[B, T + 1, T + 1]``, or ``[B, T + 1, T + 1, R]`` for arcs with R labels. Target: heads ``[B, T]`` of the
    words 1 … T, or ``(heads, lengths)``; with labels ``(heads, labels)`` or ``(heads, labels, lengths)``. Δ is the
    number of wrong arcs. ``decode`` returns heads, or (heads, labels), 0 on padding.
    """

    def prepare(self, name: str, scores: Any, target: Any, *, lengths: Any = None) -> tuple[Tensor, Parts]:
        """Arcs that no tree has, into the root and from a word to itself, are forbidden."""
        labelled = isinstance(scores, Tensor) and scores.dim() == 4
        u = check_parts(name, scores, "[B, T + 1, T + 1, R]" if labelled else "[B, T + 1, T + 1]")
        B, N = u.shape[:2]
        if N < 2:
            raise ValueError(f"{name} got scores of shape {tuple(u.shape)}; expected T + 1 ≥ 2, with T ≥ 1 words")
        given = target if isinstance(target, (tuple, list)) else (target,)
        if target is not None:
            if len(given) - labelled not in (1, 2):
                expected = "heads, labels" if labelled else "heads"
                raise TypeError(f"{name} got a target that is not ({expected}[, lengths])")
            lengths = given[-1] if len(given) - labelled == 2 else None
        sizes, node = check_sizes(name, lengths, (N - 1,), u), torch.arange(N, device=u.device)
        below_root = node > 0
        word, arcs = below_root.expand(B, N), below_root & (node[:, None] != node)
        if lengths is not None:
            word = word & (node <= sizes[:, None])
            arcs = arcs & word[:, None] & (word | (node == 0))[..., None]
        u = torch.where(arcs[..., None] if labelled else arcs, u, FORBIDDEN)  # faster than masked_fill
        if target is None:
            return u, Parts(torch.zeros_like(u), sizes)

        def of_words(x: Any, what: str) -> Tensor:
            padded = F.pad(integer_target(name, x, (B, N - 1), what), (1, 0))
            return padded if lengths is None else torch.where(word, padded, 0)

        heads = of_words(given[0], "heads")
        require((heads >= 0) & (heads <= sizes[:, None]), f"{name} got a head that is neither the root nor a word")
        phi = u.new_zeros(B, N, N).scatter(1, heads[:, None], word[:, None].to(u))
        require(phi[:, 0].sum(1) == 1, f"{name} got a sentence with no root or a second one; expected one head of 0")
        self.check(name, heads)
        if labelled:
            R, labels = u.shape[3], of_words(given[1], "labels")
            require((labels >= 0) & (labels < R), f"{name} got a label outside [0, {R}), the R of the scores")
            phi = phi[..., None] * one_hot(u, labels, R)[:, None]
        return u, Parts(phi, sizes)

    def check(self, name: str, heads: Tensor) -> None:
        """Raise ValueError unless the heads of the nodes, ``[B, T + 1]``, lead to node 0, whose own is 0."""
        for _ in range(heads.shape[1].bit_length()):  # every pass doubles the number of arcs that are climbed
            heads = heads.gather(1, heads)
        require(heads == 0, f"{name} got heads with a cycle: the root is not reached from some word")

    def labels(self, phi: Tensor, target: Parts) -> Any:
        real = before(phi.shape[1] - 1, target.sizes)
        arcs = phi[:, :, 1:] if phi.dim() == 3 else phi[:, :, 1:].amax(3)
        heads = arcs.argmax(1) * real
        return heads if phi.dim() == 3 else (heads, phi[:, :, 1:].amax(1).argmax(2) * real)
