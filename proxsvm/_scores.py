"""Scores, a tensor or a tuple of tensors: their precision, and checks of values without synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

Scores: TypeAlias = "Tensor | tuple[Tensor, ...]"
T = TypeVar("T")

FORBIDDEN = -1e30  # for −∞: lower than the score of anything allowed, and its product with 0 is 0 and not NaN


def parts(scores: Scores) -> tuple[Tensor, ...]:
    """The tensors of ``scores``, which is one tensor or a tuple of them."""
    return scores if isinstance(scores, tuple) else (scores,)


def like(scores: Scores, tensors: tuple[Tensor, ...]) -> Scores:
    """``tensors`` in the structure of ``scores``: the inverse of :func:`parts`."""
    return tensors if isinstance(scores, tuple) else tensors[0]


def detached(scores: T) -> T:
    """``scores`` without their graph, in the same structure."""
    given: Any = scores
    return cast(T, like(given, tuple(u.detach() for u in parts(given))))


def widened(x: Tensor) -> Tensor:
    """``x`` as float32 where it has half precision: a value is a sum of many terms."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def dense(name: str, scores: Any, what: str = "scores") -> Any:
    """Scores of the loss ``name``, checked, in which half precision becomes float32.

    >>> dense("MyLoss", torch.tensor([1, 2]))
    Traceback (most recent call last):
    TypeError: MyLoss got scores of torch.int64 and torch.strided; expected floating-point numbers of at least ...
    """
    first = parts(scores)[0]
    if not isinstance(first, Tensor) or first.dim() == 0 or first.numel() == 0:
        given = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else f"a {type(first).__name__}"
        expected = "a tensor [n, ...] with at least one sample (skip empty batches)"
        raise ValueError(f"{name} got {what} of {given}; expected {expected}")
    for u in parts(scores):
        if not isinstance(u, Tensor):
            raise TypeError(f"{name} got {what} with a {type(u).__name__} in the tuple; expected tensors")
        if not u.is_floating_point() or u.dtype.itemsize < 2 or u.layout is not torch.strided:
            expected = "floating-point numbers of at least 16 bits, dense: scores.float(), or scores.to_dense()"
            raise TypeError(f"{name} got {what} of {u.dtype} and {u.layout}; expected {expected}")
    return like(scores, tuple([widened(u) for u in parts(scores)]))


def per_sample(given: Any, scores: Scores, what: str) -> Tensor:
    """``given``, checked to be one number for each sample, ``[n]``; if not, the error begins with ``what``.

    >>> per_sample(torch.zeros(()), torch.zeros(2, 3), "MyLoss computed values of")
    Traceback (most recent call last):
    ValueError: MyLoss computed values of shape (); expected one per sample, (2,)
    """
    shape = parts(scores)[0].shape[:1]
    if not isinstance(given, Tensor) or given.shape != shape:
        found = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"type {type(given).__name__}"
        raise ValueError(f"{what} {found}; expected one per sample, {tuple(shape)}")
    return given


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which operations keep the precision of ``x``."""
    kind = x.device.type
    enabled = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if enabled else nullcontext()


def inner(a: Scores, b: Scores) -> Tensor:
    """⟨a, b⟩ for each sample, ``[n]``.

    >>> inner(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([11.])
    """
    dots = [
        torch.linalg.vecdot(x.flatten(1), y.flatten(1)) if x.dim() > 1 else x * y
        for x, y in zip(parts(a), parts(b), strict=True)
    ]
    return sum(dots[1:], start=dots[0])


def one_hot(scores: Tensor, index: Tensor, K: int) -> Tensor:
    """Indicators of ``index`` in a new last dimension of size K, in the scores' dtype; torch's own synchronises."""
    return scores.new_zeros(*index.shape, K).scatter(-1, index[..., None], 1.0)


def as_column(x: Tensor, like: Tensor) -> Tensor:
    """``x`` ``[n]`` as ``[n, 1, ...]``, to be broadcast to ``like``."""
    return x.reshape(-1, *[1] * (like.dim() - 1))


def known(x: Tensor) -> Any:
    """The value of a 0-dim tensor where reading it costs nothing; None on accelerators and in traced code.

    >>> known(torch.tensor(True)), known(torch.tensor(3)), known(torch.ones((), device="meta"))
    (True, 3, None)
    """
    if not x.is_cpu or torch.compiler.is_compiling():
        return None
    try:
        return x.item()
    except RuntimeError:  # vmap, fake tensors and tracers have no values
        return None


def require(ok: Tensor, message: str) -> None:
    """Raise ValueError unless ``ok`` holds everywhere; nothing is read from an accelerator.

    >>> require(torch.tensor([True, False]), "every entry must hold")
    Traceback (most recent call last):
    ValueError: every entry must hold
    """
    if known(ok.all()) is False:
        raise ValueError(message)


def tensor_target(name: str, target: Any, what: str = "a target") -> Tensor:
    """What the loss ``name`` was given as its target, a tensor.

    >>> tensor_target("MyLoss", [1.0])
    Traceback (most recent call last):
    TypeError: MyLoss got a list as a target; expected a tensor: torch.as_tensor(...)
    """
    if not isinstance(target, Tensor):
        raise TypeError(f"{name} got a {type(target).__name__} as {what}; expected a tensor: torch.as_tensor(...)")
    return target


def integer_target(name: str, target: Any, shape: Sequence[int], what: str = "a target", hint: str = "") -> Tensor:
    """The same, of integers or bools and of a shape, as ``torch.long``.

    >>> integer_target("MyLoss", torch.zeros(2), (3,))
    Traceback (most recent call last):
    TypeError: MyLoss got a target of torch.float32, which is neither integer nor bool; expected target.long()
    """
    labels = tensor_target(name, target, what)
    if labels.is_floating_point():
        given = f"{name} got {what} of {labels.dtype}, which is neither integer nor bool"
        raise TypeError(f"{given}; expected target.long()")
    if tuple(labels.shape) != tuple(shape):
        raise ValueError(f"{name} got {what} of shape {tuple(labels.shape)}; expected {tuple(shape)}{hint}")
    return labels.long()
