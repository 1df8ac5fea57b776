"""What every module of compiled loops needs of numba: pointers, a shared counter, a file cache, and torch's threads.

This module imports numba (the extra ``fast``): import it when a kernel needs it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from proxsvm._extras import load
from proxsvm._kernels.jit import FAST_MATH, load_numba

numba: Any = load_numba()
ir: Any = load("llvmlite.ir", extra="fast")
extending: Any = load("numba.extending", extra="fast")
carray, types = numba.carray, numba.types

# A division by zero is infinite: a check for it would keep loops from being vectorised.
# Inlined, so that an entry holds all of its code. What is left outside exists twice, compiled for itself and again with
# the entry; the first runs where it was just compiled, the second from a file: other bits after a restart.
EXACT = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True}
exact = numba.njit(**EXACT)
jit = numba.njit(fastmath=set(FAST_MATH), error_model="numpy", forceinline=True)


@extending.intrinsic  # type: ignore[untyped-decorator]
def at(_: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to numbers of the type of ``like``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.uint64, like), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def take(_: Any, address: Any) -> Any:
    """The number at an address, which is raised by one for whoever comes next, in any thread."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        counter = builder.inttoptr(args[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.uint64), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def call(_: Any, address: Any) -> Any:
    """The number that a C function without arguments returns."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.inttoptr(args[0], ir.PointerType(ir.FunctionType(ir.IntType(32), [])))
        return builder.call(function, [])

    return types.int32(types.uint64), generate


def digest(folder: Path) -> str:
    """Of the sources of all loops: a loop compiled from others must not be taken from numba's files."""
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(sources).hexdigest()[:12]


@functools.cache
def _digest() -> str:
    return digest(Path(__file__).parent)


def cached(compile: Callable[..., Any], source: Any) -> Any:
    """``compile(cache=True)(source)``: from numba's files of earlier processes, or compiled, in about half a second.

    numba itself looks at the file of ``source`` alone, not at those of the functions that it calls.
    """
    try:
        source.__qualname__ = f"{source.__name__}_{_digest()}"  # a part of the file's name
        return compile(cache=True)(source)
    except Exception:  # no folder to write to, a full disk, a damaged file: it goes without
        return compile()(source)


class Team(NamedTuple):
    """``run(function, data, threads, 0)`` of OpenMP, and the address of its function for a thread's number."""

    run: Callable[[int, int, int, int], None]
    number: int


@functools.cache
def team() -> Team | None:
    """The threads of torch's own OpenMP; None where torch has no such.

    numba has threads of its own, which we leave alone: they would stand in the way of torch's, and depending on what is
    installed they abort the process where two threads of Python step at once, or where it was forked.
    """
    try:
        library = ctypes.CDLL(torch._C.__file__)
        run = library.GOMP_parallel  # in gcc's, LLVM's and Intel's library
        number = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return Team(run, number or 0)


def run(loop: Any, job: int, threads: int) -> None:
    """Run a loop, compiled by ``numba.cfunc("void(uint64)")``, on the job at an address."""
    found = team() if threads > 1 else None
    if found is None:
        loop.ctypes(job)
    else:
        found.run(loop.address, job, threads, 0)
