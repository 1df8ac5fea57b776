"""Dependency trees with crossing arcs: all of them by elimination, the best by Chu-Liu-Edmonds' algorithm."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.jit import has_numba
from proxsvm._scores import FORBIDDEN, inner, known, one_hot
from proxsvm.structures._checks import before
from proxsvm.structures.base import Parts, gradient
from proxsvm.structures.combinatorial import as_array, best_heads
from proxsvm.structures.dependencies import Dependencies
from proxsvm.structures.semirings import KBest, Reduce, Sampled, log_sum_exp, maximum

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
        if reduce is maximum:
            return super().total(scores, target, reduce)
        u = scores if scores.dim() == 3 else reduce(scores, 3)
        if reduce is log_sum_exp:
            return log_z(u, target.sizes)
        assert isinstance(reduce, Sampled)
        return inner(self._draw(u.detach(), target, reduce) * before(u.shape[2], target.sizes + 1)[:, None], u)

    def best(self, scores: Tensor, target: Parts) -> Tensor:
        """By Chu-Liu-Edmonds' algorithm, with root scores so low that one of them is used."""
        u, label = (scores, None) if scores.dim() == 3 else scores.max(3)
        arrays = as_array(u)
        heads = torch.zeros(u.shape[:2], dtype=torch.long)
        for b, n in enumerate(target.sizes.tolist()):
            heads[b, 1 : n + 1] = torch.from_numpy(best_heads(arrays[b, : n + 1, : n + 1]))
        word = before(u.shape[2], target.sizes + 1) & (torch.arange(u.shape[2], device=u.device) > 0)
        found = one_hot(u, heads.to(u.device), u.shape[1]).transpose(1, 2) * word[:, None]
        return found if label is None else found[..., None] * one_hot(u, label, scores.shape[3])

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
    if known(u[0, 0, 0]) is not None and has_numba():  # under vmap no value is known
        return Eliminated.apply(u, sizes)[0]  # type: ignore[no-any-return, no-untyped-call]
    return by_elimination(u, sizes)


def by_elimination(u: Tensor, sizes: Tensor) -> Tensor:
    """Word by word, from the last: its dependents become those of its heads, in proportion to their weights.

    The sum of these weights is a factor of Z. The root is not a head, until a word has no other: one child is its own.
    """
    w, rooted = u.double(), torch.zeros_like(sizes, dtype=torch.bool)  # w: the logarithms of the weights
    total = w.new_zeros(len(u))
    for k in reversed(range(1, u.shape[1])):
        heads, word, root = w[:, :k, k], k <= sizes, torch.arange(k, device=u.device) == 0
        child = word & ~rooted & (heads[:, 1:] <= FORBIDDEN / 2).all(1)
        rooted = rooted | child
        s = torch.where(root & ~rooted[:, None], FORBIDDEN, heads).logsumexp(1)
        total = total + torch.where(word, s, 0.0)
        moved = (heads - s[:, None])[:, :, None] + w[:, k, None, :k]
        both = torch.stack([w[:, :k, :k], moved]).logsumexp(0)  # logaddexp has no second derivative at such differences
        w = torch.where(child[:, None, None] & root[:, None], moved, both)
    return total.clamp(min=FORBIDDEN).to(u.dtype)


class Eliminated(torch.autograd.Function):
    """log Z by a compiled loop, and its gradient, the marginals.

    The loop adds up weights, not their logarithms: where some underflow, or are forbidden, it is the plain recursion.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        from proxsvm._kernels.spanning_trees import eliminate

        most = u.detach().max(1).values.clamp_(min=FORBIDDEN / 2)  # amax takes twice as long
        weights = (u - most[:, None]).double().mul_(LOG2_E).exp2_()  # exp takes three times as long
        total, mu = u.new_empty(len(u)), torch.zeros_like(u, memory_format=torch.contiguous_format)
        eliminate(*(x.contiguous().numpy() for x in (weights, most, sizes, total, mu)))
        if not total.isfinite().all():
            found: Any = torch.func.vjp(lambda v: by_elimination(v, sizes), u)
            total, (mu,) = found[0], found[1](torch.ones_like(total))
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


# Every apply() asks for it.
Eliminated.forward.__signature__ = inspect.signature(Eliminated.forward)  # type: ignore[attr-defined]
