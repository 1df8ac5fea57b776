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
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.jit import has_numba, load_numba, njit
from proxsvm._kernels.tensors import PLAIN, Array, Tensors, compare, is_dense

CHUNK = 1 << 18  # elements of a chunk at most: threads share the chunks
SHARE = 1 << 21  # elements that make a further thread worthwhile: those of torch spin for a while after their work
DTYPES = (torch.float32, torch.float64)
# The columns of a table; where a step has none, w stands for it.
VECTORS = ("w", "g", "v", "q", "z", "moved", "average")
SHAPE, IS_CPU = attrgetter("shape"), attrgetter("is_cpu")
BLOCK = 1 << 12  # elements summed in their own precision, before they are added in float64
OPTIONS = {"error_model": "numpy", "nogil": True}  # division by 0 is infinity; other threads run meanwhile


class Kernels:
    """Whether the loops run, and where the memory was in the last step.

    ``fused``: None runs them where that is possible, True insists on it, False never does.
    """

    def __init__(self, fused: bool | None = None) -> None:
        if fused:
            load_numba()  # says now what is missing
        self.fused, self._known = fused, dict[Hashable, Loops]()

    def bind(self, key: Hashable, vectors: Mapping[str, Tensors]) -> tuple[Loops, Tensors] | None:
        """The loops over w, g and what else a step has of v, q or z, moved and average, each with one tensor per
        parameter, and the gradients as they read them, which have to be kept; None where they cannot run.

        ``key``: that of the same parameters in the last step.
        """
        if self.fused is False or torch.compiler.is_compiling():  # the compiler fuses on its own
            return None
        kept = dict(vectors)
        why = _obstacle(kept["w"], g := kept.pop("g"))
        if why is None:
            at: dict[str, list[Any]] = {name: list(map(Tensor.data_ptr, tensors)) for name, tensors in kept.items()}
            at |= {"shape": list(map(SHAPE, kept["w"])), "stride": list(map(Tensor.stride, kept["w"]))}
            loops = self._known.get(key)
            if loops is None or loops.at != at:  # something has moved
                loops = Loops(kept, at) if _comparable(kept) else None
            if loops is not None:
                self._known[key] = loops
                return loops, loops.read(kept["w"], g)
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
    """Whether all that is kept is laid out as w, and no two tensors overlap: threads write to them."""
    for name, tensors in kept.items():
        compare(name, kept["w"], tensors)
        spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.numel())
        overlap = any(end > begin for (_, end), (begin, _) in pairwise(spans))
        if overlap or not _same_layout(kept["w"], tensors, [begin for begin, _ in spans]):
            return False
    return True


def _same_layout(w: Tensors, x: Tensors, addresses: list[int]) -> bool:
    """Whether tensors of equal shapes have the same dtype and order in memory, aligned and stored with their sign."""
    size = w[0].itemsize
    if {t.dtype for t in x} != {w[0].dtype} or any(map(Tensor.is_neg, x)) or any(a % size for a in addresses):
        return False
    if all(map(Tensor.is_contiguous, w)) and all(map(Tensor.is_contiguous, x)):
        return True
    return all(a.stride() == b.stride() for a, b in zip(w, x, strict=True))


class _Memory:
    """``n`` numbers from an address on: NumPy makes an array of it."""

    def __init__(self, address: int, n: int, dtype: str) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (n,), "typestr": dtype, "version": 3}


