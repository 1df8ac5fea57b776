"""Parameter groups: which parameters share which η and weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from proxsvm._numbers import Number, on_host, to_float
from proxsvm.metrics.base import Metric
from proxsvm.metrics.euclidean import Euclidean

EUCLIDEAN = Euclidean()
Params: TypeAlias = "Iterable[Tensor] | Iterable[Mapping[str, Any]]"


class Group(NamedTuple):
    """Parameters that share η, weight decay and a metric; ``at``: their indices in the problem's list.

    ``auto``: whether η is chosen automatically; ``eta`` is then a factor of it. ``momentum`` is μ, ``average`` the
    largest weight of the average of the weights, None where there is none; only the update uses them.
    """

    eta: Number
    decay: float
    at: range
    metric: Metric = EUCLIDEAN
    auto: bool = False
    momentum: float = 0.0
    average: float | None = None


def flatten(
    params: Params, lr: Number | None, weight_decay: float, metric: Metric | None = None
) -> tuple[list[Tensor], list[Group]]:
    """Parameters or group dicts as one list, and the groups with their indices in it."""
    given = list(params)
    dicts: list[Mapping[str, Any]] = [g for g in given if isinstance(g, Mapping)]
    if not dicts:
        dicts = [{"params": given}]
    elif len(dicts) != len(given):
        raise TypeError("params mixes tensors and group dicts; expected one or the other")
    flat: list[Tensor] = []
    groups: list[Group] = []
    for g in dicts:
        eta = g.get("lr", lr)
        if eta is None:
            raise ValueError("no lr: pass lr=η, or groups with an 'lr' of their own")
        if isinstance(eta, str):
            raise ValueError(f"lr is {eta!r}; expected a number: 'auto' needs an optimizer's history")
        if isinstance(eta, Tensor) and eta.dim():  # set by hand, after the group was checked
            eta = eta.reshape(())
        members = [g["params"]] if isinstance(g["params"], Tensor) else list(g["params"])
        if members:
            at = range(len(flat), len(flat) + len(members))
            chosen = check_metric(g.get("metric", metric))
            auto, mu = g.get("auto", False), g.get("momentum", 0.0)
            eta = eta * (1 - mu) if auto else eta  # momentum multiplies a step by 1/(1 − μ)
            decay = g.get("weight_decay", weight_decay)
            groups.append(Group(eta, decay, at, chosen, auto, mu, g.get("average")))
            flat += members
    if not flat:
        raise ValueError("params is empty (a generator that was already used up?)")
    return flat, groups


def by_hand(
    params: Params, lr: Number | None, weight_decay: float, metric: Metric | None = None
) -> tuple[list[Tensor], list[Group]]:
    """The same for a problem that is built by hand, whose options no optimizer has checked.

    >>> by_hand([Tensor([1.0])], lr=-1.0, weight_decay=0.0)
    Traceback (most recent call last):
    ValueError: lr is -1.0; expected η ≥ 0, finite
    """
    flat, groups = flatten(params, lr, weight_decay, metric)
    for group in groups:
        eta = group.eta
        if (not isinstance(eta, Tensor) or on_host(eta)) and not 0 <= to_float(eta) < math.inf:
            raise ValueError(f"lr is {to_float(eta)}; expected η ≥ 0, finite")
        if not 0 <= group.decay < math.inf:
            raise ValueError(f"weight_decay is {group.decay}; expected 0 or more")
    return flat, groups


def check_metric(metric: Any) -> Metric:
    """``metric``, the Euclidean one for None; raise TypeError if it is not a metric."""
    if metric is None:
        return EUCLIDEAN
    if not isinstance(metric, Metric):
        hint = ", not its class: add ()" if isinstance(metric, type) else ""
        raise TypeError(f"metric is {metric!r}; expected an instance of a proxsvm.metrics.Metric{hint}")
    return metric
