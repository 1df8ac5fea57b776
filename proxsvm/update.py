"""The two sweeps of a step over the weights: three inner products, then the update in place.

A step is bound by memory and by the number of calls. So large tensors are cut into slices, which stay in the cache
between the calls on them, and small ones are copied side by side, to be one tensor for every call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import TypeVar

import torch
from torch import Tensor

SLICE = 1 << 20  # elements of a slice of a large tensor
SMALL = 1 << 14  # tensors up to here are small: they are copied ...
BUCKET = 1 << 18  # ... into buckets of at most this many elements

PLAIN = frozenset({Tensor, torch.nn.Parameter})  # no subclass with ideas of its own

T = TypeVar("T")


class Bucket:
    """Small tensors of a list, standing at ``at``, and room for their copies side by side."""

    def __init__(self, at: list[int], shapes: Sequence[torch.Size], room: Tensor) -> None:
        self.at, self.shapes = at, [shapes[i] for i in at]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.starts = list(accumulate(self.sizes, initial=0))
        self.w, self.x = (self._copies(part) for part in room)

    @cached_property
    def z(self) -> tuple[Tensor, list[Tensor]]:
        """Room for velocities that do not stand side by side already."""
        return self._copies(torch.empty_like(self.w[0]))

    def _copies(self, room: Tensor) -> tuple[Tensor, list[Tensor]]:
        flat = room[: sum(self.sizes)]
        return flat, [part.view(shape) for part, shape in zip(torch.split(flat, self.sizes), self.shapes, strict=True)]


class Layout:
    """How tensors like ``tensors`` are walked: as ``slices``, (place, start, stop), and as ``buckets``."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        shapes = [t.shape for t in tensors]
        sizes = [shape.numel() for shape in shapes]
        slices, buckets = cut(sizes)
        room = tensors[0].new_empty(2, max((sum(sizes[i] for i in at) for at in buckets), default=0))
        self.slices, self._room = slices, room
        self.buckets = [Bucket(at, shapes, room) for at in buckets]
        self._held: tuple[weakref.ref[Sweep], Bucket] | None = None  # weakly: not to keep gradients alive

    def fill(self, bucket: Bucket, sweep: Sweep) -> None:
        """Copy the sweep's tensors into the bucket's room, unless they are there still: all buckets share the room."""
        if self._held is None or self._held[0]() is not sweep or self._held[1] is not bucket:
            torch._foreach_copy_(bucket.w[1], [sweep.w[i] for i in bucket.at])
            torch._foreach_copy_(bucket.x[1], [sweep.x[i] for i in bucket.at])
            self._held = weakref.ref(sweep), bucket

    def empty(self) -> None:
        """What is in the room is no copy any more."""
        self._held = None

    @cached_property
    def scratch(self) -> Tensor:
        """Room for the step of a slice."""
        return self._room.new_empty(max(stop - start for _, start, stop in self.slices))


def cut(sizes: Sequence[int]) -> tuple[list[tuple[int, int, int]], list[list[int]]]:
    """Slices of the large tensors, and the small ones' places in buckets.

    >>> cut([5, 1_100_000, 7])
    ([(1, 0, 1048576), (1, 1048576, 1100000)], [[0, 2]])
    """
    buckets: list[list[int]] = [[]]
    held = 0
    large = []
    for i, size in enumerate(sizes):
        if size > SMALL:
            large.append(i)
            continue
        if held + size > BUCKET:
            buckets.append([])
            held = 0
        buckets[-1].append(i)
        held += size
    large += [at[0] for at in buckets if len(at) == 1]
    slices = [(i, start, min(start + SLICE, sizes[i])) for i in large for start in range(0, sizes[i] or 1, SLICE)]
    return slices, [at for at in buckets if len(at) > 1]


