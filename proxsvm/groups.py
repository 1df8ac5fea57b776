"""Parameter groups: which parameters share which η and weight decay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

Number: TypeAlias = "float | Tensor"
Params: TypeAlias = "Iterable[Tensor] | Iterable[Mapping[str, Any]]"


class Group(NamedTuple):
    """Parameters that share η and weight decay; ``at`` is where they stand in the problem's list."""

    eta: Number
    decay: float
    at: range


def flatten(params: Params, lr: Number | None, weight_decay: float) -> tuple[list[Tensor], list[Group]]:
    """Parameters or group dicts as one list and the groups' places in it."""
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
        members = [g["params"]] if isinstance(g["params"], Tensor) else list(g["params"])
        if members:
            groups.append(Group(eta, g.get("weight_decay", weight_decay), range(len(flat), len(flat) + len(members))))
            flat += members
    if not flat:
        raise ValueError("params is empty (a generator that was used up already?)")
    return flat, groups
