"""The passes of a step as two launches on a GPU, in Triton (the extra ``gpu``; torch's CUDA builds include it).

Seven streams of memory, ten in a diagonal metric, like the compiled loops on the CPU; nothing is copied, and the host
reads nothing. All that the kernels need from the tensors is a table of addresses on the device. It is uploaded when an
address has changed, and kept: once gradients reuse earlier addresses, a step uploads nothing, and a CUDA graph can hold
it. The kernels are in :mod:`proxsvm._kernels.step_triton_kernels`, which is imported at the first step on a GPU.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.passes import Moments, Passes, Sums, Tensors, Update, compare
from proxsvm._kernels.tensors import PLAIN, accumulator, are_plain, chunks, disjoint, is_dense, laid_out_as
from proxsvm._numbers import Number, to_float

CHUNK = 1 << 15  # elements per program
DEVICES = frozenset({"cuda"})  # the tests add "cpu", where Triton's interpreter runs the kernels
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TABLES = 16  # kept at most, for different addresses
CAPTURED: list[object] = []  # what CUDA graphs read at every replay; never freed: which one is the last is unknown
KEY = 0x5555555555555555  # gives every constant 64 bits: Triton would turn a small one into an int32
TAKES = "the kernels take dense parameters of 16, 32 or 64 bits in GPU memory"


def obstacle(w: Sequence[Tensor], x: Sequence[Tensor]) -> str | None:
    """Why the kernels cannot take these tensors; None if they can."""
    if w[0].dtype not in DTYPES:
        return f"a parameter has dtype {w[0].dtype}"
    if not PLAIN.issuperset(map(type, w)) or not PLAIN.issuperset(map(type, x)):
        return "a parameter or its gradient is an instance of a subclass of torch.Tensor"
    if not all(map(Tensor.is_contiguous, w)) and not all(map(is_dense, w)):
        return "a parameter has gaps or overlaps in its memory"
    return None


@functools.cache
def available(dtype: torch.dtype) -> bool:
    """Whether Triton can compile the kernels for a dtype."""
    try:
        import proxsvm._kernels.step_triton_kernels  # noqa: F401

        if torch.cuda.is_available():  # Triton also needs a C compiler and a GPU that is not too old: try
            w = [torch.zeros(2, dtype=dtype, device="cuda")]
            tried = FusedPasses(w, w, Plan(w))
            tried.products()
            tried.advance(None, None, Update(0.0))
    except Exception:  # whatever is wrong with it: torch's own operations give the same results
        logging.getLogger(__name__).debug("no Triton; using torch's operations", exc_info=True)
        return False
    return dtype in DTYPES


class Plan:
    """Tensors of these shapes cut into chunks: what is kept on the device from step to step."""

    def __init__(self, w: Sequence[Tensor]) -> None:
        sizes, device = [t.numel() for t in w], w[0].device
        self.chunks = torch.from_numpy(chunks(sizes, CHUNK)).to(device)
        self.programs = len(self.chunks)
        self.partial = torch.zeros(max(1, self.programs), 4, dtype=torch.float64, device=device)
        self.ticket = torch.zeros((), dtype=torch.int32, device=device)
        self.bytes = np.array(sizes, dtype=np.uint64) * np.uint64(w[0].element_size())
        self._begin()
        self.disjoint = b""  # addresses of parameters that do not overlap

    def _begin(self) -> None:
        """Allocate new tables on host and device. A copy in progress keeps reading the earlier ones."""
        shape = TABLES, 6, len(self.bytes)
        self._host = torch.empty(shape, dtype=torch.int64, pin_memory=self.chunks.is_cuda)
        self._device = torch.empty(shape, dtype=torch.int64, device=self.chunks.device)
        self._tables: dict[bytes, Tensor] = {}

    def table(self, streams: Sequence[Tensors | None]) -> Tensor:
        """The addresses of some streams on the device, ``[streams, n]``; 0 for a missing stream."""
        n = len(self.bytes)
        rows = [[0] * n if s is None else list(map(Tensor.data_ptr, s)) for s in streams]
        host = np.array(rows, dtype=np.uint64).view(np.int64)
        key = host.tobytes()
        if key not in self._tables:
            if len(self._tables) == TABLES:
                self._begin()
            k = len(self._tables)
            given = self._host[k].copy_(torch.from_numpy(host))
            self._tables[key] = self._device[k].copy_(given, non_blocking=True)
            if self.chunks.is_cuda and torch.cuda.is_current_stream_capturing():
                CAPTURED.append((self, self._host, self._device))
        return self._tables[key]


class FusedPasses(Passes):
    """The two passes as two launches. Shapes are compared before an address is taken."""

    def __init__(self, w: Tensors, x: Tensors, plan: Plan, moments: Moments | None = None) -> None:
        self.w, self._plan, self._moments = [t.detach() for t in w], plan, moments
        self.x = self._stream(x, "gradient")
        self._v = None if moments is None else self._stream(moments.v, "second moment")

    def obstacle(self) -> str | None:
        """Why the kernels cannot take these parameters after all: two programs must not write to the same address."""
        at = np.fromiter(map(Tensor.data_ptr, self.w), np.uint64, len(self.w))
        if self._plan.disjoint != at.tobytes():
            if not disjoint(at, self._plan.bytes):
                return "two parameters share memory"
            self._plan.disjoint = at.tobytes()
        return None

    def _stream(self, tensors: Tensors, what: str) -> Tensors:
        """The tensors with the memory order of w and one dtype, copied only where necessary."""
        compare(what, self.w, tensors)
        dtype = tensors[0].dtype
        if are_plain(tensors, dtype) and all(map(Tensor.is_contiguous, self.w)):
            return tensors
        return [laid_out_as(a, b, dtype) for a, b in zip(self.w, tensors, strict=True)]

    def _common(self, streams: Sequence[Tensors | None]) -> list[Any]:
        return [self._plan.chunks, self._plan.table([self.w, self.x, self._v, *streams]), len(self.w)]

    def _metric(self) -> list[Any]:
        """β₂, 1 − β₂, eps, the correction and the scale."""
        if self._moments is None:
            return [bits(0.0)] * 3 + [bits(0.0), None] * 2
        _, beta2, correction, eps, scale = self._moments
        first = self.w[0]
        return [bits(beta2), bits(1 - beta2), bits(eps), *scalar(correction, first), *scalar(scale, first)]

    def _dtypes(self, *streams: Tensors | None) -> list[Any]:
        """Triton's dtypes of the accumulator, w, x and the streams; None for what is missing."""
        from proxsvm._kernels.step_triton_kernels import tl

        given = [accumulator(self.w[0].dtype), *(None if s is None else s[0].dtype for s in (self.w, self.x, *streams))]
        return [None if d is None else getattr(tl, str(d).removeprefix("torch.")) for d in given]

    def products(self, with_w: bool = True, start: Tensors | None = None) -> Sums:
        """The inner products, as four elements of one small tensor."""
        from proxsvm._kernels import step_triton_kernels as kernels

        plan, first = self._plan, self.w[0]
        laid_out = None if start is None else self._stream(start, "start")  # kept alive until the launch
        out = torch.empty(4, dtype=accumulator(first.dtype), device=first.device)
        if plan.programs:
            given = [*self._common((None, None, laid_out)), plan.partial, plan.ticket, out, *self._metric()]
            with on(first):
                kernels.products[(plan.programs,)](*given, *self._dtypes(self._v, laid_out), with_w, kernels.BLOCK)
        else:
            out.zero_()
        xx, wx, ww, uu = out.unbind()
        return Sums(xx, wx if with_w else 0.0, ww if with_w else 0.0, 0.0 if start is None else uu)

    def advance(self, z: Tensors | None, average: Tensors | None, update: Update) -> None:
        """Change everything in place."""
        from proxsvm._kernels import step_triton_kernels as kernels

        if update.skip is True or not self._plan.programs:
            return
        push, lift, drop, mu, rate, skip = update
        velocity = None if z is None else self._stream(z, "velocity")
        mean = None if average is None else self._stream(average, "average")
        flag = skip.detach().to(self.w[0].device).view(torch.uint8) if isinstance(skip, Tensor) else None
        given = [*self._common((velocity, mean, None)), flag]
        push_, lift_, drop_, rate_ = (scalar(c, self.w[0]) for c in (push, lift, drop, rate))
        given += [*push_, *lift_, *drop_, bits(mu), *rate_]
        with on(self.w[0]):
            kernels.advance[(self._plan.programs,)](
                *given, *self._metric(), *self._dtypes(self._v, velocity, mean), kernels.BLOCK
            )
        v = None if self._moments is None else self._moments.v
        for tensors, copies in ((v, self._v), (z, velocity), (average, mean)):
            if tensors is not None and copies is not None and copies is not tensors:
                torch._foreach_copy_(list(tensors), list(copies))
        torch.autograd.graph.increment_version(self.w)


def bits(c: float) -> int:
    """A float64 as an integer for the kernels."""
    return int(struct.unpack("<q", struct.pack("<d", c))[0]) ^ KEY


def scalar(c: Number, like: Tensor) -> tuple[int, Tensor | None]:
    """A constant, and the scalar on the device of ``like`` that it multiplies.

    A scalar in the host's memory is read, and is a constant: copying it would wait for the device.
    """
    if isinstance(c, Tensor) and (like.is_cpu or not c.is_cpu):
        return bits(1.0), c.detach().to(like.device)
    return bits(to_float(c)), None


def on(t: Tensor) -> Any:
    """Make the device of ``t`` the current one, on which Triton launches."""
    return torch.cuda.device_of(t)  # type: ignore[no-untyped-call]
