"""The problem that is left after ``backward()``, where the gradients are not simply what they seem.

They may still carry a loss scale (fp16), be spread over ranks, or be longer than a step should trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm.distributed import Ranks, any_sharded, by_copies
from proxsvm.groups import Group, flatten
from proxsvm.point import Scaled
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.update import Sweeps


class MeasuredProblem(ProxProblem):
    """A problem of one direction, whose inner products are known numbers: ⟨r, delta⟩_η, ‖delta‖²_η and ‖r‖²_η."""

    def __init__(self, params: list[Tensor], groups: list[Group], first: DualPoint, products: Sequence[Tensor]) -> None:
        super().__init__(params, groups, first=first)
        self._r_delta, self._delta_delta, self._r_r = products

    def _segment(self, point: DualPoint, toward: DualPoint) -> tuple[Tensor, Tensor]:
        assert point.steps == 0, "after backward() there is one direction only, from the start"
        assert toward is self._first
        return toward.lam - point.lam - self._r_delta, self._delta_delta

    def _r_squared(self) -> Tensor:
        return self._r_r


def measure(
    grads: Sequence[Tensor],
    value: Tensor,
    groups: Sequence[dict[str, Any]],
    owners: Sequence[Tensor],
    *,
    ranks: Ranks | None = None,
    scale: Tensor | None = None,
    max_norm: float | None = None,
    sweeper: Sweeps | None = None,
    given: ProxProblem | None = None,
) -> tuple[ProxProblem, Tensor]:
    """The problem of ``grads`` and ``value``, reduced over the ranks, unscaled and clipped; and the value, reduced.

    With S the scale, R ranks and c = min(1, max_norm / ‖g‖), the first vertex is

        delta_s = c g,    lam_s = (c/R) Σ_ranks value,    mass c,

    a convex combination of the gradient's own vertex with the start, so a feasible dual point. There is one reduction,
    of the value alone where every rank has all parameters: it is under way while the inner products are computed.

    Args:
        grads: this rank's part of the gradients, S · g, averaged over the ranks already.
        value: this rank's value of them, without S.
        groups: the groups of an optimizer, ``params`` being this rank's parts of those that have a gradient.
        owners: the parameters that those are parts of, in order.
        ranks: the ranks over which the gradients were averaged.
        scale: S, the loss scale that the gradients still carry.
        max_norm: the largest ‖g‖ that a step trusts.
        sweeper: what makes the sweeps over the parameters.
        given: a problem of these parameters whose sweeps over ``grads`` may be made already.
    """
    sharded = ranks is not None and any_sharded(owners)

    def shares(groups: Sequence[dict[str, Any]]) -> ProxProblem:
        split = by_copies(groups, owners, ranks.size) if ranks is not None and sharded else groups
        return ProxProblem.from_gradients(grads, value, split, sweeper=None if sharded else sweeper)

    wait = ranks.start_sum(value / ranks.size) if ranks is not None and not sharded else None
    problem = shares(groups)
    if given is not None and not sharded:
        problem._swept = given._swept
    sums = problem.products(grads)
    if max_norm is not None:
        sums.append(shares([{**g, "lr": 1.0, "weight_decay": 0.0} for g in groups]).products(grads)[1])
    if wait is not None:
        value = wait()
    elif ranks is not None:
        value, *sums = ranks.start_sum(torch.stack([value / ranks.size, *sums]))().unbind()
    mass = torch.ones_like(value)
    first = DualPoint(grads, value, mass, 1)
    if scale is not None or max_norm is not None:
        factor = mass if scale is None else 1 / scale.to(value)
        if max_norm is not None:
            norm = sums.pop().sqrt() * factor
            mass = torch.where(norm > max_norm, max_norm / norm, mass)
            factor = factor * mass
        first = DualPoint(Scaled(factor, grads), mass * value, mass, 1)
        sums[0], sums[1] = factor * sums[0], factor**2 * sums[1]
    if sharded:
        return MeasuredProblem(*flatten(groups, None, 0.0), first, sums), value
    measured = MeasuredProblem(problem.params, problem.groups, first, sums)
    measured._swept = problem._swept  # the step walks what the inner products have walked
    return measured, value
