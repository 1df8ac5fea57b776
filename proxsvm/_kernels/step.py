"""The step on a CPU: the two loops of :mod:`proxsvm._kernels.step_loops` over the memory of the parameters.

The inner products read w and g once; the update reads and writes each vector once. There is no temporary memory but
for seven sums per 65,536 elements. Tensors become NumPy views after their types, shapes and layouts were compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.jit import has_numba, load_numba
from proxsvm._kernels.tensors import PLAIN, Array, Tensors, compare, is_dense

CHUNK = 1 << 16  # elements that a thread takes at a time
DTYPES = (torch.float32, torch.float64)


class Sums(NamedTuple):
    """Inner products of x = a g + b q: 0-dim tensors, 0 where they were not requested. u = w − start."""

    xx: Tensor  # ⟨x, M⁻¹x⟩
    wx: Tensor  # ⟨w, x⟩
    ww: Tensor  # ⟨w, M w⟩
    qx: Tensor  # ⟨q, M⁻¹x⟩
    qw: Tensor  # ⟨q, w⟩
    gg: Tensor  # ⟨g, M⁻¹g⟩
    uu: Tensor  # ⟨u, M u⟩


class Moments(NamedTuple):
    """A diagonal metric M = √(correction · v') + eps with v' = β₂ v + (1 − β₂) g²."""

    v: Tensors
    beta2: float
    eps: float
    correction: Tensor


class Kernels:
    """Whether the loops run, and their views of what stays in memory from step to step.

    ``fused``: None runs them where that is possible, True insists on it, False never does.
    """

    def __init__(self, fused: bool | None = None) -> None:
        if fused:
            load_numba()  # says now what is missing
        self.fused, self._known = fused, dict[Hashable, _Known]()

    def bind(
        self, key: Hashable, w: Tensors, g: Tensors, scale: Tensor | None, moments: Callable[[], Moments | None]
    ) -> Loops | None:
        """The loops over parameters ``w`` with gradients ``g`` of equal shapes; None where they cannot run.

        ``key``: that of the same parameters in the last step. ``moments``: returns those of a diagonal metric.
        """
        if self.fused is False or torch.compiler.is_compiling():  # the compiler fuses on its own
            return None
        why = _obstacle(w, g)
        if why is None:
            known = self._known.get(key)
            if known is None or known.at != _addresses(w):
                known = self._known[key] = _Known(w)
            if known.disjoint:
                return Loops(known, w, g, scale, moments())
            why = "two parameters share memory"
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


def _addresses(tensors: Tensors) -> list[tuple[int, int]]:
    return list(zip(map(Tensor.data_ptr, tensors), map(Tensor.numel, tensors), strict=True))


class _Known:
    """Flat views of parameters and of what is kept for them; made again where one has moved in memory.

    A view keeps its memory alive, so that no address is reused.
    """

    def __init__(self, w: Tensors) -> None:
        self.at, self.w = _addresses(w), [flat(t) for t in w]
        spans = sorted((a, a + n * w[0].itemsize) for a, n in self.at if n)
        self.disjoint = all(end <= begin for (_, end), (begin, _) in pairwise(spans))  # threads write to all of them
        self._kept: dict[str, tuple[list[tuple[int, int]], list[Array]]] = {}

    def kept(self, what: str, w: Tensors, tensors: Tensors) -> list[Array] | None:
        """The views of what is kept for ``w``; None where it does not have their memory order and dtype."""
        at = _addresses(tensors)
        if what not in self._kept or self._kept[what][0] != at:
            compare(what, w, tensors)
            if not _same_layout(w, tensors):
                return None
            self._kept[what] = at, [flat(t) for t in tensors]
        return self._kept[what][1]


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
    """The two passes over the parameters ``w`` and gradients ``g``."""

    def __init__(self, known: _Known, w: Tensors, g: Tensors, scale: Tensor | None, moments: Moments | None) -> None:
        self._known, self._tensors, self._moments = known, w, moments
        self._copies: list[tuple[Tensors, Tensors]] = []  # of what is kept in another memory order or dtype
        self._w = known.w
        self._g = [flat(x) for x in (g if _same_layout(w, g) else _copied(w, g))]
        self._v = self._w if moments is None else self._kept("second moment", moments.v)
        self._scalars = np.zeros(13, dtype=self._w[0].dtype)
        self._scalars[2] = 1.0 if scale is None else scale.item()
        if moments is not None:
            beta2 = moments.beta2
            self._scalars[3:7] = beta2, 1 - beta2, moments.correction.item(), moments.eps

    def _kept(self, what: str, tensors: Tensors | None) -> list[Array]:
        """The arrays of what is kept; those of w where there is nothing, which the loop then does not read."""
        if tensors is None:
            return self._w
        found = self._known.kept(what, self._tensors, tensors)
        if found is None:
            self._copies.append((tensors, _copied(self._tensors, tensors)))
            found = [flat(x) for x in self._copies[-1][1]]
        return found

    def products(self, a: float, b: float, q: Tensors | None, start: Tensors | None, decay: bool) -> Sums:
        """The inner products of x = a g + b q, accumulated in float64."""
        from proxsvm._kernels import step_loops

        loop = step_loops.products(self._moments is not None, q is not None, decay, start is not None)
        arrays = list(zip(self._w, self._g, self._v, self._kept("past", q), self._kept("start", start), strict=True))
        self._scalars[:2] = a, b
        chunks = _chunks(self._w)
        out = np.zeros((len(chunks), 7))  # per chunk: the number of threads changes no bit of the sum

        def run(share: slice) -> None:
            for k in range(len(chunks))[share]:
                i, begin, end = chunks[k]
                loop(*arrays[i], self._scalars, begin, end, out, k)

        _on_threads(run, chunks)
        return Sums(*torch.from_numpy(out.sum(0)).unbind())

    def prepare(self, q: Tensors | None, z: Tensors | None, mean: Tensors | None) -> None:
        """Compare and view what is kept, before anything changes."""
        from proxsvm._kernels import step_loops

        self._loop = step_loops.advance(self._moments is not None, q is not None, z is not None, mean is not None)
        past = self._kept("past", q) if z is None else self._kept("velocity", z)
        self._arrays = list(zip(self._w, self._g, self._v, past, self._kept("average", mean), strict=True))

    def advance(self, push: float, lift: float, drop: float, mu: float, rate: float) -> None:
        """The update in place."""
        self._scalars[7:] = push, lift, 1 - drop, mu, 1 - mu, rate
        chunks = _chunks(self._w)

        def run(share: slice) -> None:
            for i, begin, end in chunks[share]:
                self._loop(*self._arrays[i], self._scalars, begin, end)

        _on_threads(run, chunks)
        for kept, copies in self._copies:
            torch._foreach_copy_(list(kept), list(copies))
        torch.autograd.graph.increment_version(self._tensors)


def _copied(w: Tensors, x: Tensors) -> list[Tensor]:
    """Copies of ``x`` in the memory order and dtype of ``w``."""
    return [torch.empty_like(a).copy_(b.detach()) for a, b in zip(w, x, strict=True)]


def _chunks(arrays: Sequence[Array]) -> list[tuple[int, int, int]]:
    """Arrays cut into chunks: index, first element, and the one after the last.

    >>> _chunks([np.zeros(3), np.zeros(CHUNK + 1)])
    [(0, 0, 3), (1, 0, 65536), (1, 65536, 65537)]
    """
    return [(i, k, min(k + CHUNK, len(a))) for i, a in enumerate(arrays) for k in range(0, len(a), CHUNK)]


# Threads. The loops release the GIL. A pool does not survive a fork, so a child starts its own.

_pool: list[ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)


def _on_threads(run: Callable[[slice], None], chunks: Sequence[tuple[int, int, int]]) -> None:
    """``run`` on shares of the chunks, by as many threads as torch uses, if there is enough work for them."""
    threads = min(torch.get_num_threads(), sum(end - begin for _, begin, end in chunks) // (4 * CHUNK))
    if threads < 2:
        return run(slice(None))
    if not _pool:
        _pool.append(ThreadPoolExecutor(os.cpu_count(), "proxsvm"))
    others = [_pool[0].submit(run, slice(k, None, threads)) for k in range(1, threads)]
    run(slice(0, None, threads))
    for other in others:
        other.result()
    return None
