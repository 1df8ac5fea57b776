"""The two sweeps of a step over the weights: three inner products, then the update in place.

A list of tensors is walked in few flat blocks, because a step is bound by memory and by the number of calls. Large
tensors are cut into slices that stay in the cache between the calls on them; small ones are gathered into one buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SLICE = 1 << 18  # elements of a slice: two in float32 fit into a core's L2 cache of 2 MB
SMALL = 1 << 14  # tensors up to here are gathered ...
BUCKET = 1 << 20  # ... into buckets of at most this many elements


class Block(NamedTuple):
    """Where a block stands in the list: whole small tensors ``at``, or one tensor's elements ``start`` to ``stop``."""

    at: list[int]
    start: int = 0
    stop: int = 0


def layout(tensors: Sequence[Tensor]) -> Iterator[Block]:
    """Cut a list of tensors into blocks."""
    if torch.compiler.is_compiling():  # the compiler fuses by itself
        yield from (Block([i]) for i in range(len(tensors)))
        return
    bucket: list[int] = []
    held = 0
    for i, t in enumerate(tensors):
        size = t.numel()
        if size > SMALL:
            for start in range(0, size, SLICE):
                yield Block([i], start, min(start + SLICE, size))
        else:
            if held + size > BUCKET:
                yield Block(bucket)
                bucket, held = [], 0
            bucket.append(i)
            held += size
    if bucket:
        yield Block(bucket)


def read(tensors: Sequence[Tensor], block: Block) -> Tensor:
    """A block's elements as one flat tensor, for reading only: a view of a slice or of one tensor, else a copy."""
    if block.stop:
        return tensors[block.at[0]].reshape(-1)[block.start : block.stop]
    if len(block.at) == 1:
        return tensors[block.at[0]].reshape(-1)
    flat: Tensor = torch._C._nn.flatten_dense_tensors([tensors[i] for i in block.at])
    return flat


