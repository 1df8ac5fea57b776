"""Optional dependencies and heavy parts of torch, imported when they are first needed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def eager(function: F) -> F:
    """``function``, never traced: ``torch.compiler.disable``, which imports the whole compiler, only while tracing.

    >>> eager(abs)(-2)
    2
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            disable: Any = torch.compiler.disable
            return disable(function)(*args, **options)
        return function(*args, **options)

    return cast(F, call)


def load(module: str, extra: str) -> Any:
    """Import ``module``, or say which extra of proxsvm installs it.

    >>> load("math", extra="qp").sqrt(4.0)
    2.0
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the module is there; something that it needs is not
        raise ModuleNotFoundError(
            f"this part of proxsvm needs {module!r}, which is not installed: pip install '.[{extra}]' in "
            "proxsvm's source folder",
            name=module,
        ) from error
