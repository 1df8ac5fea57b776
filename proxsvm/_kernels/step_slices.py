"""The passes of a step in torch's own operations, slice by slice: for CPUs without numba.

An operation over all parameters reads them from memory, and so does the next one. Here all operations run on one slice
while it is in the cache, and small tensors are grouped. The scalars are Python floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from proxsvm._kernels.passes import Moments, Passes, Sums, Tensors, Update, compare
from proxsvm._numbers import to_float

SLICE = 1 << 17  # elements

Piece: TypeAlias = "tuple[range, slice]"  # some whole tensors, or a slice of one


class _Stream:
    """Flattened tensors: views, or copies of those that are not contiguous."""

    def __init__(self, tensors: Tensors) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        if all(map(Tensor.is_contiguous, tensors)) and not any(map(Tensor.is_neg, tensors)):
            self.flats = [t.view(-1) for t in tensors]
        else:
            self.flats = [t.reshape(-1).resolve_neg() for t in tensors]
            pairs = zip(tensors, self.flats, strict=True)
            self._copies = [(t, flat) for t, flat in pairs if t.numel() and t.data_ptr() != flat.data_ptr()]

    def read(self, piece: Piece) -> Tensor:
        """A piece as one flat tensor."""
        at, part = piece
        return self.flats[at[0]][part] if len(at) == 1 else torch.cat([self.flats[i] for i in at])

    def write(self, piece: Piece, flat: Tensor) -> None:
        """Write back a piece that :meth:`read` has copied."""
        at, _ = piece
        if len(at) > 1:
            own = [self.flats[i] for i in at]
            torch._foreach_copy_(own, list(torch.split(flat, [t.numel() for t in own])))

    def close(self) -> None:
        """Write the copies back."""
        for t, flat in self._copies:
            t.copy_(flat.view(t.shape))


class SlicedPasses(Passes):
    """float32 and float64 on the CPU; no temporary memory beyond that of a slice."""

    def __init__(self, w: Tensors, x: Tensors, moments: Moments | None = None) -> None:
        compare("gradient", w, x)
        self._given, self._w, self._x = w, _Stream(w), _Stream(x)
        self._moments, self._v = moments, None
        if moments is not None:
            compare("second moment", w, moments.v)
            self._v = _Stream(moments.v)

    def _pieces(self) -> Iterator[Piece]:
        first, size = 0, 0
        sizes = [t.numel() for t in self._w.flats]
        for i, n in enumerate([*sizes, SLICE + 1]):  # the last one closes the group
            if size + n > SLICE:
                if first < i:
                    yield range(first, i), slice(None)
                first, size = i, 0
            if n > SLICE and i < len(sizes):
                yield from ((range(i, i + 1), slice(a, b)) for a, b in pairwise([*range(0, n, SLICE), n]))
                first = i + 1
            else:
                size += n

    def _moved(self, v: Tensor, x: Tensor) -> Tensor:
        """v' = β₂ v + (1 − β₂) (scale · x)²."""
        assert self._moments is not None
        beta2, scale = self._moments.beta2, to_float(self._moments.scale)
        return (v * beta2).addcmul_(x, x, value=(1 - beta2) * scale * scale)

    def _M(self, moved: Tensor) -> Tensor:
        """√(correction · v') + eps."""
        assert self._moments is not None
        return (moved * to_float(self._moments.correction)).sqrt_().add_(self._moments.eps)

    def products(self, with_w: bool = True, start: Tensors | None = None) -> Sums:
        """The inner products as Python floats."""
        began = None
        if start is not None:
            compare("start", self._given, start)
            began = _Stream(start)
        sums = [0.0, 0.0, 0.0, 0.0]
        for piece in self._pieces():
            w, x = self._w.read(piece), self._x.read(piece)
            M = None if self._v is None else self._M(self._moved(self._v.read(piece), x))
            sums[0] += _dot(x, x if M is None else x / M)
            if with_w:
                sums[1] += _dot(w, x)
                sums[2] += _dot(w, w if M is None else w * M)
            if began is not None:
                u = w - began.read(piece)
                sums[3] += _dot(u, u if M is None else u * M)
        return Sums(*sums)

    def advance(self, z: Tensors | None, average: Tensors | None, update: Update) -> None:
        """Change everything in place."""
        for what, tensors in (("velocity", z), ("average", average)):
            if tensors is not None:
                compare(what, self._given, tensors)
        if to_float(update.skip):
            return
        push, lift, drop, mu, rate = (to_float(c) for c in update[:5])
        speed, mean = (None if t is None else _Stream(t) for t in (z, average))
        sgd = getattr(torch, "_fused_sgd_", None)  # private
        for piece in self._pieces():
            w, x = self._w.read(piece), self._x.read(piece)
            if self._v is not None:
                v = self._v.read(piece)
                moved = self._moved(v, x)
                x = x / self._M(moved)
                self._v.write(piece, v.copy_(moved))
            t = None if speed is None else speed.read(piece)
            if sgd is None or push == 0 or drop >= 0.5:
                _move(w, x, t, push, lift, drop, mu)
            else:
                _move_by_sgd(sgd, w, x, t, push, lift, drop, mu)
            self._w.write(piece, w)
            if speed is not None and t is not None:
                speed.write(piece, t)
            if mean is not None:
                mean.write(piece, mean.read(piece).lerp_(w, rate))
        for stream in (self._w, self._v, speed, mean):
            if stream is not None:
                stream.close()


def _move(w: Tensor, x: Tensor, z: Tensor | None, push: float, lift: float, drop: float, mu: float) -> None:
    """z ← μ z − push · x − lift · w and w ← w − drop · w − push · x + μ z, in six passes."""
    if z is not None:
        z.mul_(mu).add_(x, alpha=-push).add_(w, alpha=-lift)
    w.mul_(1 - drop).add_(x, alpha=-push)
    if z is not None:
        w.add_(z, alpha=mu)


def _move_by_sgd(
    sgd: Callable[..., None], w: Tensor, x: Tensor, z: Tensor | None, push: float, lift: float, drop: float, mu: float
) -> None:
    """The same in two, with torch's fused SGD: b ← momentum · b + (1 − dampening) (x + decay · w) and w ← w − lr · b.

    First w' = w − drop · w − push · x. With k = lift / (1 − drop) and c = push (1 + k), push · x + lift · w is
    c x + k w', so z ← μ z − c (x + k/c w') and w ← w' + μ z are a step with lr = −μ.
    """
    rest = {"nesterov": False, "maximize": False, "is_first_step": False}
    sgd([w], [x], [], weight_decay=drop / push, momentum=0.0, lr=push, dampening=0.0, **rest)
    if z is not None:
        k = lift / (1 - drop)
        c = push * (1 + k)
        sgd([w], [x], [z], weight_decay=k / c, momentum=mu, lr=-mu, dampening=1 + c, **rest)


def _dot(a: Tensor, b: Tensor) -> float:
    return to_float(torch.dot(a, b))
