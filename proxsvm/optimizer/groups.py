"""Whether an optimizer can take a parameter group, or a saved state of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from proxsvm._kernels.tensors import accumulator
from proxsvm.metrics.base import Metric

OPTIONS = {"params", "lr", "momentum", "weight_decay"}
NAMES = {
    "z": "velocity",
    "v": "second moment",
    "average": "average",
    "weights": "training weights",
    "start": "start",
    "t": "step count",
}
STATISTICS = ("average:", "weights:", "t:")  # how the names of what is kept of a model's buffers begin
FOREIGN = {"nesterov", "dampening", "betas", "amsgrad", "rho", "alpha", "centered", "capturable", "lr_decay", "etas"}


def check_group(group: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise unless an optimizer can take ``group``; its parameters become a list."""
    lr, mu, decay = (group[k] if k in group else defaults[k] for k in ("lr", "momentum", "weight_decay"))
    if isinstance(lr, str) and lr == "auto":
        group["auto"], lr = True, 1.0
        group["lr"] = lr  # what schedulers multiply
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}; expected a number or a 0-dim tensor")
        lr = group["lr"] = lr if lr.dim() == 0 else lr.reshape(())  # the user's own tensor, or a view of it
    _require("lr", lr, "η ≥ 0", lambda x: 0 <= x < float("inf"))
    _require("momentum", mu, "μ in [0, 1)", lambda x: 0 <= x < 1)
    average = group.get("average", defaults.get("average"))
    if average is not None:
        _require("average", average, "None, or the largest weight of the average, in [0, 1)", lambda x: 0 <= x < 1)
    _require("weight_decay", decay, "0 or more", lambda x: 0 <= x < float("inf"))
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


def _require(name: str, value: Any, expected: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise TypeError(f"{name} is {value!r}; expected a number, {expected}")
    if not holds(float(value)):
        raise ValueError(f"{name} is {float(value)}; expected {expected}")


def check_state(state_dict: dict[str, Any], groups: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]) -> None:
    """Raise ValueError unless ``state_dict`` is one of an optimizer with these groups, shapes and dtypes."""
    if not {"state", "param_groups"} <= set(state_dict):
        raise ValueError(f"an optimizer's state_dict has 'state' and 'param_groups'; this has {list(state_dict)}")
    saved, own = state_dict["param_groups"], groups
    if len(saved) != len(own):
        raise ValueError(f"the state_dict has {len(saved)} parameter groups, this optimizer {len(own)}")
    places: dict[Any, tuple[Tensor, Metric]] = {}
    for k, (theirs, mine, metric) in enumerate(zip(saved, own, metrics, strict=True)):
        missing, foreign = OPTIONS - set(theirs), FOREIGN & set(theirs)
        if missing or foreign:
            raise ValueError(
                f"group {k} of the state_dict lacks {sorted(missing)} and has {sorted(foreign)}: it is the state of "
                "another optimizer. Start with a fresh ProxOptimizer, and choose its lr anew"
            )
        try:
            check_group({**theirs, "params": []}, {})
        except TypeError as error:
            raise ValueError(f"group {k} of the state_dict: {error}") from error
        if len(theirs["params"]) != len(mine["params"]):
            raise ValueError(
                f"group {k} of the state_dict has {len(theirs['params'])} parameters, this optimizer's has "
                f"{len(mine['params'])}: build the optimizer as it was when the state was saved"
            )
        places.update(zip(theirs["params"], ((p, metric) for p in mine["params"]), strict=True))
    modes = [theirs.get("averaged", False) for theirs in saved]
    if any(type(mode) is not bool or mode != modes[0] for mode in modes):
        raise ValueError(f"the state_dict says averaged={modes} of its groups; expected True for all, or False for all")
    averaged = any(modes)
    for place, state in state_dict["state"].items():
        if place not in places:
            raise ValueError(f"the state_dict has a state for parameter {place}, which is in none of its groups")
        p, metric = places[place]
        known = {*NAMES, *metric.state}
        if unknown := sorted(name for name in set(state) - known if not str(name).startswith(STATISTICS)):
            raise ValueError(
                f"the state of parameter {place} has {unknown}; expected {sorted(known)} at most: it is the state of "
                "another optimizer"
            )
        for name, x in state.items():
            _check_tensor(name, x, p, metric, place)
        _check_versions(place, state, averaged)


def state_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the state ``name`` of a parameter: its own, or for what is summed float32 or better."""
    return dtype if name in ("z", "weights", "start") else accumulator(dtype)


def state_shape(name: str, p: Tensor, metric: Metric) -> tuple[int, ...]:
    """The shape of the state ``name`` of a parameter: its own, unless the metric says otherwise."""
    return metric.shape(name, p) if name in metric.state else tuple(p.shape)


def _check_tensor(name: str, x: Any, p: Tensor, metric: Metric, place: Any) -> None:
    """Raise ValueError unless ``x`` can be the state ``name`` of the parameter ``p``."""
    what = f"the {NAMES.get(name, name)} of parameter {place}"
    if not isinstance(x, Tensor) or (x.is_meta and not p.is_meta):
        raise ValueError(f"{what} is {x!r}; expected a tensor with numbers in it")
    if name.startswith(STATISTICS):
        return  # whatever the model's buffers are like; follow() compares them
    if name == "t":
        if x.numel() != 1:
            raise ValueError(f"{what} has shape {tuple(x.shape)}; expected one number")
        return
    shape, dtype = state_shape(name, p, metric), state_dtype(name, p.dtype)
    if x.shape != shape or x.dtype != dtype:
        raise ValueError(
            f"{what} is {tuple(x.shape)}, {x.dtype}; expected {shape}, {dtype}: it was saved with another model or in "
            "another precision"
        )


def _check_versions(place: Any, state: Mapping[str, Any], averaged: bool) -> None:
    """Both versions of what is averaged where the model was saved with the averages, else one.

    Of buffers there may be both in any case, where a state was loaded and no model was followed.
    """
    for name in state:
        kind, _, path = str(name).partition(":")
        other = {"average": "weights", "weights": "average"}.get(kind)
        both = other is not None and (f"{other}:{path}" if path else other) in state
        if other is not None and both != averaged and not (path and both):
            raise ValueError(
                f"the state of parameter {place} has {sorted(map(str, state))}, but its groups averaged={averaged}. "
                "There are both 'average' and 'weights' where the averages were in the model's place, else only the "
                "first. (With torch.distributed.checkpoint, call proxsvm.follow() or optimizer.eval() before you get "
                "the state to load into, or save after optimizer.train().)"
            )
