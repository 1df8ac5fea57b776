"""The step on a CPU: two loops over the memory of the parameters, compiled by numba when a step first needs them.

The inner products read w and g once; the update reads and writes each vector once. There is no temporary memory but
for seven sums per chunk of 262,144 elements. One compiled call takes many tensors, by their addresses: a call for each
would take longer than a small tensor does. Types, shapes and layouts are compared before.

With x = a g + b q, s the scale of the raw gradient g and

    v' = β₂ v + (1 − β₂) (s g)²        M = √(correction · v') + eps   (1 without a diagonal)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.jit import has_numba, load_numba, njit
from proxsvm._kernels.tensors import PLAIN, Array, Tensors, compare, is_dense

CHUNK = 1 << 18  # elements that a thread takes at a time: between two chunks it needs the GIL
SHARE = 1 << 21  # elements that make a thread worthwhile: torch's own threads spin for a while after their work
DTYPES = (torch.float32, torch.float64)
# The columns of a table; where a step has none, w stands for it.
VECTORS = ("w", "g", "v", "q", "z", "moved", "average")
BLOCK = 1 << 12  # elements summed in their own precision, before they are added in float64
OPTIONS = {"error_model": "numpy", "nogil": True}  # division by 0 is infinity; other threads run meanwhile


class Kernels:
    """Whether the loops run, and where the memory was in the last step.

    ``fused``: None runs them where that is possible, True insists on it, False never does.
    """

    def __init__(self, fused: bool | None = None) -> None:
        if fused:
            load_numba()  # says now what is missing
        self.fused, self._known = fused, dict[Hashable, Layout]()

    def bind(self, key: Hashable, vectors: Mapping[str, Tensors]) -> Loops | None:
        """The loops over w, g and what else a step has of v, q or z, moved and average, each with one tensor per
        parameter, which are compared here; None where they cannot run.

        ``key``: that of the same parameters in the last step.
        """
        if self.fused is False or torch.compiler.is_compiling():  # the compiler fuses on its own
            return None
        w, g = vectors["w"], vectors["g"]
        why = _obstacle(w, g)
        if why is None:
            kept = {name: tensors for name, tensors in vectors.items() if name != "g"}
            at = {name: list(map(Tensor.data_ptr, tensors)) for name, tensors in kept.items()}
            at["size"] = list(map(Tensor.numel, w))
            layout = self._known.get(key)
            if layout is None or layout.at != at:  # something has moved
                layout = Layout(kept, at) if _comparable(kept) else None
            if layout is not None:
                self._known[key] = layout
                return Loops(layout, w, g)
            why = "two parameters share memory, or what is kept for one has another memory order"
        if self.fused:
            raise RuntimeError(
                f"fused=True, but {why}: the compiled loops take dense float32 and float64 parameters in CPU memory. "
                "Leave fused=None, which uses them wherever possible"
            )
        return None


def _obstacle(w: Tensors, g: Tensors) -> str | None:
    """Why the loops cannot take these parameters and gradients; None if they can."""
    if not PLAIN.issuperset(map(type, w)) or not PLAIN.issuperset(map(type, g)):
        return "a parameter or its gradient is an instance of a subclass of torch.Tensor"
    if w[0].dtype not in DTYPES or not w[0].is_cpu:
        return f"a parameter is {w[0].dtype} on {w[0].device}"
    if not all(map(Tensor.is_contiguous, w)) and not all(map(is_dense, w)):
        return "a parameter has gaps or overlaps in its memory"
    return None if has_numba() else "numba is missing: pip install numba"


def _comparable(kept: Mapping[str, Tensors]) -> bool:
    """Whether all that is kept is laid out as w, aligned, and no two tensors overlap: threads write to them."""
    for name, tensors in kept.items():
        compare(name, kept["w"], tensors)
        spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.numel())
        overlap = any(end > begin for (_, end), (begin, _) in pairwise(spans))
        if overlap or any(begin % kept["w"][0].itemsize for begin, _ in spans) or not _same_layout(kept["w"], tensors):
            return False
    return True


def _same_layout(w: Tensors, x: Tensors) -> bool:
    """Whether tensors of equal shapes have the same dtype and order in memory, and are stored with their sign."""
    if not {w[0].dtype}.issuperset(t.dtype for t in x) or any(map(Tensor.is_neg, x)):
        return False
    if all(map(Tensor.is_contiguous, w)) and all(map(Tensor.is_contiguous, x)):
        return True
    return all(a.stride() == b.stride() for a, b in zip(w, x, strict=True))


class _Memory:
    """``n`` numbers from an address on: NumPy makes an array of it."""

    def __init__(self, address: int, n: int, dtype: str) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (n,), "typestr": dtype, "version": 3}


class Layout:
    """Where w and what is ``kept`` with it lie, at the addresses ``at``, in chunks of the tensors.

    It keeps that memory alive, so that no address is reused.
    """

    def __init__(self, kept: Mapping[str, Tensors], at: dict[str, list[int]]) -> None:
        self.at, self.alive = at, [t.detach() for tensors in kept.values() for t in tensors]
        self.dtype = np.dtype(f"f{self.alive[0].itemsize}")
        chunks = [(i, k, min(CHUNK, n - k)) for i, n in enumerate(at["size"]) for k in range(0, n, CHUNK)]
        self.tensor, self.begin, self.sizes = np.array(chunks or [(0, 0, 0)]).T.copy()
        self.table = np.stack([self.indices(at.get(name, at["w"])) for name in VECTORS], axis=1)
        filled = np.cumsum(self.sizes) // CHUNK  # a thread takes one chunk, or several small ones
        self.shares = list(pairwise([0, *(np.flatnonzero(np.diff(filled)) + 1).tolist(), len(self.sizes)]))

    def indices(self, addresses: list[int]) -> Array:
        """Where each chunk begins, by the addresses of the tensors, counted in elements."""
        return np.asarray(np.array(addresses)[self.tensor] // self.dtype.itemsize + self.begin)


class Loops:
    """The two passes over the parameters ``w``, their gradients and what the layout has beside them."""

    def __init__(self, layout: Layout, w: Tensors, g: Tensors) -> None:
        table, dtype, addresses = layout.table.copy(), layout.dtype, list(map(Tensor.data_ptr, g))
        if any(address % dtype.itemsize for address in addresses) or not _same_layout(w, g):
            g = [torch.empty_like(a).copy_(b.detach()) for a, b in zip(w, g, strict=True)]
            addresses = list(map(Tensor.data_ptr, g))
        self._layout, self._w, self._g, table[:, 1] = layout, w, g, layout.indices(addresses)
        first, last = int(table.min()), int((table.max(1) + layout.sizes).max())
        self._memory = np.asarray(_Memory(first * dtype.itemsize, last - first, dtype.str))
        self._table, self._scalars = table - first, np.zeros(13, dtype)

    def products(
        self, a: float, b: float, scale: Tensor | None, moments: tuple[float, float, float] | None, decay: bool
    ) -> Sequence[Tensor]:
        """The inner products of x = a · scale · g + b q, accumulated in float64: :class:`proxsvm.geometry.Sums`.

        ``moments``: β₂, eps and the correction of M = √(correction · v') + eps.
        """
        beta2, eps, correction = moments or (0.0, 0.0, 0.0)
        self._scalars[:7] = a, b, 1.0 if scale is None else scale.item(), beta2, 1 - beta2, correction, eps
        out, has = np.zeros((len(self._table), 7)), self._layout.at  # by chunks: threads change no bit of the sum
        self._run(products_loop(moments is not None, "q" in has, decay, "moved" in has), out)
        return torch.from_numpy(out).sum(0).unbind()  # NumPy would warn of inf − inf

    def update(self, *scalars: float | Tensor) -> Callable[[], None]:
        """The update in place, after :meth:`products`; ``scalars``: push, lift, drop, μ and rate.

        If it is interrupted, a further call does the rest: a compiled loop ends before Python raises anything.
        """
        push, lift, drop, mu, rate = (float(x) for x in scalars)
        self._scalars[7:] = push, lift, 1 - drop, mu, 1 - mu, rate
        loop = update_loop(*(name in self._layout.at for name in ("v", "q", "z", "moved", "average")))
        done = np.zeros(len(self._table), dtype=bool)

        def write() -> None:
            self._run(loop, done)
            torch.autograd.graph.increment_version(self._w)

        return write

    def _run(self, loop: Callable[..., None], out: Array) -> None:
        run = functools.partial(loop, self._memory, self._table, self._layout.sizes, self._scalars, out)
        _on_threads(run, self._layout.shares, int(self._layout.sizes.sum()))


# The loops. Which vectors a step has is known before they are compiled: one is built for each setting, and numba drops
# the branches that its constants rule out. In chunk k the vectors begin at the indices ``table[k]`` of ``memory``.


@functools.cache
def products_loop(diagonal: bool, past: bool, decay: bool, auto: bool) -> Any:
    """⟨x, M⁻¹x⟩, ⟨w, x⟩, ⟨w, M w⟩, ⟨q, M⁻¹x⟩, ⟨q, w⟩, ⟨s g, M⁻¹ s g⟩, ⟨u, M u⟩, into out[k]."""
    with_w = decay or auto

    def loop(memory: Array, table: Array, sizes: Array, c: Array, out: Array, first: int, last: int) -> None:
        a, b, s, beta2, rest, correction, eps = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        zero, one = c.dtype.type(0), c.dtype.type(1)
        for k in range(first, last):
            out[k] = 0.0
            for begin in range(0, sizes[k], BLOCK):
                i, n = table[k] + begin, min(BLOCK, sizes[k] - begin)
                w, g, v = memory[i[0] : i[0] + n], memory[i[1] : i[1] + n], memory[i[2] : i[2] + n]
                q, moved = memory[i[3] : i[3] + n], memory[i[5] : i[5] + n]
                xx, wx, ww, qx, qw, gg, uu = zero, zero, zero, zero, zero, zero, zero
                for j in range(n):
                    h = s * g[j]
                    x = a * h + b * q[j] if past else a * h
                    y, m = x, one
                    if diagonal:
                        m = np.sqrt(correction * (beta2 * v[j] + rest * h * h)) + eps
                        y = x / m
                    xx += x * y
                    if with_w:
                        wx += w[j] * x
                        ww += w[j] * w[j] * m
                    if past:
                        qx += q[j] * y
                        if decay:
                            qw += q[j] * w[j]
                    if auto:
                        uu += moved[j] * moved[j] * m
                        gg += h * h / m
                for which, found in enumerate((xx, wx, ww, qx, qw, gg, uu)):
                    out[k, which] += found

    return njit(loop, **OPTIONS)


@functools.cache
def update_loop(diagonal: bool, past: bool, momentum: bool, auto: bool, average: bool) -> Any:
    """The update in place, with t = push · M⁻¹x:

        z ← μ z − t − lift · w        w ← w − drop · w − t + μ z        q ← μ q + (1 − μ) s g        v ← v'
        u ← u + w' − w        w̄ ← w̄ − rate · (w̄ − w)

    A chunk that is ``done`` is not updated twice.
    """

    def loop(memory: Array, table: Array, sizes: Array, c: Array, done: Array, first: int, last: int) -> None:
        a, b, s, beta2, rest, correction, eps = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
        push, lift, keep, mu, fresh, rate = c[7], c[8], c[9], c[10], c[11], c[12]
        for k in range(first, last):
            for begin in range(0, 0 if done[k] else sizes[k], BLOCK):  # w is in the cache when the average reads it
                i, n = table[k] + begin, min(BLOCK, sizes[k] - begin)
                w, g, v = memory[i[0] : i[0] + n], memory[i[1] : i[1] + n], memory[i[2] : i[2] + n]
                q, z = memory[i[3] : i[3] + n], memory[i[4] : i[4] + n]
                moved, mean = memory[i[5] : i[5] + n], memory[i[6] : i[6] + n]
                for j in range(n):
                    h = s * g[j]
                    t = push * (a * h + b * q[j]) if past else push * (a * h)
                    if diagonal:
                        v[j] = beta2 * v[j] + rest * h * h
                        t = t / (np.sqrt(correction * v[j]) + eps)
                    new = keep * w[j] - t
                    if momentum:
                        z[j] = mu * z[j] - t - lift * w[j]
                        new += mu * z[j]
                    if past:
                        q[j] = mu * q[j] + fresh * h
                    if auto:
                        moved[j] += new - w[j]
                    w[j] = new
                if average:
                    for j in range(n):
                        mean[j] -= rate * (mean[j] - w[j])
            done[k] = True

    return njit(loop, **OPTIONS)


# Threads. The loops release the GIL. A pool does not survive a fork, so a child starts its own.


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), "proxsvm")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _on_threads(run: Callable[[int, int], None], shares: Sequence[tuple[int, int]], size: int) -> None:
    """``run`` on all shares, by as many threads as torch uses if there is enough work for them."""
    threads, others = max(1, min(torch.get_num_threads(), size // SHARE)), list[Future[None]]()

    def work(k: int) -> None:
        for share in shares[k::threads]:
            run(*share)

    try:
        others.extend(_pool().submit(work, k) for k in range(1, threads))
        work(0)
        for other in others:
            other.result()
    finally:
        wait(others)  # no thread may go on working
