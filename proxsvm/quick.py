"""A single step on the CPU with its few numbers in Python's floats.

A line search is some fifty operations on numbers. On a GPU these are 0-dim tensors, so that nobody waits for them. On
the CPU there is nobody to wait for, and fifty calls of torch take a tenth of the time of a step. So the ordinary step
goes this way: one process, no loss scale, no clipping, compiled loops. The tests hold it to ``problem.py``'s formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from torch import Tensor

from proxsvm.fused import FusedSweep
from proxsvm.groups import Number
from proxsvm.problem import ProxProblem
from proxsvm.update import PLAIN


def single_step(
    problem: ProxProblem,
    x: Sequence[Tensor],
    value: Tensor,
    momentum: Sequence[float],
    velocities: Callable[[list[int]], list[Tensor]],
) -> tuple[float, float] | None:
    """Move the parameters of ``problem`` by a single step towards delta_s = x, lam_s = value; γ and the dual.

    It is ``problem.move(problem.start(), problem.first())`` and the update of ``Sweep.advance``. Returns None, and has
    changed nothing, where a step is not ordinary: other sweeps than compiled ones, numbers that are not on the CPU, a
    NaN or infinite value or gradient.

    Args:
        problem: what is left of the problem after ``backward()``.
        x: the gradients.
        value: their value.
        momentum: μ of each parameter.
        velocities: gives the z of the parameters at some places.
    """
    lam, lines = _number(value), []
    if lam is None:
        return None
    for group, at, sweep in problem.sweeps(x):
        eta, mu = _number(group.eta), momentum[at[0]]
        if eta is None or not isinstance(sweep, FusedSweep):
            return None
        lines.append((sweep, eta, group.decay, mu, sweep.with_velocities(velocities(at) if mu else None)))
    r_delta = delta_delta = r_r = 0.0  # weighted by η
    for sweep, eta, decay, *_ in lines:
        xx, wx, ww = sweep.sums(with_w=decay != 0).tolist()
        delta_delta += eta * xx
        r_delta += eta * decay * wx
        r_r += eta * decay * decay * ww
    gamma, dual = climb(lam - r_delta, delta_delta, before=-r_r / 2)
    if not isfinite(dual + lam):
        return None
    for _, eta, decay, mu, move in lines:
        shrink = 1 - eta * decay * (1 - gamma)
        move((eta * gamma, decay, shrink, 0.0, mu))
    return gamma, dual


def climb(ascent: float, curvature: float, before: float) -> tuple[float, float]:
    """The γ in [0, 1] of the largest dual on a segment, D(γ) = before + γ a − γ² c / 2, and that dual.

    >>> climb(ascent=1.0, curvature=4.0, before=0.0)
    (0.25, 0.125)
    """
    gamma = ascent / curvature if curvature > 0 else float(ascent > 0)
    gamma = min(max(gamma, 0.0), 1.0) if gamma == gamma else gamma  # NaN stays NaN
    return gamma, before + gamma * ascent - gamma * gamma * curvature / 2


def _number(x: Number) -> float | None:
    if not isinstance(x, Tensor):
        return x
    if type(x) not in PLAIN or not x.is_cpu:
        return None
    found: float = x.detach().numpy().item()
    return found
