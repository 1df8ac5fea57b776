"""Numba (the extra ``fast``): loops compiled at their first call, and cached on disk by numba."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from proxsvm._extras import load

# Sums may be reordered, so that they become vector instructions; NaN stays NaN.
FAST_MATH = frozenset({"reassoc", "contract", "nsz", "arcp"})

F = TypeVar("F", bound=Callable[..., Any])
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
    """Whether numba can be used; if not, a warning in the log says why, once."""
    try:
        load_numba()
    except ImportError as error:
        log.warning("loops run interpreted, about a hundred times slower: %s", error)
        return False
    return True


def njit(function: F, **options: Any) -> F:
    """``function``, compiled where numba can be used.

    Numba's cache is invalidated by a change of the function's own file: functions that call each other belong in one
    module.
    """
    if not has_numba():
        return function
    compile_ = functools.partial(load_numba().njit, fastmath=set(FAST_MATH), **options)
    try:
        return cast(F, compile_(cache=True)(function))
    except RuntimeError:  # no folder is writable
        return cast(F, compile_()(function))
