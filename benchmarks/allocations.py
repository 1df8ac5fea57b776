"""The memory that torch's operations allocate, counted as they run."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """``peak``: the most bytes that results of operations held at one time while the mode was on; ``live``: now.

    What an operation allocates internally and frees before it returns is not counted.

    >>> with Allocations() as made:
    ...     for _ in range(3):
    ...         x = torch.zeros(10)            # the next one exists before the last one is freed
    >>> made.live, made.peak
    (40, 80)
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def live(self) -> int:
        """Bytes that are currently held."""
        self._held = {key: held for key, held in self._held.items() if not held[0].expired()}
        return sum(size for _, size in self._held.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in given:
                storage = x.untyped_storage()
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.live)
        return result
