"""``fused=True``: the two sweeps of a step as two compiled loops over the memory of the tensors, where it lies.

The inner products read w and x once, the update reads w, x, z and writes w, z: seven streams of memory against the five
of ``torch.optim.SGD(fused=True)``, and not a byte of temporaries for any parameter. Compiled by numba (the extra
``fast``), in two or three seconds at the first step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from proxsvm.extras import load
from proxsvm.update import Sweep, Sweeps

CHUNK = 1 << 13  # elements that a thread walks at a time

Array: TypeAlias = "np.ndarray[Any, Any]"


class FusedSweeps(Sweeps):
    """Compiled sweeps for float32 and float64 on the CPU; for anything else those that all optimizers have."""

    def __init__(self) -> None:
        super().__init__()
        load("numba", extra="fast")  # say now that it is missing
        self._chunks: dict[object, Chunks] = {}

    def over(self, w: Sequence[Tensor], x: Sequence[Tensor]) -> Sweep:
        """A sweep over tensors of one dtype on one device."""
        if torch.compiler.is_compiling() or not _in_memory([*w, *x], w[0].dtype):
            return super().over(w, x)
        sizes = [t.numel() for t in w]
        chunks = self.kept(self._chunks, (w[0].dtype, *sizes), lambda: Chunks(sizes, w[0].itemsize))
        return FusedSweep(w, x, chunks, self)


class Chunks:
    """Tensors of these sizes, cut into chunks: the ``tensor`` of each, the byte where it starts, and its ``length``."""

    def __init__(self, sizes: Sequence[int], itemsize: int) -> None:
        cuts = [(i, start, min(CHUNK, n - start)) for i, n in enumerate(sizes) for start in range(0, n, CHUNK)]
        table = np.array(cuts, dtype=np.int64).reshape(-1, 3)
        self.tensor, self.length = table[:, 0], np.ascontiguousarray(table[:, 2])
        self.start = (table[:, 1] * itemsize).astype(np.uint64)

    def addresses(self, tensors: Sequence[Tensor]) -> Array:
        """Where each chunk lies."""
        return np.array([t.data_ptr() for t in tensors], dtype=np.uint64)[self.tensor] + self.start


class FusedSweep(Sweep):
    """What :class:`~proxsvm.update.Sweep` computes, in two loops."""

    def __init__(self, w: Sequence[Tensor], x: Sequence[Tensor], chunks: Chunks, sweeps: Sweeps) -> None:
        self.w, self.x = w, x
        self._chunks, self._sweeps = chunks, sweeps
        self._at_w, self._at_x = chunks.addresses(w), chunks.addresses(x)

    def products(self, *, with_w: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """⟨x, x⟩, ⟨w, x⟩ and ⟨w, w⟩; only the first ``with_w=False``."""
        sums = np.empty((len(self._chunks.length), 3))
        _loops(self.w[0].dtype).products(self._at_w, self._at_x, self._chunks.length, sums, with_w)
        xx, wx, ww = torch.from_numpy(sums.sum(0)).to(self.w[0].dtype).unbind()
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
        one = torch.ones_like(push)
        numbers = [push, torch.as_tensor(0.0 if pull is None else pull), one if shrink is None else shrink, skip]
        scalars = torch.stack([x.to(w[0].dtype) for x in numbers]).numpy()
        at_z = np.empty(0, dtype=np.uint64) if z is None else self._chunks.addresses(z)
        _loops(w[0].dtype).advance(self._at_w, self._at_x, at_z, length, scalars, scalars.dtype.type(mu))
        torch.autograd.graph.increment_version([*w, *(z or [])])


def _in_memory(tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether a loop can walk the tensors' memory: contiguous floats on the CPU, and no subclass with its own ideas."""
    return dtype in (torch.float32, torch.float64) and all(
        type(t) in _PLAIN and t.dtype == dtype and t.device.type == "cpu" and t.is_contiguous() for t in tensors
    )


_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def _loops(dtype: torch.dtype) -> SimpleNamespace:
    """The compiled loops, on as many threads as torch has."""
    numba = load("numba", extra="fast")
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    return _compile("float32" if dtype == torch.float32 else "float64")


@functools.cache
def _compile(name: str) -> SimpleNamespace:
    numba = load("numba", extra="fast")
    extending = load("numba.extending", extra="fast")
    kind = getattr(numba.types, name)
    pointer = numba.types.CPointer(kind)
    carray, prange = numba.carray, numba.prange
    jit = numba.njit(parallel=True, fastmath={"reassoc", "contract", "nsz", "arcp"})  # NaN stays NaN

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(pointer))

        return pointer(numba.types.uint64), generate

    @jit  # type: ignore[untyped-decorator]
    def products(at_w: Array, at_x: Array, length: Array, sums: Array, with_w: bool) -> None:
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
            sums[k, 0], sums[k, 1], sums[k, 2] = xx, wx, ww

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
