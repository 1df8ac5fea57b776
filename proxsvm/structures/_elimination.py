"""The sum over all spanning trees with one child of the root."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.jit import has_numba
from proxsvm._scores import FORBIDDEN


def log_z(u: Tensor, sizes: Tensor) -> Tensor:
    """log Z of scores ``[B, T + 1, T + 1]``; on a CPU, if numba can be used, by the compiled loop."""
    if u.is_cpu and not torch.compiler.is_compiling() and has_numba():
        try:
            return Eliminated.apply(u, sizes)  # type: ignore[no-any-return, no-untyped-call]
        except RuntimeError:  # inside a transform of torch.func, whose tensors have no memory
            pass
    return by_elimination(u, sizes)


def shifted(u: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the arcs, exp of the scores less the largest of each word's heads; and these, ``[B, T + 1]``."""
    most = u.detach().amax(1).clamp(min=FORBIDDEN / 2).double()
    return (u - most[:, None]).exp_(), most


def by_elimination(u: Tensor, sizes: Tensor) -> Tensor:
    """Word by word, from the last: its dependents become those of its heads, in proportion to their weights.

    The sum of these weights is a factor of Z. The root is not a head, until a word has no other: one child is its own.
    """
    weights, most = shifted(u)
    total, rooted = most.new_zeros(len(u)), torch.zeros_like(sizes, dtype=torch.bool)
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
    """The same by a compiled loop, with the marginals as its gradient."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, sizes: Tensor) -> Tensor:
        """log Z; the marginals are kept for the backward pass."""
        from proxsvm._kernels.spanning_trees import eliminate

        weights, most = shifted(u)
        total, mu = most.new_empty(len(u)), torch.zeros_like(u, memory_format=torch.contiguous_format)
        eliminate(*(x.contiguous().numpy() for x in (weights, most, sizes, total, mu)))
        ctx.save_for_backward(u, sizes, mu)
        return total.clamp(min=FORBIDDEN).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """g μ; if it shall be differentiated in its turn, that of the plain recursion."""
        u, sizes, mu = ctx.saved_tensors
        if torch.is_grad_enabled():
            return torch.func.vjp(lambda v: by_elimination(v, sizes), u)[1](g)[0], None
        return g[:, None, None] * mu, None
