"""Dependency trees with crossing arcs: all of them by elimination, the best by Chu-Liu-Edmonds' algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN, inner, one_hot
from proxsvm.structures._checks import before
from proxsvm.structures._elimination import log_z
from proxsvm.structures._parts import Parts
from proxsvm.structures.base import gradient
from proxsvm.structures.combinatorial import as_array, best_heads
from proxsvm.structures.dependencies import Dependencies
from proxsvm.structures.semirings import KBest, Reduce, Sampled, log_sum_exp


class SpanningTree(Dependencies):
    """All dependency trees with one child of the root: scores, targets and Δ as in :class:`Dependencies`.

    The sum over all trees is a determinant (Koo, Globerson, Carreras and Collins, Structured prediction models via the
    matrix-tree theorem, EMNLP 2007), computed in float64 by an elimination that subtracts nothing, so that large scores
    lose no digits (Grassmann, Taksar and Heyman, 1985). The best tree is found on the CPU.

    >>> from proxsvm.losses import CRF
    >>> value = CRF(SpanningTree())(torch.zeros(1, 3, 3), torch.tensor([[0, 1]]))
    >>> torch.exp(-value)                                            # one of two trees
    tensor(0.5000)
    """

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """log Z, or the score of the best or drawn tree."""
        if isinstance(reduce, KBest):
            raise NotImplementedError("SpanningTree has no recursion that finds the k best trees: use ProjectiveTree")
        u = scores if scores.dim() == 3 else reduce(scores, 3)
        if reduce is log_sum_exp:
            return log_z(u, target.sizes)
        found = self._draw(u.detach(), target, reduce) if isinstance(reduce, Sampled) else self._best(u, target)
        return inner(found * before(u.shape[2], target.sizes + 1)[:, None], u)

    def _best(self, u: Tensor, target: Parts) -> Tensor:
        """By Chu-Liu-Edmonds' algorithm, with root scores so low that one of them is used."""
        arrays = as_array(u)
        heads = torch.zeros(u.shape[:2], dtype=torch.long)
        for b, n in enumerate(target.sizes.tolist()):
            heads[b, 1 : n + 1] = torch.from_numpy(best_heads(arrays[b, : n + 1, : n + 1]))
        found = one_hot(u, heads.to(u.device), u.shape[1]).transpose(1, 2)
        return found * (torch.arange(u.shape[2], device=u.device) > 0)

    def _draw(self, u: Tensor, target: Parts, drawn: Sampled) -> Tensor:
        """Word by word, from the marginals given the heads of the words before: T sums over all trees."""
        node = torch.arange(u.shape[2], device=u.device)
        for m in node[1:]:
            marginals = gradient(lambda v: log_z(v, target.sizes), u)[:, :, m].clamp(min=0)
            head = drawn.index(marginals, 1)
            u = torch.where((node == m) & (node[:, None] != head[..., None]), FORBIDDEN, u)
        return (u > FORBIDDEN / 2).to(u)