class Loops:
    """The two passes over w, g and what is ``kept`` with w, at the addresses ``at``, in chunks of the tensors.

    It keeps that memory alive, so that no address is reused; that of the gradients belongs to the caller.
    """

    def __init__(self, kept: Mapping[str, Tensors], at: dict[str, list[Any]]) -> None:
        self.at, self._alive = at, [t.detach() for tensors in kept.values() for t in tensors]
        self._dtype = np.dtype(f"f{self._alive[0].itemsize}")
        sizes = [shape.numel() for shape in at["shape"]]
        chunks = [(i, k, min(CHUNK, n - k)) for i, n in enumerate(sizes) for k in range(0, n, CHUNK)]
        self._tensor, self._begin, self._sizes = np.array(chunks or [(0, 0, 0)]).T.copy()
        self._ends = [0, *self._sizes.cumsum().tolist()]
        self._where = np.stack([self._indices(at.get(name, at["w"])) for name in VECTORS], axis=1)
        self._scalars = np.zeros(13, self._dtype)

    def _indices(self, addresses: list[int]) -> Array:
        """Where each chunk begins, by the addresses of the tensors, counted in elements."""
        return np.asarray(np.array(addresses)[self._tensor] // self._dtype.itemsize + self._begin)

    def read(self, w: Tensors, g: Tensors) -> Tensors:
        """The gradients of the next step, or copies in the layout of w where they have another one."""
        if list(map(SHAPE, g)) != self.at["shape"] or not all(map(IS_CPU, g)):
            compare("gradient", w, g)
        addresses = list(map(Tensor.data_ptr, g))
        if not _same_layout(w, g, addresses):
            g = [torch.empty_like(a).copy_(b.detach()) for a, b in zip(w, g, strict=True)]
            addresses = list(map(Tensor.data_ptr, g))
        self._w, self._where[:, 1] = w, self._indices(addresses)
        first, last = int(self._where.min()), int((self._where.max(1) + self._sizes).max())
        self._memory = np.asarray(_Memory(first * self._dtype.itemsize, last - first, self._dtype.str))
        self._table = self._where - first
        return g

    def products(
        self, a: float, b: float, scale: Tensor | None, moments: tuple[float, float, float] | None, decay: bool
    ) -> Sequence[Tensor]:
        """The inner products of x = a · scale · g + b q, accumulated in float64: :class:`proxsvm.geometry.Sums`.

        ``moments``: β₂, eps and the correction of M = √(correction · v') + eps.
        """
        beta2, eps, correction = moments or (0.0, 0.0, 0.0)
        self._scalars[:7] = a, b, 1.0 if scale is None else scale.item(), beta2, 1 - beta2, correction, eps
        out = np.zeros((len(self._table), 7))  # by chunks: threads change no bit of the sum
        self._run(products_loop(moments is not None, "q" in self.at, decay, "moved" in self.at), out)
        return torch.from_numpy(out).sum(0).unbind()  # NumPy would warn of inf − inf

    def update(self, *scalars: float | Tensor) -> Callable[[], None]:
        """The update in place, after :meth:`products`; ``scalars``: push, lift, drop, μ and rate.

        If it is interrupted, a further call does the rest: a compiled loop ends before Python raises anything.
        """
        push, lift, drop, mu, rate = map(float, scalars)
        self._scalars[7:] = push, lift, 1 - drop, mu, 1 - mu, rate
        loop = update_loop(*(name in self.at for name in ("v", "q", "z", "moved", "average")))
        done = np.zeros(len(self._table), dtype=bool)

        def write() -> None:
            self._run(loop, done)
            torch.autograd.graph.increment_version(self._w)

        return write

    def _run(self, loop: Callable[..., None], out: Array) -> None:
        """The loop over all chunks, on as many threads as torch uses if there is enough work for them."""
        run = functools.partial(loop, self._memory, self._table, self._sizes, self._scalars, out)
        threads, others = max(1, min(torch.get_num_threads(), self._ends[-1] // SHARE)), list[Future[None]]()
        if threads == 1:
            run(0, len(out))
            return
        shares = pairwise(np.searchsorted(self._ends, np.linspace(0, self._ends[-1], threads + 1)).tolist())
        first = next(shares)
        try:
            others.extend(_pool().submit(run, *share) for share in shares)
            run(*first)
        finally:
            wait(others)  # no thread may go on working
        for other in others:
            other.result()


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
