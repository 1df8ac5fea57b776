"""Scalars of a step: Python floats where reading costs no synchronisation, 0-dim tensors where the device runs ahead.

The formulas of :mod:`proxsvm.problem` are written once for both; only these few operations distinguish them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = "float | Tensor"


def best_gamma(ascent: Number, curvature: Number) -> Number:
    """argmax over γ in [0, 1] of γ a − γ² c / 2; where c = 0 the function is linear and its better end is returned.

    >>> best_gamma(1.0, 4.0), best_gamma(torch.tensor(1.0), torch.tensor(4.0)), best_gamma(-1.0, 0.0)
    (0.25, tensor(0.2500), 0.0)
    """
    if isinstance(ascent, Tensor) or isinstance(curvature, Tensor):
        a, c = as_tensors(ascent, curvature)
        return (a / c.clamp(min=torch.finfo(c.dtype).tiny)).clamp(0, 1)
    gamma = ascent / curvature if curvature > 0 else float(ascent > 0)
    return min(max(gamma, 0.0), 1.0) if gamma == gamma else gamma  # a NaN stays a NaN


def raised(before: Number, gamma: Number, ascent: Number, curvature: Number) -> Number:
    """before + γ a − γ² c / 2: a dual value, a step γ further.

    >>> raised(1.0, 0.5, 2.0, 4.0), raised(torch.tensor(1.0), torch.tensor(0.5), torch.tensor(2.0), torch.tensor(4.0))
    (1.5, tensor(1.5000))
    """
    if isinstance(gamma, Tensor):
        a, c = as_tensors(ascent, curvature)
        mean = torch.addcmul(a, gamma, c, value=-0.5)
        if isinstance(before, Tensor):
            return torch.addcmul(before, gamma, mean)
        return gamma * mean + before if before else gamma * mean
    return before + gamma * ascent - gamma * gamma * curvature / 2


def counts(number: Number) -> bool:
    """Whether a number is not the float 0, which need not be added.

    >>> counts(0.0), counts(torch.tensor(0.0))
    (False, True)
    """
    return isinstance(number, Tensor) or number != 0


def plus(a: Number, b: Number) -> Number:
    """a + b, without an operation on the device where one of them is the float 0."""
    return a if not counts(b) else b if not counts(a) else a + b


def minus(a: Number, b: Number) -> Number:
    """a − b, without an operation on the device where b is the float 0."""
    return a - b if counts(b) else a


def times(a: Number, b: Number) -> Number:
    """a · b, without an operation on the device where one of them is the float 0 or 1.

    >>> x = torch.tensor(2.0)
    >>> times(1.0, x) is x, times(x, 0.0), times(0.5, x)
    (True, 0.0, tensor(1.))
    """
    if isinstance(a, Tensor) is not isinstance(b, Tensor):
        factor, x = (b, a) if isinstance(a, Tensor) else (a, b)
        if factor == 0 or factor == 1:
            return x if factor else 0.0
    return a * b


def as_tensors(*numbers: Number) -> list[Tensor]:
    """The numbers as tensors of the first tensor's device and dtype."""
    like = next(x for x in numbers if isinstance(x, Tensor))
    return [x if isinstance(x, Tensor) else like.new_tensor(x) for x in numbers]


def zero_like(number: Number) -> Number:
    """0, of the kind of ``number``."""
    return torch.zeros_like(number) if isinstance(number, Tensor) else 0.0


def not_finite(number: Number) -> bool | Tensor:
    """Whether a number is NaN or infinite; for a tensor a 0-dim bool tensor.

    >>> not_finite(1.0), not_finite(torch.tensor(math.inf))
    (False, tensor(True))
    """
    return (number - number) != 0 if isinstance(number, Tensor) else not math.isfinite(number)


def total(numbers: Sequence[Number]) -> Number:
    """Their sum; tensors of several devices and dtypes are added on the device and in the dtype of the first.

    >>> total([]), total([1.0, 2.0]), total([1.0, torch.tensor(2.0)])
    (0.0, 3.0, tensor(3.))
    """
    if len(numbers) == 1:
        return numbers[0]
    tensors = [x for x in numbers if isinstance(x, Tensor)]
    floats = sum(x for x in numbers if not isinstance(x, Tensor))
    if not tensors:
        return float(floats)
    first = tensors[0]
    found = sum((x.to(first) for x in tensors[1:]), start=first)
    return found + floats if floats else found


def to_tensor(number: Number, like: Tensor) -> Tensor:
    """A 0-dim tensor on the device and of the dtype of ``like``."""
    return number.to(like) if isinstance(number, Tensor) else like.new_tensor(number)


def on_host(x: Tensor) -> bool:
    """Whether a tensor can be read without synchronising with a device or breaking a graph."""
    return type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling()


def to_float(number: Number) -> float:
    """A Python float; a CPU tensor is read without the operation that would synchronise an accelerator."""
    if type(number) is float:  # the usual case
        return number
    return float(number.detach().numpy().item()) if isinstance(number, Tensor) else float(number)
