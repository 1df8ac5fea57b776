"""The checks of targets, with the same messages for all losses."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def tensor_target(name: str, target: Any, of: str = "") -> Tensor:
    """The target of the loss ``name``, a tensor ``of`` something.

    >>> tensor_target("MyLoss", [1.0])
    Traceback (most recent call last):
    TypeError: MyLoss got a target that is a list; expected a tensor: torch.as_tensor(target)
    """
    if not isinstance(target, Tensor):
        expected = f"a tensor of {of}" if of else "a tensor"
        raise TypeError(
            f"{name} got a target that is a {type(target).__name__}; expected {expected}: torch.as_tensor(target)"
        )
    return target


def binary_target(name: str, target: Any) -> Tensor:
    """A target of 0 and 1, as integers."""
    labels = tensor_target(name, target, "0 and 1")
    if labels.is_floating_point():
        raise TypeError(
            f"{name} got a target of {labels.dtype}, which is neither integer nor bool; expected 0 and 1: target.long()"
        )
    return labels.long()
