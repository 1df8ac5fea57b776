"""Numba (the extra ``fast``), where it can be used: how to load it, and how to compile a module of loops.

A module of loops is plain Python: module-level functions that call each other. The interpreter runs it as it is;
:func:`compiled` returns the same functions compiled.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from proxsvm._extras import load

# Sums may be reordered, so that they become vector instructions; NaN stays NaN.
FAST_MATH = frozenset({"reassoc", "contract", "nsz", "arcp"})

log = logging.getLogger(__name__)


def load_numba() -> Any:
    """Numba, or an ImportError that says why it cannot be used."""
    try:
        numba = load("numba", extra="fast")
    except ImportError:
        raise
    except Exception as error:  # a numba that is incompatible with the installation may raise anything
        raise ImportError(f"numba is installed, but cannot be imported: {error}") from error
    if numba.config.DISABLE_JIT:
        raise ImportError("numba is installed, but NUMBA_DISABLE_JIT=1 keeps it from compiling")
    return numba


@functools.cache
def has_numba() -> bool:
    """Whether numba can be used; if not, the log says why, at debug level."""
    try:
        load_numba()
    except ImportError as error:
        log.debug("loops run interpreted, which is slower: %s", error)
        return False
    return True


def compiled(*modules: ModuleType) -> SimpleNamespace:
    """The functions of ``modules`` compiled; of two functions with the same name, the later one wins.

    Each is a copy whose globals are the compiled functions, so all calls among them are compiled too. Compilation
    happens at the first call.
    """
    jit: Callable[[Any], Any] = load_numba().njit(fastmath=set(FAST_MATH))
    scope: dict[str, Any] = {}
    for module in modules:
        scope |= vars(module)
    functions = {name: jit(_in_scope(f, scope)) for name, f in scope.items() if isinstance(f, FunctionType)}
    scope |= functions
    return SimpleNamespace(**functions)


def _in_scope(f: FunctionType, scope: dict[str, Any]) -> FunctionType:
    return FunctionType(f.__code__, scope, f.__name__, f.__defaults__, f.__closure__)
