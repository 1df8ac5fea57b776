"""Dependency trees with crossing arcs: the matrix-tree theorem, and Chu-Liu-Edmonds' algorithm."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from proxsvm._scores import FORBIDDEN, inner, one_hot
from proxsvm.structures._parts import Array, Parts, before, lowered
from proxsvm.structures.base import gradient
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


def best_heads(scores: Array) -> Array:
    """The heads of the words of the best tree with one child of the root, for scores ``[T + 1, T + 1]``.

    >>> best_heads(np.array([[0.0, 2.0, 2.5], [0.0, 0.0, 3.0], [0.0, 2.0, 0.0]]))      # 2 + 3, and not 2.5 + 2
    array([0, 1])
    """
    N = len(scores)
    s, spread = lowered(scores, 2 * N**2)
    np.fill_diagonal(s, -np.inf)
    s[:, 0] = -np.inf
    s[0, 1:] -= N * spread  # a second child of the root costs more than any other arc gains
    return _arborescence(s)[1:]


def _arborescence(s: Array) -> Array:
    """The best head of every node, −1 of the root 0: take the best arcs, contract a cycle, and repeat."""
    heads = s.argmax(0)
    heads[0] = -1
    cycle = _cycle(heads)
    if cycle is None:
        return np.asarray(heads)
    outside = np.setdiff1d(np.arange(len(s)), cycle)
    # The cycle is one node, last: an arc into it replaces the arc of its word, an arc out of it has the best tail.
    into = s[np.ix_(outside, cycle)] - s[heads[cycle], cycle]
    out = s[np.ix_(cycle, outside)]
    smaller = np.full((len(outside) + 1,) * 2, -np.inf)
    smaller[:-1, :-1], smaller[:-1, -1], smaller[-1, :-1] = s[np.ix_(outside, outside)], into.max(1), out.max(0)
    found = _arborescence(smaller)
    entry = cycle[into.argmax(1)[found[-1]]]
    tails = np.append(outside, -1)[found[:-1]]
    of_cycle = found[:-1] == len(outside)
    tails[of_cycle] = cycle[out.argmax(0)[of_cycle]]
    tails[0] = -1
    heads[outside], heads[entry] = tails, outside[found[-1]]
    return np.asarray(heads)


def _cycle(heads: Array) -> Array | None:
    """The nodes of a cycle of heads, or None."""
    up = np.maximum(heads, 0)
    for _ in range(len(heads).bit_length()):  # every pass doubles the number of arcs that are climbed
        up = up[up]
    if not up.any():
        return None
    cycle = [up.max()]  # climbed so far that it is on a cycle
    while heads[cycle[-1]] != cycle[0]:
        cycle.append(heads[cycle[-1]])
    return np.array(cycle)