class Sweep:
    """Parameters ``w`` and directions ``x`` (two lists of equal shapes), to be walked twice.

    >>> w, x = [torch.ones(2), torch.ones(3)], [torch.full((2,), 2.0), torch.zeros(3)]
    >>> [p.item() for p in Sweep(w, x).products()]
    [8.0, 4.0, 5.0]
    """

    def __init__(self, w: Sequence[Tensor], x: Sequence[Tensor]) -> None:
        self.w, self.x = w, x
        self.blocks = list(layout(w))
        self._gathered: tuple[Tensor, Tensor] | None = None  # the last bucket, which the second walk needs again

    def _read(self, block: Block) -> tuple[Tensor, Tensor]:
        """The block of w and of x."""
        if block is not self.blocks[-1] or block.stop:
            return read(self.w, block), read(self.x, block)
        if self._gathered is None:
            self._gathered = read(self.w, block), read(self.x, block)
        return self._gathered

    def products(self, *, with_w: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """⟨x, x⟩, ⟨w, x⟩ and ⟨w, w⟩, accumulated in float32 or better; only the first ``with_w=False``."""
        sums: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for block in self.blocks:
                a, b = (_wide(t) for t in self._read(block))
                sums.append((torch.dot(b, b), torch.dot(a, b), torch.dot(a, a)) if with_w else (torch.dot(b, b),))
        totals = [torch.stack(column).sum() for column in zip(*sums, strict=True)]
        zero = torch.zeros_like(totals[0])
        return (totals[0], totals[1], totals[2]) if with_w else (totals[0], zero, zero)

    def advance(
        self,
        z: Sequence[Tensor] | None,
        *,
        push: Tensor,
        pull: Tensor | None,
        shrink: Tensor | None,
        mu: float,
        skip: Tensor,
    ) -> None:
        """t = push · x + pull · w;   z ← μ z − t;   w ← shrink · w − t + μ z;   nothing at all where ``skip`` is 1.

        With push = η f for delta = f · x, pull = η gamma · decay and shrink = 1 − η (1 − gamma) decay this is

            z ← μ z − η (gamma · r + delta),      w ← w − η (r + delta) + μ z.

        To be called under ``no_grad``. w and z change in place; x stays as it is, and may have entries that are not
        finite where the step is skipped.

        Args:
            z: the velocities, or None without momentum.
            push: a 0-dim tensor.
            pull: a 0-dim tensor, or None without weight decay.
            shrink: likewise; must be 1 where ``skip`` is.
            mu: μ.
            skip: a 0-dim float32 tensor, 1 to skip and 0 to step: nobody waits for it.

        >>> w, z, x = [torch.tensor([1.0])], [torch.tensor([0.0])], [torch.tensor([2.0])]
        >>> Sweep(w, x).advance(z, push=torch.tensor(0.1), pull=None, shrink=None, mu=0.5, skip=torch.tensor(0.0))
        >>> w, z                                              # z = −0.2, w = 1 − 0.2 − 0.1
        ([tensor([0.7000])], [tensor([-0.2000])])
        """
        w, x = self.w, self.x
        if not _fusable([*w, *(z or [])]):
            return _advance_plainly(w, z, x, push, pull, shrink, mu, skip)
        scratch = torch.empty(2, min(SLICE, max(a.numel() for a in w)), dtype=w[0].dtype, device=w[0].device)
        for block in self.blocks:
            a, b = self._read(block)
            moving = [a] if block.stop else [w[i] for i in block.at]
            size = block.stop - block.start
            t = torch.mul(b, push, out=scratch[0, :size]) if block.stop else b * push
            if pull is not None and shrink is not None:
                t.add_(torch.mul(a, pull, out=scratch[1, :size]) if block.stop else a * pull)
                torch._foreach_mul_(moving, shrink)
            steps = [t] if block.stop else list(torch._C._nn.unflatten_dense_tensors(t, moving))
            velocities = None if z is None else [read(z, block)] if block.stop else [z[i] for i in block.at]
            _fused(moving, steps, velocities, mu, skip)
        torch.autograd.graph.increment_version([*w, *(z or [])])  # the fused kernel does not tell autograd


def _fusable(tensors: Sequence[Tensor]) -> bool:
    """Whether torch's fused kernel gives the right numbers.

    In half precision that of torch 2.13 for CPUs does not: nor does SGD(fused=True), which differs from SGD there.
    """
    first = tensors[0]
    return (
        not torch.compiler.is_compiling()
        and first.device.type in ("cpu", "cuda")
        and first.dtype in (torch.float32, torch.float64)
        and all(t.is_contiguous() and t.dtype == first.dtype for t in tensors)
    )


def _fused(w: list[Tensor], t: list[Tensor], z: list[Tensor] | None, mu: float, skip: Tensor) -> None:
    """z ← μ z − t and w ← w − t + μ z by torch's fused Nesterov step, which looks at ``skip`` on the device.

    It climbs along t with a rate of −1, so that its buffer is z and not −z.
    """
    torch._fused_sgd_(
        w,
        t,
        [] if z is None else z,
        weight_decay=0.0,
        momentum=0.0 if z is None else mu,
        lr=-1.0,
        dampening=0.0,
        nesterov=z is not None,
        maximize=True,
        is_first_step=False,
        grad_scale=None,
        found_inf=skip,
    )


def _advance_plainly(
    w: Sequence[Tensor],
    z: Sequence[Tensor] | None,
    x: Sequence[Tensor],
    push: Tensor,
    pull: Tensor | None,
    shrink: Tensor | None,
    mu: float,
    skip: Tensor,
) -> None:
    """The same on any device, for any strides, and for the compiler to fuse."""
    stay = skip != 0
    for i, a in enumerate(w):
        t = x[i] * push if pull is None else x[i] * push + a * pull
        moved = -t if shrink is None else a * (shrink - 1) - t
        if z is not None:
            velocity = mu * z[i] - t
            z[i].copy_(torch.where(stay, z[i], velocity))
            moved = moved + mu * velocity
        a.copy_(torch.where(stay, a, a + moved))


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
