"""Dependency trees with crossing arcs: the matrix-tree theorem, and Chu-Liu-Edmonds' algorithm."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, detached, inner
from proxsvm.structures._parts import Parts, one_hot
from proxsvm.structures.base import Reduce, maximum
from proxsvm.structures.dependencies import Dependencies

Array: TypeAlias = "np.ndarray[Any, Any]"


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
        """log det of the Laplacian with the root's scores in its first row, or the score of the best tree."""
        if reduce is maximum:
            return inner(self.best(detached(scores), target), scores)
        u = (scores if scores.dim() == 3 else reduce(scores, 3))[:, :, 1:].double()
        word = torch.arange(u.shape[2], device=u.device) < target.sizes[:, None]
        most = torch.where(word, u.detach().amax(1), 0.0)  # every word has one head: a column may be shifted
        weight = (u - most[:, None]).exp()  # 0 on padding, where all arcs are forbidden
        arc = weight[:, 1:]
        laplacian = torch.diag_embed(arc.sum(1) + ~word) - arc
        laplacian = torch.cat([weight[:, :1], laplacian[:, 1:]], 1)
        sign, log_det = torch.linalg.slogdet(laplacian)
        total: Tensor = torch.where(sign > 0, log_det + most.sum(1), FORBIDDEN)
        return total.to(scores.dtype)

    def best(self, scores: Tensor, target: Parts) -> Tensor:
        """By Chu-Liu-Edmonds' algorithm, with root scores so low that one of them is used."""
        u = scores if scores.dim() == 3 else scores.amax(3)
        arrays, sizes = u.detach().double().nan_to_num(posinf=-FORBIDDEN).cpu().numpy(), target.sizes.tolist()
        heads = torch.zeros(u.shape[0], u.shape[1] - 1, dtype=torch.long)
        for b, n in enumerate(sizes):
            heads[b, :n] = torch.from_numpy(best_heads(arrays[b, : n + 1, : n + 1]))
        heads = heads.to(u.device)
        word = torch.arange(heads.shape[1], device=u.device) < target.sizes[:, None]
        phi = F.pad(one_hot(u, heads, u.shape[1]).transpose(1, 2) * word[:, None], (1, 0))
        return phi if scores.dim() == 3 else phi[..., None] * one_hot(u, scores.argmax(3), scores.shape[3])


def best_heads(scores: Array) -> Array:
    """The heads of the words of the best tree with one child of the root, for scores ``[T + 1, T + 1]``.

    >>> best_heads(np.array([[0.0, 2.0, 2.5], [0.0, 0.0, 3.0], [0.0, 2.0, 0.0]]))      # 2 + 3, and not 2.5 + 2
    array([0, 1])
    """
    s = np.maximum(scores, FORBIDDEN)
    np.fill_diagonal(s, -np.inf)
    s[:, 0] = -np.inf
    usual = s[:, 1:][s[:, 1:] > FORBIDDEN / 2]
    spread = 1 + (len(s) * (usual.max() - usual.min()) if len(usual) else 0)
    s = np.where(s > FORBIDDEN / 2, s, (usual.min() if len(usual) else 0) - len(s) * 2 * spread)
    np.fill_diagonal(s, -np.inf)
    s[0, 1:] -= spread
    return _arborescence(s)[1:]


def _arborescence(s: Array) -> Array:
    """The best head of every node, −1 of the root 0: take the best arcs, contract a cycle, and repeat."""
    heads = s.argmax(0)
    heads[0] = -1
    cycle = _cycle(heads)
    if cycle is None:
        return np.asarray(heads)
    inside = np.zeros(len(s), dtype=bool)
    inside[cycle] = True
    outside = np.flatnonzero(~inside)
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
    seen = np.zeros(len(heads), dtype=int)
    for start in range(1, len(heads)):
        v = start
        while v > 0 and not seen[v]:
            seen[v], v = start, heads[v]
        if v > 0 and seen[v] == start:
            cycle = [v]
            while heads[cycle[-1]] != v:
                cycle.append(heads[cycle[-1]])
            return np.array(cycle)
    return None
