"""``fused``: the two sweeps of a step as two compiled loops over the memory of the tensors, where it lies.

The inner products read w and x once, the update reads w, x, z and writes w, z: seven streams of memory against the five
of ``torch.optim.SGD(fused=True)``. All that is made for it are the addresses, and three sums for 65,536 parameters.
Compiled by numba (the extra ``fast``), see :mod:`proxsvm.loops`, which is imported at the first step that can use it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from proxsvm.extras import load
from proxsvm.update import PLAIN, Sweep, Sweeps

CHUNK = 1 << 16  # elements that a thread walks at a time
HEAD = 8  # numbers of a job before the shares, as in proxsvm/loops.py
DTYPES = (torch.float32, torch.float64)

Array: TypeAlias = "np.ndarray[Any, Any]"


class FusedSweeps(Sweeps):
    """Compiled sweeps for what a loop can walk. For anything else: an error if they ``insist``, or torch's kernels."""

    def __init__(self, insist: bool) -> None:
        super().__init__()
        self.insist = insist
        if insist:
            load("numba", extra="fast")  # say now that it is missing
        self._chunks: dict[object, Chunks] = {}

    def over(self, w: Sequence[Tensor], x: Sequence[Tensor]) -> Sweep:
        """A sweep over tensors of one dtype on one device."""
        if torch.compiler.is_compiling():  # the compiler fuses by itself
            return super().over(w, x)
        obstacle = _obstacle(w, x)
        if obstacle is None and (self.insist or (not _watched() and _available(w[0].dtype))):
            sizes = list(map(Tensor.numel, w))
            chunks = self.kept(self._chunks, (w[0].dtype, *sizes), lambda: Chunks(sizes, w[0].dtype))
            made = FusedSweep(w, x, chunks)
            if made.apart():
                return made
            obstacle = "two parameters share memory"
        if self.insist:
            raise RuntimeError(
                f"fused=True, but {obstacle}: the compiled loops walk dense float32 and float64 parameters in the "
                "memory of the CPU. Leave fused at None, which uses them wherever they can be used"
            )
        return super().over(w, x)


def _obstacle(w: Sequence[Tensor], x: Sequence[Tensor]) -> str | None:
    """Why no loop can walk these tensors; None if one can."""
    dtype = w[0].dtype
    if dtype not in DTYPES:
        return f"a parameter has dtype {dtype}"
    if not w[0].is_cpu:
        return f"a parameter is on {w[0].device}"
    if not PLAIN.issuperset(map(type, w)) or not PLAIN.issuperset(map(type, x)):
        return "a parameter or its gradient is of a subclass of torch.Tensor"
    if not all(map(attrgetter("is_cpu"), x)):
        return "a gradient is not on the CPU"
    if not all(map(Tensor.is_contiguous, w)) and not all(map(is_dense, w)):
        return "a parameter has gaps or overlaps in its memory"
    return None


def _watched() -> bool:
    """Whether a mode, a tracer or a transform of torch wants to see every operation: it would not see the loops."""
    traced = torch._C._get_tracing_state() is not None or torch._C._functorch.maybe_current_level() is not None
    return traced or is_in_torch_dispatch_mode()


@functools.cache
def _available(dtype: torch.dtype) -> bool:
    """Whether there are loops for a dtype, and threads to run them: then they are used where nobody has chosen."""
    try:
        from proxsvm import loops

        loops.compiled("products", dtype), loops.compiled("advance", dtype)
    except Exception:  # whatever is wrong with numba here: torch's kernels give the same numbers
        logging.getLogger(__name__).debug("no compiled loops, torch's kernels are used", exc_info=True)
        return False
    return loops.team() is not None


def is_dense(t: Tensor) -> bool:
    """Whether a tensor fills a piece of memory without gaps and overlaps, in whatever order of its dimensions.

    >>> is_dense(torch.ones(2, 3).t()), is_dense(torch.ones(2, 3)[:, :2]), is_dense(torch.ones(3).expand(2, 3))
    (True, False, False)
    """
    expected = 1
    for stride, n in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True


def laid_out_as(w: Sequence[Tensor], x: Sequence[Tensor]) -> Sequence[Tensor]:
    """``x`` with the memory order and dtype of ``w``: itself, but for those that have to be copied."""
    if (
        all(map(Tensor.is_contiguous, x))
        and {w[0].dtype}.issuperset(map(attrgetter("dtype"), x))
        and not any(map(Tensor.is_neg, x))  # the memory of such a view holds the numbers with the other sign
        and all(map(Tensor.is_contiguous, w))
    ):
        return x
    return [
        b if b.stride() == a.stride() and b.dtype == a.dtype and not b.is_neg() else torch.empty_like(a).copy_(b)
        for a, b in zip(w, x, strict=True)
    ]


