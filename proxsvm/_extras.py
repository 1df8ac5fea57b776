"""Optional dependencies, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any


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
