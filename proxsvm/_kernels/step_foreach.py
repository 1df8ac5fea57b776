"""The passes of a step in a fixed number of torch's own operations, on any device and in any precision.

They all work on one flat buffer of the size of the parameters, which holds one vector at a time; a diagonal metric
needs a second one. So the number of calls does not depend on the number of tensors, and the host reads nothing: at most
30 calls for both passes, 40 in a diagonal metric. Every update subtracts a difference, which is 0 where the step is
skipped: then no bit changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm._kernels.passes import Moments, Passes, Sums, Tensors, Update, compare
from proxsvm._kernels.tensors import accumulator
from proxsvm._numbers import Number


class _Buffer:
    """A flat buffer for one vector, accumulated in float32 or better, and its views in the parameters' shapes."""

    def __init__(self, w: Tensors) -> None:
        sizes, first = [t.numel() for t in w], w[0]
        self.flat = torch.empty(sum(sizes), dtype=accumulator(first.dtype), device=first.device)
        self.views = [part.view(t.shape) for part, t in zip(torch.split(self.flat, sizes), w, strict=True)]

    def load(self, tensors: Tensors) -> Tensor:
        torch._foreach_copy_(self.views, list(tensors))
        return self.flat


class ForeachPasses(Passes):
    """One temporary copy of the parameters, two in a diagonal metric: every inner product needs M."""

    def __init__(self, w: Tensors, x: Tensors, moments: Moments | None = None) -> None:
        compare("gradient", w, x)
        self.w, self.x = [t.detach() for t in w], [t.detach() for t in x]
        self._buffer, self._moments = _Buffer(w), moments
        self._holds_x = False  # whether the buffer holds x, or x/√M
        self._other: _Buffer | None = None  # 1/√M
        if moments is not None:
            compare("second moment", w, moments.v)
            self._other = _Buffer(w)
            torch._foreach_lerp_(self._squares(self._other, moments), list(moments.v), moments.beta2)
            self._other.flat.mul_(self._on(moments.correction)).sqrt_().add_(moments.eps).rsqrt_()

    def _on(self, c: Number) -> Number:
        """A scalar on the device of the parameters."""
        return c.to(self._buffer.flat.device) if isinstance(c, Tensor) else c

    def _squares(self, buffer: _Buffer, moments: Moments) -> list[Tensor]:
        """(scale · x)²."""
        flat, scale = buffer.load(self.x), self._on(moments.scale)
        (flat if _is(scale, 1.0) else flat.mul_(scale)).square_()
        return buffer.views

    def _load_x(self) -> Tensor:
        """x, or x/√M."""
        if self._holds_x:
            self._holds_x = False
            return self._buffer.flat
        flat = self._buffer.load(self.x)
        return flat if self._other is None else flat.mul_(self._other.flat)

    def products(self, with_w: bool = True, start: Tensors | None = None) -> Sums:
        """The inner products as 0-dim tensors."""
        flat, views, root = self._buffer.flat, self._buffer.views, None if self._other is None else self._other.flat

        def squared() -> Tensor:
            """⟨y, M y⟩ of the vector y in the buffer, which becomes √M y."""
            y = flat if root is None else flat.div_(root)
            return torch.dot(y, y)

        self._holds_x = False
        wx: Number = 0.0
        ww: Number = 0.0
        uu: Number = 0.0
        if start is not None:
            compare("start", self.w, start)
            self._buffer.load(self.w)
            torch._foreach_sub_(views, list(start))
            uu = squared()
        if with_w:
            self._buffer.load(self.w)
            ww = squared()
            torch._foreach_mul_(views, self.x)
            wx = flat.sum() if root is None else torch.dot(flat, root)
        y = self._load_x()
        self._holds_x = True
        return Sums(torch.dot(y, y), wx, ww, uu)

    def advance(self, z: Tensors | None, average: Tensors | None, update: Update) -> None:
        """Change everything in place, each by a difference that is 0 under ``skip``."""
        for what, tensors in (("velocity", z), ("average", average)):
            if tensors is not None:
                compare(what, self.w, tensors)
        if update.skip is True:
            return
        push, lift, drop, _, rate = (self._on(c) for c in update[:5])
        update = Update(push, lift, drop, update.mu, rate, self._on(update.skip))  # type: ignore[arg-type]
        self._move(None if z is None else [t.detach() for t in z], update)
        flat, views = self._buffer.flat, self._buffer.views
        if average is not None:  # w̄ − rate · (w̄ − w)
            self._buffer.load(average)
            torch._foreach_sub_(views, self.w)
            flat.mul_(update.rate)
            self._subtract(self._buffer, average, update.skip)
        if self._moments is not None:  # v − (1 − β₂) (v − (scale · x)²)
            v, rest = list(self._moments.v), 1 - self._moments.beta2
            torch._foreach_sub_(self._squares(self._buffer, self._moments), v)
            self._subtract(self._buffer, v, update.skip, -rest)

    def _move(self, z: Tensors | None, update: Update) -> None:
        """z ← z − ((1 − μ) z + push · M⁻¹x + lift · w),   w ← w − (drop · w + push · M⁻¹x − μ z)."""
        mu, skip, buffer, other = update.mu, update.skip, self._buffer, self._other
        flat = self._direction(update.push)
        if z is not None:
            kept = buffer
            if other is not None:  # free for the velocity's difference
                _add(flat, other.load(self.w), update.lift, out=other.flat)
                kept = other
            torch._foreach_add_(kept.views, list(z), alpha=1 - mu)
            self._subtract(kept, z, skip)
            if other is None:
                if not _is(update.lift, 0.0):
                    buffer.load(self.w).mul_(update.lift)
                    self._subtract(buffer, z, skip)
                self._direction(update.push)
        drop = update.drop
        if isinstance(drop, Tensor) and other is not None:
            _add(flat, other.load(self.w), drop, out=flat)
        elif isinstance(drop, Tensor):
            buffer.load(self.w).mul_(drop)
            self._subtract(buffer, self.w, skip)
            self._direction(update.push)
        elif drop:
            torch._foreach_add_(buffer.views, self.w, alpha=drop)
        if z is not None:
            torch._foreach_add_(buffer.views, list(z), alpha=-mu)
        self._subtract(buffer, self.w, skip)

    def _direction(self, push: Number) -> Tensor:
        """push · M⁻¹x in the buffer."""
        flat = self._load_x()
        return (flat if self._other is None else flat.mul_(self._other.flat)).mul_(push)

    @staticmethod
    def _subtract(difference: _Buffer, tensors: Tensors, skip: bool | Tensor, factor: float = 1.0) -> None:
        """tensors ← tensors − factor · difference, unless ``skip`` holds."""
        if isinstance(skip, Tensor):
            difference.flat.masked_fill_(skip, 0)  # not multiplied by 0: NaN · 0 is NaN
        torch._foreach_sub_(list(tensors), difference.views, alpha=factor)


def _add(a: Tensor, b: Tensor, factor: Number, out: Tensor) -> None:
    """a + factor · b into ``out``."""
    if isinstance(factor, Tensor):
        torch.addcmul(a, b, factor, out=out)
    else:
        torch.add(a, b, alpha=factor, out=out)


def _is(x: Number, value: float) -> bool:
    return not isinstance(x, Tensor) and x == value