class Chunks:
    """Tensors of these sizes, cut into chunks: a ``table`` of the tensor of each, its first element and its length."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype) -> None:
        cuts = [(i, start, min(CHUNK, n - start)) for i, n in enumerate(sizes) for start in range(0, n, CHUNK)]
        self.table = np.array(cuts, dtype=np.int64).reshape(-1, 3)
        self.n, self.at = len(self.table), self.table.ctypes.data
        self.dtype, self.total = dtype, sum(sizes)
        self.bytes = np.array(sizes, dtype=np.uint64) * np.uint64(dtype.itemsize)
        self.sums, self.numbers = np.empty((self.n, 3)), np.empty(5, dtype=str(dtype).removeprefix("torch."))
        self.at_sums, self.at_numbers = self.sums.ctypes.data, self.numbers.ctypes.data
        self.apart = b""  # addresses that were found to be good
        self._shares: dict[int, Array] = {}

    def shares(self, threads: int) -> Array:
        """For each thread the chunks that it has taken, its first, and the one after its last; of about equal size."""
        if threads not in self._shares:
            ends = np.searchsorted(np.cumsum(self.table[:, 2]), self.total * np.arange(1, threads) / threads)
            bounds = np.array([0, *ends, self.n])
            self._shares[threads] = np.stack([0 * bounds[1:], bounds[:-1], bounds[1:]], 1).astype(np.uint64).reshape(-1)
        return self._shares[threads]


class FusedSweep(Sweep):
    """What :class:`~proxsvm.update.Sweep` computes, in two loops."""

    def __init__(self, w: Sequence[Tensor], x: Sequence[Tensor], chunks: Chunks) -> None:
        self.w, self.x, self._chunks = w, laid_out_as(w, x), chunks
        self._threads = max(1, min(torch.get_num_threads(), chunks.total // CHUNK))
        self._first = HEAD + 3 * self._threads
        self._job = np.zeros(self._first + 3 * len(w), dtype=np.uint64)
        self._at = self._job.ctypes.data
        self._point(0, w)
        self._point(1, self.x)

    def _point(self, k: int, tensors: Sequence[Tensor]) -> None:
        n, start = len(tensors), self._first + k * len(tensors)
        self._job[start : start + n] = np.fromiter(map(Tensor.data_ptr, tensors), np.uint64, n)

    def apart(self) -> bool:
        """Whether the parameters have no memory in common: two threads must not write to one place."""
        at, size = self._job[self._first : self._first + len(self.w)], self._chunks.bytes
        known = at.tobytes()
        if self._chunks.apart != known:
            order = np.argsort(at, kind="stable")
            order = order[size[order] > 0]
            if (at[order][:-1] + size[order][:-1] > at[order][1:]).any():
                return False
            self._chunks.apart = known
        return True

    def _run(self, name: str, flag: bool, at: int) -> None:
        from proxsvm import loops

        chunks, team = self._chunks, loops.team()
        number = team.number if team is not None and self._threads > 1 else 0
        self._job[:HEAD] = self._threads, len(self.w), chunks.at, flag, at, chunks.dtype.itemsize, number, 0
        self._job[HEAD : self._first] = chunks.shares(self._threads)
        loops.run(name, chunks.dtype, self._at, self._threads)

    def sums(self, *, with_w: bool = True) -> Array:
        """⟨x, x⟩, ⟨w, x⟩ and ⟨w, w⟩ in float64; only the first ``with_w=False``."""
        self._run("products", with_w, self._chunks.at_sums)
        total: Array = self._chunks.sums.sum(0)
        return total

    def products(self, *, with_w: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """The same as 0-dim tensors of the parameters' dtype."""
        xx, wx, ww = torch.from_numpy(self.sums(with_w=with_w)).to(self.w[0].dtype).unbind()
        return xx, wx, ww

    def with_velocities(self, z: Sequence[Tensor] | None) -> Callable[[Sequence[float]], None]:
        """The update of ``advance``, ready to run with push, pull, shrink, skip and μ.

        Made before the inner products, it finds in the cache what is to be known of the tensors.
        """
        walked = [] if z is None else laid_out_as(self.w, z)
        self._point(2, walked)

        def move(numbers: Sequence[float]) -> None:
            self._chunks.numbers[:] = numbers
            self._run("advance", z is not None, self._chunks.at_numbers)
            if z is not None and walked is not z:
                torch._foreach_copy_(list(z), list(walked))

        torch.autograd.graph.increment_version(self.w)
        return move

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
        rest = torch.as_tensor(0.0 if pull is None else pull), torch.ones_like(push) if shrink is None else shrink
        self.with_velocities(z)(torch.stack([push, *rest, skip, torch.as_tensor(mu)]).numpy().tolist())
