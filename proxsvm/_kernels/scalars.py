"""The formulas between the two passes of a step: floats on the CPU, 0-dim tensors where the device runs ahead.

Where Triton runs, each of them is one launch (:mod:`proxsvm._kernels.scalars_triton`), and a whole step has four, or
five in a diagonal metric. Elsewhere each is a few of torch's operations.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels import step_triton
from proxsvm._kernels.passes import Sums, Update
from proxsvm._kernels.tensors import PLAIN, accumulator, watched
from proxsvm._numbers import Number, best_gamma, minus, not_finite, on_host, plus, raised, to_float


def weighed(sums: Sums, eta: Number, decay: float) -> tuple[Number, Number, Number]:
    """⟨r, x⟩ = η decay ⟨w, x⟩, ‖x‖² = η ⟨x, M⁻¹x⟩ and D(0, 0) = −½‖r‖² = −½ η decay² ⟨w, M w⟩.

    >>> weighed(Sums(xx=2.0, wx=3.0, ww=4.0), 0.5, 0.5)
    (0.75, 1.0, -0.25)
    """
    if (gpu := _gpu(sums.xx)) is not None:
        found: tuple[Number, Number, Number] = gpu.weighed(sums, eta, decay)
        return found
    if not decay:
        return 0.0, eta * sums.xx, 0.0
    return eta * decay * sums.wx, eta * sums.xx, eta * (-0.5 * decay**2) * sums.ww


def climbed(
    before: Number, lam: Number, toward: Number, cost: Number, curvature: Number
) -> tuple[Number, Number, Number]:
    """The best γ of a segment, and D and lam there.

    With a = toward − lam − cost,

        γ = argmax over [0, 1] of γ a − γ² curvature / 2        D = before + γ a − γ² curvature / 2

    >>> climbed(before=0.0, lam=0.0, toward=6.0, cost=0.0, curvature=12.0)
    (0.5, 1.5, 3.0)
    """
    if (gpu := _gpu(curvature)) is not None:
        found: tuple[Number, Number, Number] = gpu.climbed(before, lam, toward, cost, curvature)
        return found
    rise = minus(toward, lam)
    ascent = minus(rise, cost)
    gamma = best_gamma(ascent, curvature)
    return gamma, raised(before, gamma, ascent, curvature), plus(lam, gamma * rise)


def verdict(dual: Number, value: Number, overflow: bool | Tensor, skipped: Tensor | None) -> bool | Tensor:
    """Whether to skip a step: its dual or value is not finite, or the gradients overflowed. ``skipped`` counts them.

    >>> counter = torch.tensor(0)
    >>> verdict(1.0, math.nan, False, counter), counter
    (True, tensor(1))
    """
    if (gpu := _gpu(dual)) is not None:
        found: Tensor = gpu.verdict(dual, value, overflow, skipped)
        return found
    skip = not_finite(dual + value)  # the sum is finite only if both are
    skip = skip if overflow is False else skip | overflow
    if skipped is not None and skip is not False:
        skipped += skip
    return skip


def coefficients(
    eta: Number,
    decay: float,
    factor: Number,
    gamma: Number,
    skip: bool | Tensor,
    *,
    mu: float = 0.0,
    average: float | None = None,
    t: Tensor | None = None,
    count: bool = True,
) -> Update:
    """The update of a point delta = factor · x of mass ``gamma``; with η = 0 nothing moves.

        push = η factor        drop = η decay        lift = drop · gamma        rate = max(1 − average, 9 / (10 + t))

    ``t``, the steps taken before this one, is raised by 1 where the step is taken and ``count`` is set.

    >>> coefficients(0.1, 0.5, 2.0, 0.5, False)
    Update(push=0.2, lift=0.025, drop=0.05, mu=0.0, rate=0.0, skip=False)
    """
    if (gpu := _gpu(factor)) is not None:
        found: Update = gpu.coefficients(eta, decay, factor, gamma, skip, mu, average, t, count)
        return found
    if isinstance(eta, Tensor):
        skip = skip | (eta == 0).to(skip.device if isinstance(skip, Tensor) else eta.device)
    drop = eta * decay if decay else 0.0
    rate = 0.0 if average is None else average_rate(average, t)
    if t is not None and count:
        count_step(t, skip)
    return Update(eta * factor, drop * gamma if decay else 0.0, drop, mu, rate, skip)


def average_rate(longest: float, t: Tensor | None) -> Number:
    """1 − β with β = min(longest, (1 + t)/(10 + t)), the weight of an average after t steps."""
    if t is None or on_host(t):
        return max(1 - longest, 9 / (10 + (0.0 if t is None else to_float(t))))
    return (9 / (10 + t)).clamp(min=1 - longest)


def count_step(t: Tensor, skip: bool | Tensor) -> None:
    """t ← t + 1 unless the step is skipped. (Not ``t.add_()``: torch 2.13 drops that when it compiles.)"""
    taken = skip.to(t.device).logical_not() if isinstance(skip, Tensor) else torch.full_like(t, not skip)
    torch._foreach_add_([t], [taken])


def bias_correction(beta2: float, t: Tensor | None, dtype: torch.dtype) -> Number:
    """1 / (1 − β₂^(t + 1)) after t steps, without the cancellation of 1 − β₂^(t + 1).

    >>> round(bias_correction(0.75, None, torch.float32), 6)
    4.0
    """
    log = math.log(beta2) if beta2 else -math.inf
    if t is None or on_host(t):
        return -1 / math.expm1((1 if t is None else to_float(t) + 1) * log)
    if (gpu := _gpu(t)) is not None:
        found: Tensor = gpu.bias_correction(log, t, accumulator(dtype))
        return found
    return -1 / torch.expm1((t.to(accumulator(dtype)) + 1) * log)


def _gpu(number: Number) -> Any:
    """The same functions as launches, where Triton runs for this number; else None."""
    if type(number) not in PLAIN or number.device.type not in step_triton.DEVICES:  # type: ignore[union-attr]
        return None
    if torch.compiler.is_compiling() or watched() or not step_triton.available(number.dtype):  # type: ignore[union-attr]
        return None
    from proxsvm._kernels import scalars_triton

    return scalars_triton
