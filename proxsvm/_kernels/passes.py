"""The two passes of a step over the parameters: the inner products, then the update in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from proxsvm._numbers import Number

Tensors = Sequence[Tensor]


class Moments(NamedTuple):
    """What turns a direction x into a diagonal M: the running second moments ``v`` before x, and four scalars.

    v' = β₂ v + (1 − β₂) (scale · x)²        M = √(correction · v') + eps
    """

    v: Tensors
    beta2: float
    correction: Number
    eps: float
    scale: Number = 1.0


class Update(NamedTuple):
    """The scalars of an update in the metric M, which is the identity without moments.

        t = push · M⁻¹x + lift · w        z ← μ z − t        w ← w − drop · w − push · M⁻¹x + μ z
        w̄ ← w̄ − rate · (w̄ − w)           v ← v'

    ``skip``: whether to change nothing at all, a bool or a 0-dim bool tensor.
    """

    push: Number
    lift: Number = 0.0
    drop: Number = 0.0
    mu: float = 0.0
    rate: Number = 0.0
    skip: bool | Tensor = False


class Sums(NamedTuple):
    """⟨x, M⁻¹x⟩, ⟨w, x⟩, ⟨w, M w⟩ and, with u = w − start, ⟨u, M u⟩."""

    xx: Number
    wx: Number = 0.0
    ww: Number = 0.0
    uu: Number = 0.0


class Passes(ABC):
    """Parameters ``w`` and a direction ``x`` of equal shapes, one dtype and one device, ready for both passes."""

    @abstractmethod
    def products(self, with_w: bool = True, start: Tensors | None = None) -> Sums:
        """The inner products, accumulated in float32 or better; those not requested are 0."""

    def obstacle(self) -> str | None:
        """Why these passes cannot take their parameters after all; None if they can."""
        return None

    @abstractmethod
    def advance(self, z: Tensors | None, average: Tensors | None, update: Update) -> None:
        """Change w, v, the velocities and the averages in place. x may be NaN where the step is skipped."""


def shapes(tensors: Tensors) -> list[torch.Size]:
    """The shape of each tensor."""
    return list(map(attrgetter("shape"), tensors))


def compare(what: str, w: Tensors, x: Tensors) -> None:
    """Raise RuntimeError unless every tensor of ``x`` has the shape and device of its parameter.

    >>> compare("velocity", [torch.ones(3)], [torch.ones(2)])
    Traceback (most recent call last):
    RuntimeError: the velocity of parameter 0 has shape (2,) on cpu, the parameter (3,) on cpu: was p.data replaced ...
    """
    device = attrgetter("device")
    if shapes(w) == shapes(x) and list(map(device, w)) == list(map(device, x)):
        return
    for i, (a, b) in enumerate(zip(w, x, strict=True)):
        if a.shape != b.shape or a.device != b.device:
            raise RuntimeError(
                f"the {what} of parameter {i} has shape {tuple(b.shape)} on {b.device}, the parameter {tuple(a.shape)} "
                f"on {a.device}: was p.data replaced or moved between two steps? Make a new optimizer, or clear what "
                "belongs to the old parameter: optimizer.zero_grad() and optimizer.state.pop(p, None)"
            )