def part(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Elements of a tensor as a flat one; a view if it is contiguous."""
    flat = tensor.reshape(-1)
    return flat if stop - start == len(flat) else flat[start:stop]


def zeros_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Zeros for each tensor; those of a bucket side by side in one piece of memory, so that a step needs no copy."""
    zeros: dict[int, Tensor] = {}
    if tensors and not torch.compiler.is_compiling() and all(t.is_contiguous() for t in tensors):
        sizes = [t.numel() for t in tensors]
        for at in cut(sizes)[1]:
            parts = torch.split(tensors[0].new_zeros(sum(sizes[i] for i in at)), [sizes[i] for i in at])
            zeros.update({i: part.view(tensors[i].shape) for i, part in zip(at, parts, strict=True)})
    return [
        zeros[i] if i in zeros else torch.zeros_like(t, memory_format=torch.preserve_format)
        for i, t in enumerate(tensors)
    ]


def side_by_side(tensors: Sequence[Tensor], starts: Sequence[int]) -> Tensor | None:
    """Tensors of one dtype as one flat view, where they stand in order in the memory of the first; else None.

    ``starts`` is where each would begin in that view, and its end.
    """
    first = tensors[0]
    if type(first) is not Tensor:  # a subclass may have no memory of its own
        return None
    begin, width, storage = first.data_ptr(), first.itemsize, first.untyped_storage()
    places = [begin + width * start for start in starts]
    end = places.pop()
    if places != list(map(Tensor.data_ptr, tensors)) or end > storage.data_ptr() + storage.nbytes():
        return None
    if not all(map(Tensor.is_contiguous, tensors)):
        return None
    return first.as_strided((starts[-1],), (1,))


class Sweep:
    """Parameters ``w`` and directions ``x`` (two lists of equal shapes, dtype and device), to be walked twice.

    >>> w, x = [torch.ones(2), torch.ones(3)], [torch.full((2,), 2.0), torch.zeros(3)]
    >>> [p.item() for p in Sweep(w, x).products()]
    [8.0, 4.0, 5.0]
    """

    def __init__(self, w: Sequence[Tensor], x: Sequence[Tensor], layout: Layout | None = None) -> None:
        self.w, self.x = w, x
        self._layout = layout

    @property
    def layout(self) -> Layout:
        """How the tensors are walked."""
        if self._layout is None:
            self._layout = Layout(self.w)
        return self._layout

    def products(self, *, with_w: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """⟨x, x⟩, ⟨w, x⟩ and ⟨w, w⟩, accumulated in float32 or better; only the first ``with_w=False``."""
        sums: list[Tensor] = []
        with torch.no_grad():
            for w, x in self._blocks():
                a, b = _wide(w), _wide(x)
                sums += (torch.dot(b, b), torch.dot(a, b), torch.dot(a, a)) if with_w else (torch.dot(b, b),)
        if not with_w:
            total = torch.stack(sums).sum()
            return total, torch.zeros_like(total), torch.zeros_like(total)
        xx, wx, ww = torch.stack(sums).view(-1, 3).sum(0).unbind()
        return xx, wx, ww

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        if torch.compiler.is_compiling():  # the compiler cuts and fuses by itself
            yield from ((w.reshape(-1), x.reshape(-1)) for w, x in zip(self.w, self.x, strict=True))
            return
        for i, start, stop in self.layout.slices:
            yield part(self.w[i], start, stop), part(self.x[i], start, stop)
        for bucket in self.layout.buckets:
            self.layout.fill(bucket, self)
            yield bucket.w[0], bucket.x[0]

    def advance(
        self,
        z: Sequence[Tensor] | None,
        *,
        push: Tensor,
        pull: float | Tensor | None,
        shrink: Tensor | None,
        mu: float,
        skip: Tensor,
    ) -> None:
        """t = push · (x + pull · w);   z ← μ z − t;   w ← shrink · w − t + μ z;   nothing at all where ``skip`` is 1.

        With delta = f · x, push = η f, pull = decay · gamma / f and shrink = 1 − η (1 − gamma) decay this is

            z ← μ z − η (gamma · r + delta),      w ← w − η (r + delta) + μ z.

        To be called under ``no_grad``. w and z change in place; x stays as it is, and may have entries that are not
        finite where the step is skipped.

        Args:
            z: the velocities, or None without momentum.
            push: a 0-dim tensor.
            pull: a number or a 0-dim tensor, or None without weight decay. In a single step f is gamma, so it is decay.
            shrink: a 0-dim tensor, or None without weight decay; must be 1 where ``skip`` is.
            mu: μ.
            skip: a 0-dim float32 tensor, 1 to skip and 0 to step: nobody waits for it.

        >>> w, z, x = [torch.tensor([1.0])], [torch.tensor([0.0])], [torch.tensor([2.0])]
        >>> Sweep(w, x).advance(z, push=torch.tensor(0.1), pull=None, shrink=None, mu=0.5, skip=torch.tensor(0.0))
        >>> w, z                                              # z = −0.2, w = 1 − 0.2 − 0.1
        ([tensor([0.7000])], [tensor([-0.2000])])
        """
        if not self._fusable(z or []):
            return _advance_plainly(self.w, z, self.x, push, pull, shrink, mu, skip)
        # torch's kernel can divide by a scale on its way, in float32
        scale = 1 / push.float() if pull is not None and self.w[0].dtype == torch.float32 else None

        def move(w: Tensor, x: Tensor, velocity: Tensor | None, t: Tensor) -> None:
            if pull is None or shrink is None:
                torch.mul(x, push, out=t)
            else:
                if isinstance(pull, Tensor):
                    torch.add(x, w * pull, out=t)
                else:
                    torch.add(x, w, alpha=pull, out=t)
                if scale is None:
                    t.mul_(push)
                w.mul_(shrink)
            _fused(w, t, velocity, mu, skip, scale)

        for i, start, stop in self.layout.slices:
            velocity = None if z is None else part(z[i], start, stop)
            t = self.layout.scratch[: stop - start]
            move(part(self.w[i], start, stop), part(self.x[i], start, stop), velocity, t)
        for bucket in self.layout.buckets:
            self.layout.fill(bucket, self)
            velocities = [z[i] for i in bucket.at] if z is not None else []
            flat = side_by_side(velocities, bucket.starts) if velocities else None
            apart = flat is None and bool(velocities)
            if apart:
                flat = bucket.z[0]
                torch._foreach_copy_(bucket.z[1], velocities)
            move(bucket.w[0], bucket.x[0], flat, bucket.x[0])
            if apart:
                torch._foreach_copy_(velocities, bucket.z[1])
            torch._foreach_copy_([self.w[i] for i in bucket.at], bucket.w[1])
            self.layout.empty()
        torch.autograd.graph.increment_version(self.w)  # torch's kernel does not tell autograd

    def _fusable(self, z: Sequence[Tensor]) -> bool:
        """Whether torch's fused kernel gives the right numbers.

        In half precision that of torch 2.13 for CPUs does not: nor does SGD(fused=True), which differs from SGD there.
        """
        first = self.w[0]
        return (
            not torch.compiler.is_compiling()
            and first.device.type in ("cpu", "cuda")
            and first.dtype in (torch.float32, torch.float64)
            and {first.dtype}.issuperset(map(attrgetter("dtype"), z))
            and all(t[i].is_contiguous() for t in (self.w, z) if t for i, _, _ in self.layout.slices)
        )


class Sweeps:
    """Makes the sweeps of an optimizer, and keeps from step to step how its tensors are walked."""

    def __init__(self) -> None:
        self._layouts: dict[object, Layout] = {}

    def over(self, w: Sequence[Tensor], x: Sequence[Tensor]) -> Sweep:
        """A sweep over tensors of one dtype on one device."""
        return Sweep(w, x, self.layout(w))

    def layout(self, w: Sequence[Tensor]) -> Layout | None:
        """The layout of tensors like these."""
        if torch.compiler.is_compiling() or type(w[0]) not in PLAIN:
            return None
        return self.kept(self._layouts, (w[0].dtype, w[0].device, *[t.shape for t in w]), lambda: Layout(w))

    @staticmethod
    def kept(store: dict[object, T], key: object, make: Callable[[], T]) -> T:
        """What ``store`` has for ``key``, made if it is missing."""
        if key not in store:
            if len(store) >= 64:  # other gradients are missing at every step: do not collect what is never used again
                store.clear()
            store[key] = make()
        return store[key]


def _fused(w: Tensor, t: Tensor, z: Tensor | None, mu: float, skip: Tensor, scale: Tensor | None) -> None:
    """z ← μ z − t and w ← w − t + μ z, with t / scale for t, by torch's Nesterov step, which looks at ``skip`` itself.

    It climbs along t with a rate of −1, so that its buffer is z and not −z.
    """
    torch._fused_sgd_(
        [w],
        [t],
        [] if z is None else [z],
        weight_decay=0.0,
        momentum=0.0 if z is None else mu,
        lr=-1.0,
        dampening=0.0,
        nesterov=z is not None,
        maximize=True,
        is_first_step=False,
        grad_scale=scale,
        found_inf=skip,
    )


def _advance_plainly(
    w: Sequence[Tensor],
    z: Sequence[Tensor] | None,
    x: Sequence[Tensor],
    push: Tensor,
    pull: float | Tensor | None,
    shrink: Tensor | None,
    mu: float,
    skip: Tensor,
) -> None:
    """The same on any device, for any strides, and for the compiler to fuse."""
    stay = skip != 0
    for i, a in enumerate(w):
        t = x[i] * push if pull is None else x[i] * push + a * (push * pull)
        moved = -t if shrink is None else a * (shrink - 1) - t
        if z is not None:
            velocity = mu * z[i] - t
            z[i].copy_(torch.where(stay, z[i], velocity))
            moved = moved + mu * velocity
        a.copy_(torch.where(stay, a, a + moved))


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
