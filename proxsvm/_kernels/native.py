"""What every module of compiled loops needs from numba: pointers, a shared counter, a file cache, and torch's threads.

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

# Division by zero gives infinity: a check for it would keep loops from being vectorised.
# Inlined, so that an entry contains all of its code. A function left outside exists twice, compiled alone and again
# with the entry. The first runs right after compilation, the second from the cache: the bits change after a restart.
EXACT = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True}
exact = numba.njit(**EXACT)
jit = numba.njit(fastmath=set(FAST_MATH), error_model="numpy", forceinline=True)


@extending.intrinsic  # type: ignore[untyped-decorator]
def at(_: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to values of the type of ``like``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.uint64, like), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def take(_: Any, address: Any) -> Any:
    """The counter at an address, before it is incremented atomically."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        counter = builder.inttoptr(args[0], ir.PointerType(ir.IntType(64)))
        return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.uint64), generate


@extending.intrinsic  # type: ignore[untyped-decorator]
def call(_: Any, address: Any) -> Any:
    """The result of the C function at an address, which takes no arguments."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.inttoptr(args[0], ir.PointerType(ir.FunctionType(ir.IntType(32), [])))
        return builder.call(function, [])

    return types.int32(types.uint64), generate


def digest(folder: Path) -> str:
    """The digest of the sources of all loops: one compiled from other sources must not be loaded from numba's cache."""
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(sources).hexdigest()[:12]


@functools.cache
def _digest() -> str:
    return digest(Path(__file__).parent)


def cached(compile: Callable[..., Any], source: Any) -> Any:
    """``compile(cache=True)(source)``: loaded from numba's cache, or compiled in about half a second.

    Numba itself checks only the file of ``source``, not those of the functions that it calls.
    """
    try:
        source.__qualname__ = f"{source.__name__}_{_digest()}"  # part of the name of the cache file
        return compile(cache=True)(source)
    except Exception:  # no folder to write to, a full disk, a damaged file: no cache
        return compile()(source)


class Team(NamedTuple):
    """OpenMP's ``run(function, data, threads, 0)``, and the address of its function that returns the thread number."""

    run: Callable[[int, int, int, int], None]
    number: int


@functools.cache
def team() -> Team | None:
    """The threads of torch's own OpenMP; None where torch has none.

    Numba has its own threads, which are not used: they would compete with torch's, and depending on what is installed,
    they abort the process when two Python threads step at once, or after a fork.
    """
    try:
        library = ctypes.CDLL(torch._C.__file__)
        run = library.GOMP_parallel  # in the libraries of gcc, LLVM and Intel
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
