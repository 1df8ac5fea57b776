"""The passes of a step as two loops over the tensors' memory, compiled by numba (the extra ``fast``).

The inner products read w and x once; the update reads w, x, z and writes w, z: seven streams of memory against the five
of ``torch.optim.SGD(fused=True)``; ten in a diagonal metric against the seven of ``Adam(fused=True)``. The only
temporary memory is the addresses, and four sums per 65,536 parameters. The loops are in
:mod:`proxsvm._kernels.step_loops`, which is imported at the first step that can use it.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.jit import load_numba
from proxsvm._kernels.passes import Moments, Passes, Sums, Tensors, Update, compare, shapes
from proxsvm._kernels.tensors import PLAIN, Alike, Array, are_plain, chunks, disjoint, is_dense, laid_out_as
from proxsvm._numbers import to_float

CHUNK = 1 << 16  # elements that a thread takes at a time
HEAD, FLAGS = 8, 3  # words of a job before the shares, and the index of its flags
SCALARS = 10  # push, lift, keep = 1 − drop, μ, rate; β₂, 1 − β₂, correction, eps, scale
WITH_W, MOMENTS, VELOCITY, AVERAGE, START = 1, 2, 4, 8, 16  # flags of a job
DTYPES = (torch.float32, torch.float64)
TAKES = "the compiled loops take dense float32 and float64 parameters in CPU memory"


def obstacle(w: Sequence[Tensor], x: Sequence[Tensor]) -> str | None:
    """Why no loop can take these tensors; None if one can."""
    dtype = w[0].dtype
    if dtype not in DTYPES:
        return f"a parameter has dtype {dtype}"
    if not w[0].is_cpu:
        return f"a parameter is on {w[0].device}"
    if not PLAIN.issuperset(map(type, w)) or not PLAIN.issuperset(map(type, x)):
        return "a parameter or its gradient is an instance of a subclass of torch.Tensor"
    if not all(map(attrgetter("is_cpu"), x)):
        return "a gradient is not on the CPU"
    return None


@functools.cache
def available(dtype: torch.dtype) -> bool:
    """Whether there are loops for a dtype, and threads to run them."""
    try:
        load_numba()
        from proxsvm._kernels import native, step_loops

        step_loops.compiled("products", dtype), step_loops.compiled("advance", dtype)
    except Exception:  # whatever is wrong with numba here: torch's kernels give the same results
        logging.getLogger(__name__).debug("no compiled loops; using torch's kernels", exc_info=True)
        return False
    return native.team() is not None


class Plan:
    """Tensors of these shapes cut into chunks: a ``table`` of each chunk's tensor, first element and length.

    It is kept from step to step, with what is known about the addresses of the last step.
    """

    def __init__(self, w: Sequence[Tensor]) -> None:
        from proxsvm._kernels import native, step_loops

        self._team, self._native, sizes = native.team(), native.run, [t.numel() for t in w]
        self._loops = {name: step_loops.compiled(name, w[0].dtype) for name in ("products", "advance")}
        self.dtype, self.total, self.shapes = w[0].dtype, sum(sizes), shapes(w)
        self.table = chunks(sizes, CHUNK)
        self.n, self.address = len(self.table), self.table.ctypes.data
        self.bytes = np.array(sizes, dtype=np.uint64) * np.uint64(self.dtype.itemsize)
        self.sums, self.scalars = np.empty((self.n, 4)), np.zeros(SCALARS, dtype=str(self.dtype).removeprefix("torch."))
        self.sums_address, self.scalars_address = self.sums.ctypes.data, self.scalars.ctypes.data
        self.alike: Alike | None = None  # whether w and x match the first ones found to be plain
        self.disjoint = b""  # addresses of parameters that do not overlap
        self.known: dict[int, tuple[Tensors, bytes]] = {}  # checked streams, and their addresses
        self._heads: dict[int, Array] = {}

    def head(self, threads: int) -> Array:
        """The head of a job, before its addresses.

        Eight words, with the flags not yet set; then for each thread its share: the number of chunks taken, the first,
        and the one after the last. The shares are of about equal size.
        """
        if threads not in self._heads:
            number = self._team.number if self._team is not None and threads > 1 else 0
            ends = np.searchsorted(np.cumsum(self.table[:, 2]), self.total * np.arange(1, threads) / threads)
            bounds = np.array([0, *ends, self.n])
            shares = np.stack([0 * bounds[1:], bounds[:-1], bounds[1:]], 1).reshape(-1)
            words = threads, len(self.shapes), self.address, 0, self.sums_address, self.dtype.itemsize, number
            self._heads[threads] = np.array([*words, self.scalars_address, *shares], dtype=np.uint64)
        return self._heads[threads]

    def run(self, name: str, job: int, threads: int) -> None:
        """Run one of the two loops on the job at an address."""
        self._native(self._loops[name], job, threads)


class FusedPasses(Passes):
    """The two passes as two jobs for the loops. Shapes are compared before an address is taken."""

    def __init__(self, w: Tensors, x: Tensors, plan: Plan, moments: Moments | None = None, alike: bool = False) -> None:
        self.w, self.x, self._plan, self._moments = w, x, plan, moments
        self._threads = max(1, min(torch.get_num_threads(), plan.total // CHUNK))
        self._first = HEAD + 3 * self._threads
        self._job = np.zeros(self._first + 6 * len(w), dtype=np.uint64)
        self._address = self._job.ctypes.data
        self._contiguous = alike or all(map(Tensor.is_contiguous, w))
        self._at = self._point(0, w)
        if alike:
            self._point(1, x)
        else:
            self.x = self._stream(1, x, "gradient")
            if plan.alike is None and self._contiguous and self.x is x:
                plan.alike = Alike([*w, *x])
        self._v = None if moments is None else self._kept(2, moments.v, "second moment")

    def _stream(self, k: int, tensors: Tensors, what: str) -> Tensors:
        """The tensors of stream ``k``, in the memory order of w, with their addresses in the job."""
        on_cpu = k == 1 or all(map(attrgetter("is_cpu"), tensors))  # known for a gradient
        if not on_cpu or self._plan.shapes != shapes(tensors):
            compare(what, self.w, tensors)  # raises, and says which one
        if not self._contiguous or not are_plain(tensors, self._plan.dtype):
            tensors = [laid_out_as(a, b, self._plan.dtype) for a, b in zip(self.w, tensors, strict=True)]
        self._point(k, tensors)
        return tensors

    def _kept(self, k: int, tensors: Tensors, what: str) -> Tensors:
        """The same for tensors that are kept from step to step: those of the last step are not checked again."""
        known, at = self._plan.known.get(k, ((), b""))
        same = self._contiguous and len(known) == len(tensors) and all(map(operator.is_, known, tensors))
        if same and self._point(k, tensors) == at:  # their data was not replaced either
            return tensors
        found = self._stream(k, tensors, what)
        if found is tensors:
            self._plan.known[k] = tensors, self._point(k, tensors)
        return found

    def _point(self, k: int, tensors: Tensors) -> bytes:
        n, start = len(tensors), self._first + k * len(tensors)
        addresses = np.fromiter(map(Tensor.data_ptr, tensors), np.uint64, n)
        self._job[start : start + n] = addresses
        return addresses.tobytes()

    def obstacle(self) -> str | None:
        """Why the loops cannot take these parameters after all; None if they can."""
        if not self._contiguous and not all(map(is_dense, self.w)):
            return "a parameter has gaps or overlaps in its memory"
        return None if self._disjoint() else "two parameters share memory"

    def _disjoint(self) -> bool:
        """Whether no two parameters overlap in memory: two threads must not write to the same address."""
        known, size = self._at, self._plan.bytes
        if self._plan.disjoint != known:
            if not disjoint(np.frombuffer(known, np.uint64), size):
                return False
            self._plan.disjoint = known
        return True

    def _run(self, name: str, flags: int) -> None:
        plan = self._plan
        if self._moments is not None:
            _, beta2, correction, eps, scale = self._moments
            plan.scalars[5:10] = beta2, 1 - beta2, to_float(correction), eps, to_float(scale)
            flags |= MOMENTS
        self._job[: self._first] = plan.head(self._threads)
        self._job[FLAGS] = flags
        plan.run(name, self._address, self._threads)

    def products(self, with_w: bool = True, start: Tensors | None = None) -> Sums:
        """The inner products as Python floats."""
        laid_out = None if start is None else self._kept(5, start, "start")  # kept alive while its addresses are used
        self._run("products", (WITH_W if with_w else 0) | (START if laid_out is not None else 0))
        xx, wx, ww, uu = self._plan.sums.sum(0).tolist()
        return Sums(xx, wx, ww, uu) if with_w else Sums(xx, uu=uu)

    def advance(self, z: Tensors | None, average: Tensors | None, update: Update) -> None:
        """Change everything in place."""
        if to_float(update.skip):
            return
        moved = [(self._moments.v, self._v)] if self._moments is not None and self._v is not None else []
        flags = 0
        for k, flag, what, tensors in ((3, VELOCITY, "velocity", z), (4, AVERAGE, "average", average)):
            if tensors is not None:
                moved.append((tensors, self._kept(k, tensors, what)))
                flags |= flag
        push, lift, drop, mu, rate = (to_float(c) for c in update[:5])
        self._plan.scalars[:5] = push, lift, 1 - drop, mu, rate
        self._run("advance", flags)
        for tensors, copies in moved:
            if copies is not tensors:
                torch._foreach_copy_(list(tensors), list(copies))
        torch.autograd.graph.increment_version(self.w)
