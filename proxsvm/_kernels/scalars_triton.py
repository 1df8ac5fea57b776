# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The formulas of :mod:`proxsvm._kernels.scalars` in Triton, one launch each; computed in float64.

This module imports triton (the extra ``gpu``): import it when a step needs it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxsvm._kernels.passes import Sums, Update
from proxsvm._kernels.step_triton import bits, on
from proxsvm._kernels.step_triton import scalar as given
from proxsvm._kernels.step_triton_kernels import scalar, tl, triton
from proxsvm._numbers import Number

NUMBERS = ["eta", "decay", "xx", "wx", "ww", "before", "lam", "toward", "cost", "curvature", "value", "factor", "gamma"]
jit = triton.jit(do_not_specialize=[*NUMBERS, "least", "log"])


@jit
def weigh(eta, eta_at, decay, xx, xx_at, wx, wx_at, ww, ww_at, out):
    """⟨r, x⟩, ‖x‖² and −½‖r‖²."""
    eta_, decay_ = scalar(eta, eta_at, tl.float64), scalar(decay, None, tl.float64)
    tl.store(out, eta_ * decay_ * scalar(wx, wx_at, tl.float64))
    tl.store(out + 1, eta_ * scalar(xx, xx_at, tl.float64))
    tl.store(out + 2, -0.5 * eta_ * decay_ * decay_ * scalar(ww, ww_at, tl.float64))


@jit
def climb(before, before_at, lam, lam_at, toward, toward_at, cost, cost_at, curvature, curvature_at, out):
    """γ, D and lam at the best point of a segment."""
    lam_, curved = scalar(lam, lam_at, tl.float64), scalar(curvature, curvature_at, tl.float64)
    rise = scalar(toward, toward_at, tl.float64) - lam_
    ascent = rise - scalar(cost, cost_at, tl.float64)
    ratio = ascent / tl.where(curved == 0, 2.2250738585072014e-308, curved)
    gamma = tl.where(ratio < 0, 0.0, tl.where(ratio > 1, 1.0, ratio))  # a NaN stays a NaN
    tl.store(out, gamma)
    tl.store(out + 1, scalar(before, before_at, tl.float64) + gamma * (ascent - 0.5 * gamma * curved))
    tl.store(out + 2, lam_ + gamma * rise)


@jit
def judge(dual, value, value_at, overflow, skipped, out):
    """Whether to skip the step."""
    both = tl.load(dual).to(tl.float64) + scalar(value, value_at, tl.float64)
    skip = (both - both) != 0
    if overflow is not None:
        skip = skip | (tl.load(overflow) != 0)
    tl.store(out, skip.to(tl.uint8))
    if skipped is not None:
        tl.store(skipped, tl.load(skipped) + skip.to(tl.int64))


@jit
def combine(eta, eta_at, decay, factor, factor_at, gamma, gamma_at, least, t, skip, out, stay, COUNT: tl.constexpr):
    """push, lift, drop and rate; whether nothing moves; and the next t."""
    eta_ = scalar(eta, eta_at, tl.float64)
    drop = eta_ * scalar(decay, None, tl.float64)
    tl.store(out, eta_ * scalar(factor, factor_at, tl.float64))
    tl.store(out + 1, drop * scalar(gamma, gamma_at, tl.float64))
    tl.store(out + 2, drop)
    stays = eta_ == 0
    if skip is not None:
        stays = stays | (tl.load(skip) != 0)
    tl.store(stay, stays.to(tl.uint8))
    if t is not None:
        t_ = tl.load(t).to(tl.float64)
        tl.store(out + 3, tl.maximum(scalar(least, None, tl.float64), 9 / (10 + t_)))
        if COUNT:
            tl.store(t, tl.where(stays, t_, t_ + 1))


@jit
def correct(log, t, out):
    """1 / (1 − exp(log · (t + 1)))."""
    tl.store(out, 1 / (1 - tl.exp(scalar(log, None, tl.float64) * (tl.load(t).to(tl.float64) + 1))))


# The launches.


def weighed(sums: Sums, eta: Number, decay: float) -> tuple[Number, Number, Number]:
    """See :func:`proxsvm._kernels.scalars.weighed`."""
    like = _tensor(sums.xx)
    out = like.new_empty(3)
    numbers = [x for c in (sums.xx, sums.wx, sums.ww) for x in given(c, like)]
    with on(like):
        weigh[(1,)](*given(eta, like), bits(decay), *numbers, out)
    wx, xx, ww = out.unbind()
    return (wx, xx, ww) if decay else (0.0, xx, 0.0)


def climbed(
    before: Number, lam: Number, toward: Number, cost: Number, curvature: Number
) -> tuple[Number, Number, Number]:
    """See :func:`proxsvm._kernels.scalars.climbed`."""
    like = _tensor(curvature)
    out = like.new_empty(3)
    numbers = [x for c in (before, lam, toward, cost, curvature) for x in given(c, like)]
    with on(like):
        climb[(1,)](*numbers, out)
    gamma, dual, lam = out.unbind()
    return gamma, dual, lam


def verdict(dual: Number, value: Number, overflow: bool | Tensor, skipped: Tensor | None) -> Tensor:
    """See :func:`proxsvm._kernels.scalars.verdict`."""
    like = _tensor(dual)
    out = torch.empty((), dtype=torch.bool, device=like.device)
    with on(like):
        judge[(1,)](like, *given(value, like), _flag(overflow, like), skipped, out.view(torch.uint8))
    return out


def coefficients(
    eta: Number,
    decay: float,
    factor: Number,
    gamma: Number,
    skip: bool | Tensor,
    mu: float,
    average: float | None,
    t: Tensor | None,
    count: bool,
) -> Update:
    """See :func:`proxsvm._kernels.scalars.coefficients`."""
    like = _tensor(factor)
    out, stay = like.new_empty(4), torch.empty((), dtype=torch.bool, device=like.device)
    numbers = [*given(eta, like), bits(decay), *given(factor, like), *given(gamma, like)]
    least = bits(0.0 if average is None else 1 - average)
    with on(like):
        combine[(1,)](*numbers, least, t, _flag(skip, like), out, stay.view(torch.uint8), count)
    push, lift, product, rate = out.unbind()
    drop = product if isinstance(eta, Tensor) else eta * decay
    return Update(push, lift if decay else 0.0, drop if decay else 0.0, mu, 0.0 if average is None else rate, stay)


def bias_correction(log: float, t: Tensor, dtype: torch.dtype) -> Tensor:
    """See :func:`proxsvm._kernels.scalars.bias_correction`."""
    out = torch.empty((), dtype=dtype, device=t.device)
    with on(t):
        correct[(1,)](bits(log), t, out)
    return out


def _tensor(number: Number) -> Tensor:
    assert isinstance(number, Tensor)
    return number.detach()


def _flag(flag: bool | Tensor, like: Tensor) -> Tensor | None:
    """A flag on the device; None for False."""
    if isinstance(flag, Tensor):
        return flag.detach().to(like.device).view(torch.uint8)
    return torch.ones((), dtype=torch.uint8, device=like.device) if flag else None
