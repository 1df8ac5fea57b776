"""``fused=True``: the two sweeps of a step as two compiled loops over the memory of the tensors, where it lies.

The inner products read w and x once, the update reads w, x, z and writes w, z: seven streams of memory against the five
of ``torch.optim.SGD(fused=True)``. All that is made for it are the addresses, three for 4,096 parameters. Compiled by
numba (the extra ``fast``) at the first step, which takes a few seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from threading import get_ident
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from proxsvm.extras import load
from proxsvm.update import PLAIN, Sweep, Sweeps

CHUNK = 1 << 12  # elements that a thread walks at a time

Array: TypeAlias = "np.ndarray[Any, Any]"


class FusedSweeps(Sweeps):
    """Compiled sweeps for float32 and float64 on the CPU; for anything else those that all optimizers have."""

    def __init__(self) -> None:
        super().__init__()
        load("numba", extra="fast")  # say now that it is missing
        self._chunks: dict[object, Chunks] = {}
        self._threads = 0, 0

    def over(self, w: Sequence[Tensor], x: Sequence[Tensor]) -> Sweep:
        """A sweep over tensors of one dtype on one device."""
        if torch.compiler.is_compiling() or not _in_memory([*w, *x], w[0].dtype):
            return super().over(w, x)
        self._use_threads_of_torch()
        sizes = list(map(Tensor.numel, w))
        chunks = self.kept(self._chunks, (w[0].dtype, *sizes), lambda: Chunks(sizes, w[0].itemsize))
        return FusedSweep(w, x, chunks, self)

    def _use_threads_of_torch(self) -> None:
        wanted = get_ident(), torch.get_num_threads()  # numba counts for each thread of Python
        if self._threads != wanted:
            numba = load("numba", extra="fast")
            numba.set_num_threads(min(wanted[1], numba.config.NUMBA_NUM_THREADS))
            self._threads = wanted


class Chunks:
    """Tensors of these sizes, cut into chunks: the ``tensor`` of each, the byte where it starts, and its ``length``."""

    def __init__(self, sizes: Sequence[int], itemsize: int) -> None:
        cuts = [(i, start, min(CHUNK, n - start)) for i, n in enumerate(sizes) for start in range(0, n, CHUNK)]
        table = np.array(cuts, dtype=np.int64).reshape(-1, 3)
        self.tensor, self.length = table[:, 0], np.ascontiguousarray(table[:, 2])
        self.start = (table[:, 1] * itemsize).astype(np.uint64)

    def addresses(self, tensors: Sequence[Tensor]) -> Array:
        """Where each chunk lies."""
        return np.fromiter(map(Tensor.data_ptr, tensors), np.uint64, len(tensors))[self.tensor] + self.start


class FusedSweep(Sweep):
    """What :class:`~proxsvm.update.Sweep` computes, in two loops."""

    def __init__(self, w: Sequence[Tensor], x: Sequence[Tensor], chunks: Chunks, sweeps: Sweeps) -> None:
        self.w, self.x = w, x
        self._chunks, self._sweeps = chunks, sweeps
        self._at_w, self._at_x = chunks.addresses(w), chunks.addresses(x)

    def products(self, *, with_w: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """⟨x, x⟩, ⟨w, x⟩ and ⟨w, w⟩; only the first ``with_w=False``."""
        sums = torch.empty(3, dtype=self.w[0].dtype)
        _loops(self.w[0].dtype).products(self._at_w, self._at_x, self._chunks.length, with_w, sums.numpy())
        xx, wx, ww = sums.unbind()
        return xx, wx, ww

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
        """The update of :meth:`Sweep.advance <proxsvm.update.Sweep.advance>`."""
        w, length = self.w, self._chunks.length
        if z is not None and not _in_memory(z, w[0].dtype):
            other = Sweeps.over(self._sweeps, w, self.x)
            return other.advance(z, push=push, pull=pull, shrink=shrink, mu=mu, skip=skip)
        rest = torch.as_tensor(0.0 if pull is None else pull), torch.ones_like(push) if shrink is None else shrink
        scalars = torch.stack([push, *rest, skip]).to(w[0].dtype).numpy()
        at_z = np.empty(0, dtype=np.uint64) if z is None else self._chunks.addresses(z)
        _loops(w[0].dtype).advance(self._at_w, self._at_x, at_z, length, scalars, scalars.dtype.type(mu))
        torch.autograd.graph.increment_version(w)


def _in_memory(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether a loop can walk the tensors' memory: contiguous floats on the CPU, and no subclass with its own ideas."""
    return (
        dtype in (torch.float32, torch.float64)
        and PLAIN.issuperset(map(type, tensors))
        and all(map(attrgetter("is_cpu"), tensors))
        and {dtype}.issuperset(map(attrgetter("dtype"), tensors))
        and all(map(Tensor.is_contiguous, tensors))
    )


@functools.cache
def _loops(dtype: torch.dtype) -> SimpleNamespace:
    """The compiled loops."""
    numba = load("numba", extra="fast")
    extending = load("numba.extending", extra="fast")
    kind = numba.types.float32 if dtype == torch.float32 else numba.types.float64
    pointer = numba.types.CPointer(kind)
    carray, prange = numba.carray, numba.prange
    jit = numba.njit(parallel=True, fastmath={"reassoc", "contract", "nsz", "arcp"})  # NaN stays NaN

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(numba.types.uint64), generate

    @jit  # type: ignore[untyped-decorator]
    def products(at_w: Array, at_x: Array, length: Array, with_w: bool, sums: Array) -> None:
        all_xx, all_wx, all_ww = 0.0, 0.0, 0.0
        for k in prange(len(length)):
            w, x = carray(at(at_w[k]), length[k]), carray(at(at_x[k]), length[k])
            xx, wx, ww = kind(0), kind(0), kind(0)
            if with_w:
                for i in range(length[k]):
                    xx += x[i] * x[i]
                    wx += w[i] * x[i]
                    ww += w[i] * w[i]
            else:
                for i in range(length[k]):
                    xx += x[i] * x[i]
            all_xx += xx
            all_wx += wx
            all_ww += ww
        sums[0], sums[1], sums[2] = all_xx, all_wx, all_ww

    @jit  # type: ignore[untyped-decorator]
    def advance(at_w: Array, at_x: Array, at_z: Array, length: Array, scalars: Array, mu: float) -> None:
        push, pull, shrink, skip = scalars
        if skip != 0:
            return
        for k in prange(len(length)):
            w, x = carray(at(at_w[k]), length[k]), carray(at(at_x[k]), length[k])
            if len(at_z) == 0:
                for i in range(length[k]):
                    w[i] = shrink * w[i] - push * (x[i] + pull * w[i])
            else:
                z = carray(at(at_z[k]), length[k])
                for i in range(length[k]):
                    t = push * (x[i] + pull * w[i])
                    z[i] = mu * z[i] - t
                    w[i] = shrink * w[i] - t + mu * z[i]

    return SimpleNamespace(products=products, advance=advance)
