"""Parameter groups: which parameters share which η and weight decay, and whether they and their state are sound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
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


def check_group(group: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise unless an optimizer can take ``group``; its parameters become a list."""
    lr, mu, decay = (group.get(k, defaults[k]) for k in ("lr", "momentum", "weight_decay"))
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}; expected a number or a 0-dim tensor")
    if not 0 < float(lr) < float("inf"):
        raise ValueError(f"lr is {float(lr)}; expected η > 0")
    if not 0 <= mu < 1:
        raise ValueError(f"momentum is {mu}; expected μ in [0, 1)")
    if not 0 <= decay < float("inf"):
        raise ValueError(f"weight_decay is {decay}; expected 0 or more")
    for option in ("differentiable", "maximize"):
        if group.get(option):
            raise ValueError(
                f"a group has {option}=True, which proxsvm does not support: a step minimises, in place and "
                "without a graph"
            )
    given = group["params"]
    if not isinstance(given, Tensor | set):  # torch refuses a set, which has no order
        given = group["params"] = list(given)
    for p in [given] if isinstance(given, Tensor) else given:
        tensor = p[1] if isinstance(p, tuple) else p
        if isinstance(tensor, Tensor) and not tensor.is_floating_point():
            raise TypeError(f"a parameter has dtype {tensor.dtype}; proxsvm optimizes real floating-point tensors")
        if isinstance(tensor, Tensor) and tensor.layout != torch.strided:
            raise TypeError(f"a parameter has layout {tensor.layout}; proxsvm optimizes dense tensors: p.to_dense()")


def check_state(state_dict: dict[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError unless ``state_dict`` is one of an optimizer with these groups, shapes and dtypes."""
    if not {"state", "param_groups"} <= set(state_dict):
        raise ValueError(f"an optimizer's state_dict has 'state' and 'param_groups'; this has {list(state_dict)}")
    saved, own = state_dict["param_groups"], groups
    if len(saved) != len(own):
        raise ValueError(f"the state_dict has {len(saved)} parameter groups, this optimizer {len(own)}")
    places: dict[Any, Tensor] = {}
    for k, (theirs, mine) in enumerate(zip(saved, own, strict=True)):
        missing = {"params", "lr", "momentum", "weight_decay"} - set(theirs)
        if missing:
            raise ValueError(f"group {k} of the state_dict lacks {sorted(missing)}: is it of another optimizer?")
        if len(theirs["params"]) != len(mine["params"]):
            raise ValueError(
                f"group {k} of the state_dict has {len(theirs['params'])} parameters, this optimizer's has "
                f"{len(mine['params'])}: build the optimizer as it was when the state was saved"
            )
        places.update(zip(theirs["params"], mine["params"], strict=True))
    for place, state in state_dict["state"].items():
        z, p = state.get("z"), places.get(place)
        if p is None:
            raise ValueError(f"the state_dict has a state for parameter {place}, which is in none of its groups")
        if z is not None and (z.shape != p.shape or z.dtype != p.dtype):
            raise ValueError(
                f"the velocity of parameter {place} is {tuple(z.shape)}, {z.dtype}, the parameter "
                f"{tuple(p.shape)}, {p.dtype}: it was saved with another model or in another precision"
            )
