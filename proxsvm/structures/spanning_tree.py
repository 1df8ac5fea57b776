"""Dependency trees with crossing arcs: all of them by elimination, the best by Chu-Liu-Edmonds' algorithm."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.jit import has_numba
from proxsvm._scores import FORBIDDEN, inner, one_hot
from proxsvm.structures._checks import before
from proxsvm.structures.base import Parts, gradient
from proxsvm.structures.combinatorial import as_array, best_heads
from proxsvm.structures.dependencies import Dependencies
from proxsvm.structures.semirings import KBest, Reduce, Sampled, log_sum_exp

LOG2_E = 1 / math.log(2)


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


def log_z(u: Tensor, sizes: Tensor) -> Tensor:
    """log Z of scores ``[B, T + 1, T + 1]``; on a CPU, if numba can be used, by the compiled loop."""
    if u.is_cpu and not torch.compiler.is_compiling() and has_numba():
        return Eliminated.apply(u, sizes)[0]  # type: ignore[no-any-return, no-untyped-call]
    return by_elimination(u, sizes)


def shifted(u: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the arcs, exp of the scores less the largest of each word's heads; and these, ``[B, T + 1]``."""
    most = u.detach().max(1).values.clamp_(min=FORBIDDEN / 2)  # amax takes twice as long
    return (u - most[:, None]).double().mul_(LOG2_E).exp2_(), most  # exp takes three times as long


def by_elimination(u: Tensor, sizes: Tensor) -> Tensor:
    """Word by word, from the last: its dependents become those of its heads, in proportion to their weights.

    The sum of these weights is a factor of Z. The root is not a head, until a word has no other: one child is its own.
    """
    weights, most = shifted(u)
    total, rooted = weights.new_zeros(len(u)), torch.zeros_like(sizes, dtype=torch.bool)
    for k in reversed(range(1, u.shape[1])):
        heads, word = weights[:, :k, k], k <= sizes
        s = heads[:, 1:].sum(1)
        child = word & ~rooted & (s == 0)
        rooted = rooted | child
        s = s + torch.where(rooted, heads[:, 0], 0.0)
        none = s == 0
        s = torch.where(none, 1.0, s)
        total = total + torch.where(word, s.log() + most[:, k] + none * FORBIDDEN, 0.0)
        dropped = child[:, None, None] & (torch.arange(k, device=u.device) == 0)[:, None]
        moved = (heads / s[:, None])[:, :, None] * weights[:, k, None, :k]
        weights = torch.where(dropped, 0.0, weights[:, :k, :k]) + moved
    return total.clamp(min=FORBIDDEN).to(u.dtype)


class Eliminated(torch.autograd.Function):
    """log Z by a compiled loop, and its gradient, the marginals."""

    @staticmethod
    def forward(u: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        from proxsvm._kernels.spanning_trees import eliminate

        weights, most = shifted(u)
        total, mu = u.new_empty(len(u)), torch.zeros_like(u, memory_format=torch.contiguous_format)
        eliminate(*(x.contiguous().numpy() for x in (weights, most, sizes, total, mu)))
        return total, mu

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, None]:
        """g μ; if it shall be differentiated in its turn, that of the plain recursion."""
        u, sizes, mu = ctx.saved_tensors
        if torch.is_grad_enabled():
            return torch.func.vjp(lambda v: by_elimination(v, sizes), u)[1](g)[0], None
        return g[:, None, None] * mu, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Tensor) -> Any:
        n = info.batch_size
        each = [x.expand(n, *x.shape) if d is None else x.movedim(d, 0) for x, d in zip(inputs, in_dims, strict=True)]
        found = Eliminated.apply(*(x.flatten(0, 1) for x in each))  # type: ignore[no-untyped-call]
        return tuple(x.unflatten(0, each[0].shape[:2]) for x in found), (0, 0)


# Every apply() asks for it.
Eliminated.forward.__signature__ = inspect.signature(Eliminated.forward)  # type: ignore[attr-defined]
