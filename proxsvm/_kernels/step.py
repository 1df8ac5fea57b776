"""The step on a CPU: the two loops of :mod:`proxsvm._kernels.step_loops` over the memory of the parameters.

The inner products read w and g once; the update reads and writes each vector once. There is no temporary memory but
for seven sums per chunk of 262,144 elements. Tensors become NumPy views after their types, shapes and layouts were
compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.jit import has_numba, load_numba
from proxsvm._kernels.tensors import PLAIN, Array, Tensors, compare, is_dense

CHUNK = 1 << 18  # elements that a thread takes at a time: between two chunks it needs the GIL
SHARE = 1 << 21  # elements that make a thread worthwhile: torch's own threads spin for a while after their work
DTYPES = (torch.float32, torch.float64)


class Sums(NamedTuple):
    """Inner products of x = a g + b q: 0-dim tensors, 0 where they were not requested. u: how far w has moved."""

    xx: Tensor  # ⟨x, M⁻¹x⟩
    wx: Tensor  # ⟨w, x⟩
    ww: Tensor  # ⟨w, M w⟩
    qx: Tensor  # ⟨q, M⁻¹x⟩
    qw: Tensor  # ⟨q, w⟩
    gg: Tensor  # ⟨g, M⁻¹g⟩
    uu: Tensor  # ⟨u, M u⟩


class Kernels:
    """Whether the loops run, and their views of what stays in memory from step to step.

    ``fused``: None runs them where that is possible, True insists on it, False never does.
    """

    def __init__(self, fused: bool | None = None) -> None:
        if fused:
            load_numba()  # says now what is missing
        self.fused, self._known = fused, dict[Hashable, dict[str, tuple[list[tuple[int, int]], list[Array]]]]()

    def bind(self, key: Hashable, vectors: Mapping[str, Tensors]) -> Loops | None:
        """The loops over w, g and what else a step has of v, q or z, moved and average, each with one tensor per
        parameter, which are compared here; None where they cannot run.

        ``key``: that of the same parameters in the last step.
        """
        if self.fused is False or torch.compiler.is_compiling():  # the compiler fuses on its own
            return None
        w = vectors["w"]
        why = _obstacle(w, vectors["g"])
        if why is None:
            known = self._known.setdefault(key, {})
            arrays = {name: _views(known, name, w, tensors) for name, tensors in vectors.items()}
            if None not in arrays.values():
                return Loops(w, arrays)  # type: ignore[arg-type]
            why = "two parameters share memory, or what is kept for one has another memory order"
        if self.fused:
            raise RuntimeError(
                f"fused=True, but {why}: the compiled loops take dense float32 and float64 parameters in CPU memory. "
                "Leave fused=None, which uses them wherever possible"
            )
        return None


def _views(
    known: dict[str, tuple[list[tuple[int, int]], list[Array]]], name: str, w: Tensors, tensors: Tensors
) -> list[Array] | None:
    """Flat views of tensors; None where they are not laid out as ``w``.

    ``known``: those of the last step, made again where a tensor has moved, and all of them where w has. A view keeps
    its memory alive, so that no address is reused.
    """
    if name == "g":
        if not _same_layout(w, tensors):
            tensors = [torch.empty_like(a).copy_(b.detach()) for a, b in zip(w, tensors, strict=True)]
        return [flat(x) for x in tensors]
    at = list(zip(map(Tensor.data_ptr, tensors), map(Tensor.numel, tensors), strict=True))
    if name not in known or known[name][0] != at:
        compare(name, w, tensors)
        spans = sorted((a, a + n * w[0].itemsize) for a, n in at if n)
        overlap = any(end > begin for (_, end), (begin, _) in pairwise(spans))  # threads write to all of them
        if overlap or not _same_layout(w, tensors):
            return None
        if name == "w":
            known.clear()
        known[name] = at, [flat(t) for t in tensors]
    return known[name][1]


def _obstacle(w: Tensors, g: Tensors) -> str | None:
    """Why the loops cannot take these parameters and gradients; None if they can."""
    if not PLAIN.issuperset(map(type, w)) or not PLAIN.issuperset(map(type, g)):
        return "a parameter or its gradient is an instance of a subclass of torch.Tensor"
    if w[0].dtype not in DTYPES or not w[0].is_cpu:
        return f"a parameter is {w[0].dtype} on {w[0].device}"
    if not all(map(Tensor.is_contiguous, w)) and not all(map(is_dense, w)):
        return "a parameter has gaps or overlaps in its memory"
    return None if has_numba() else "numba is missing: pip install numba"


def _same_layout(w: Tensors, x: Tensors) -> bool:
    """Whether tensors of equal shapes have the same dtype and order in memory, and are stored with their sign."""
    if not {w[0].dtype}.issuperset(t.dtype for t in x) or any(map(Tensor.is_neg, x)):
        return False
    if all(map(Tensor.is_contiguous, w)) and all(map(Tensor.is_contiguous, x)):
        return True
    return all(a.stride() == b.stride() for a, b in zip(w, x, strict=True))


def flat(t: Tensor) -> Array:
    """The memory of a dense tensor as a flat array.

    >>> flat(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    t = t.detach()
    return np.asarray(t.numpy().ravel() if t.is_contiguous() else t.as_strided((t.numel(),), (1,)).numpy())


class Loops:
    """The two passes over the parameters ``w``; an array that the setting has no use for is that of w."""

    def __init__(self, w: Tensors, arrays: Mapping[str, list[Array]]) -> None:
        self._w, self._has, past = w, arrays.keys(), "q" if "q" in arrays else "z"
        names = ("w", "g", "v", past, "moved", "average")
        self._arrays = list(zip(*(arrays.get(name, arrays["w"]) for name in names), strict=True))
        sizes = enumerate(map(len, arrays["w"]))
        self._chunks = [(i, k, min(k + CHUNK, n)) for i, n in sizes for k in range(0, n, CHUNK)]  # index, begin, end
        self._scalars = np.zeros(13, dtype=arrays["w"][0].dtype)

    def products(
        self, a: float, b: float, scale: Tensor | None, moments: tuple[float, float, float] | None, decay: bool
    ) -> Sums:
        """The inner products of x = a · scale · g + b q, accumulated in float64.

        ``moments``: β₂, eps and the correction of M = √(correction · v') + eps.
        """
        from proxsvm._kernels import step_loops

        self._scalars[:3] = a, b, 1.0 if scale is None else scale.item()
        if moments is not None:
            beta2, eps, correction = moments
            self._scalars[3:7] = beta2, 1 - beta2, correction, eps
        out = np.zeros((len(self._chunks), 7))  # per chunk: the number of threads changes no bit of the sum
        self._run(step_loops.products(moments is not None, "q" in self._has, decay, "moved" in self._has), out)
        return Sums(*torch.from_numpy(out).sum(0).unbind())  # NumPy would warn of inf − inf

    def update(self, *scalars: float | Tensor) -> Callable[[], None]:
        """The update in place, after :meth:`products`; ``scalars``: push, lift, drop, μ and rate.

        If it is interrupted, a further call does the rest: a compiled loop ends before Python raises anything.
        """
        from proxsvm._kernels import step_loops

        push, lift, drop, mu, rate = (float(x) for x in scalars)
        self._scalars[7:] = push, lift, 1 - drop, mu, 1 - mu, rate
        loop = step_loops.update(*(name in self._has for name in ("v", "q", "z", "moved", "average")))
        done = np.zeros(len(self._chunks), dtype=bool)

        def write() -> None:
            self._run(loop, done)
            torch.autograd.graph.increment_version(self._w)

        return write

    def _run(self, loop: Callable[..., None], out: Array) -> None:
        def run(share: slice) -> None:
            for k in range(len(self._chunks))[share]:
                i, begin, end = self._chunks[k]
                loop(*self._arrays[i], self._scalars, begin, end, out, k)

        _on_threads(run, sum(end - begin for _, begin, end in self._chunks))


# Threads. The loops release the GIL. A pool does not survive a fork, so a child starts its own.

_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def _on_threads(run: Callable[[slice], None], size: int) -> None:
    """``run`` on shares of the chunks, by as many threads as torch uses, if there is enough work for them."""
    threads = min(torch.get_num_threads(), size // SHARE)
    if threads < 2:
        return run(slice(None))
    if not _pool:
        _pool.append(ThreadPoolExecutor(os.cpu_count(), "proxsvm"))
    others: list[Future[None]] = []
    try:
        for k in range(1, threads):
            others.append(_pool[0].submit(run, slice(k, None, threads)))
        run(slice(0, None, threads))
        for other in others:
            other.result()
    except BaseException:
        wait(others)  # no two threads may work on one chunk
        run(slice(None))
        raise
    return None
