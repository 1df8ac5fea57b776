"""The problem after ``backward()``, where the gradients may need corrections.

They may still carry a loss scale (fp16), be spread over ranks, or be longer than ``max_grad_norm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from proxsvm._numbers import Number, on_host, to_float, to_tensor
from proxsvm.metrics._geometry import Geometry
from proxsvm.optimizer.ranks import Ranks
from proxsvm.optimizer.value import LossValue
from proxsvm.point import DualPoint, Products, Scaled
from proxsvm.problem import ProxProblem


def gradient_problem(
    grads: Sequence[Tensor],
    known: LossValue,
    geometry: Geometry,
    *,
    ranks: Ranks | None = None,
    scale: Tensor | None = None,
    max_norm: float | None = None,
) -> tuple[ProxProblem, Tensor]:
    """The problem of ``grads`` and their value, reduced over the ranks, unscaled and clipped; and the value, reduced.

    With S the scale, means over the ranks and c = min(1, max_norm / ‖g‖), the start and the first vertex are

        delta = 0,    lam = f = mean of floor,    and    delta_s = c g,    lam_s = f + c (mean of value − f),

    with mass c: a convex combination of the gradient's own vertex and the start, so a feasible dual point. There is
    one reduction, of value and floor alone where every rank has all parameters: it runs while the inner
    products are computed.

    Args:
        grads: this rank's part of the gradients, S · g, averaged over the ranks already.
        known: the value that belongs to them on this rank, and its floor, without S.
        geometry: that of this rank's parts of the parameters which have a gradient.
        ranks: the ranks over which the gradients were averaged.
        scale: S, the loss scale that the gradients still carry.
        max_norm: the largest ‖g‖ that a step uses.
    """
    numbers = known.numbers(ranks)
    wait = None if ranks is None or geometry.sharded else ranks.start_sum(torch.stack(numbers))
    length: Number | None = None
    if geometry.observes:  # the metric uses the clipped gradient, so its length has to be known first
        if max_norm is not None:
            (length,) = geometry.reduce([geometry.local_squared_length(grads)])
        geometry.observe(grads, _factor(scale, max_norm, length))
    sums = geometry.local_products(grads)
    if max_norm is not None and length is None:
        sums.append(geometry.local_squared_length(grads))
    on_device = any(isinstance(x, Tensor) for x in sums)
    if wait is not None:
        numbers = list(wait())
    elif ranks is not None:
        found = ranks.start_sum(torch.stack([to_tensor(x, numbers[0]) for x in (*numbers, *sums)]))()
        numbers, sums = list(found[:2]), list(found[2:])
    lam, *floor = (x if on_device else to_float(x) for x in numbers)
    r_delta, delta_delta, start, *rest = (x if on_device else to_float(x) for x in sums)
    products = Products(r_delta, delta_delta, start)
    first = DualPoint(grads, lam, 1.0, 1, products=products)
    if scale is not None:
        inverse = _factor(scale, None, None)
        first = replace(first, delta=Scaled(inverse, grads), products=products.scaled(inverse))
    if max_norm is not None:
        first = first.shrunk(_within(max_norm, scale, rest[0] if length is None else length), *floor)
    return ProxProblem(geometry, first=first, floor=floor[0] if floor else None), numbers[0]


def _factor(scale: Tensor | None, max_norm: float | None, squared: Number | None) -> Number:
    """c/S, by which the gradients are multiplied."""
    inverse = 1.0 if scale is None else 1 / (to_float(scale) if on_host(scale) else scale)
    return inverse if max_norm is None or squared is None else inverse * _within(max_norm, scale, squared)


def _within(bound: float, scale: Tensor | None, squared: Number) -> Number:
    """c = min(1, bound / ‖g‖), from the squared length of S · g."""
    inverse = _factor(scale, None, None)
    if isinstance(squared, Tensor):
        norm = squared.sqrt() * inverse
        return torch.where(norm > bound, bound / norm, torch.ones_like(norm))
    norm = squared**0.5 * inverse
    return to_float(bound / norm if norm > bound else 1.0)
