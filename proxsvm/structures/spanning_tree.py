"""Dependency trees with crossing arcs: the matrix-tree theorem, and Chu-Liu-Edmonds' algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN, inner, one_hot
from proxsvm.structures._checks import before
from proxsvm.structures._parts import Parts
from proxsvm.structures.base import gradient
from proxsvm.structures.combinatorial import best_heads
from proxsvm.structures.dependencies import Dependencies
from proxsvm.structures.semirings import KBest, Reduce, Sampled, log_sum_exp


class SpanningTree(Dependencies):
    """All dependency trees with one child of the root: scores, targets and Δ as in :class:`Dependencies`.

    The sum over all trees is a determinant, computed in float64 (Koo, Globerson, Carreras and Collins, Structured
    prediction models via the matrix-tree theorem, EMNLP 2007); the best tree is found on the CPU.

    >>> from proxsvm.losses import CRF
    >>> value = CRF(SpanningTree())(torch.zeros(1, 3, 3), torch.tensor([[0, 1]]))
    >>> torch.exp(-value)                                            # one of two trees
    tensor(0.5000)
    """

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """log det of the Laplacian with the root's scores in its first row, or the score of the best or drawn tree."""
        if isinstance(reduce, KBest):
            raise NotImplementedError("SpanningTree has no recursion that finds the k best trees: use ProjectiveTree")
        u = scores if scores.dim() == 3 else reduce(scores, 3)
        if reduce is log_sum_exp:
            return self._log_z(u, target)
        found = self._draw(u.detach(), target, reduce) if isinstance(reduce, Sampled) else self._best(u, target)
        return inner(found * before(u.shape[2], target.sizes + 1)[:, None], u)

    def _log_z(self, u: Tensor, target: Parts) -> Tensor:
        weights = u.double()[:, :, 1:]
        word = before(weights.shape[2], target.sizes)
        most = torch.where(word, weights.detach().amax(1), 0.0)  # every word has one head: a column may be shifted
        weights = (weights - most[:, None]).exp()
        arcs = weights[:, 1:]
        laplacian = torch.diag_embed(arcs.sum(1) + ~word) - arcs
        sign, log_det = torch.linalg.slogdet(torch.cat([weights[:, :1], laplacian[:, 1:]], 1))
        return torch.where(sign > 0, log_det + most.sum(1), FORBIDDEN).to(u.dtype)

    def _best(self, u: Tensor, target: Parts) -> Tensor:
        """By Chu-Liu-Edmonds' algorithm, with root scores so low that one of them is used."""
        arrays = u.detach().double().nan_to_num(posinf=-FORBIDDEN).cpu().numpy()
        heads = torch.zeros(u.shape[:2], dtype=torch.long)
        for b, n in enumerate(target.sizes.tolist()):
            heads[b, 1 : n + 1] = torch.from_numpy(best_heads(arrays[b, : n + 1, : n + 1]))
        found = one_hot(u, heads.to(u.device), u.shape[1]).transpose(1, 2)
        return found * (torch.arange(u.shape[2], device=u.device) > 0)

    def _draw(self, u: Tensor, target: Parts, drawn: Sampled) -> Tensor:
        """Word by word, from the marginals given the heads of the words before: T determinants."""
        node = torch.arange(u.shape[2], device=u.device)
        for m in node[1:]:
            marginals = gradient(lambda v: self._log_z(v, target), u)[:, :, m].clamp(min=0)
            head = drawn.index(marginals, 1)
            u = torch.where((node == m) & (node[:, None] != head[..., None]), FORBIDDEN, u)
        return (u > FORBIDDEN / 2).to(u)
