"""Checks of parameter groups and of their saved states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from proxsvm.losses.base import ConvexLoss
from proxsvm.metrics.base import Metric
from proxsvm.optimizer.ranks import local
from proxsvm.optimizer.state import SHARED, state_dtype
from proxsvm.solvers.base import DualSolver

OPTIONS = {"params", "lr", "momentum", "weight_decay"}
KEPT = {  # in every metric
    "q": "past",
    "z": "velocity",
    "average": "average",
    "weights": "training weights",
    "start": "start",
    "t": "step count",
}
NAMES = KEPT | {"v": "second moment"}
LARGEST = torch.finfo(torch.float32).max
ROUNDING = 1e-12  # a schedule to 0 may end this far below 0
STATISTICS = ("average:", "weights:", "t:")  # the prefixes of a model's averaged buffers
FOREIGN = {"nesterov", "dampening", "betas", "amsgrad", "rho", "alpha", "centered", "capturable", "lr_decay", "etas"}


def check_options(
    loss: object,
    solver: object,
    nonfinite: object,
    max_grad_norm: float | None,
    process_group: object,
    fused: object,
    memory: float,
) -> None:
    """Raise unless these can be the options of a ProxOptimizer."""
    if not isinstance(loss, ConvexLoss):
        raise TypeError(
            f"loss is a {type(loss).__name__}; expected a proxsvm.losses.ConvexLoss: the step-size comes "
            "from the tangent planes of a convex loss. (With several, pass the first, and declare the others: "
            "term = optimizer.watch(term))"
        )
    if not isinstance(solver, DualSolver):
        hint = ", not its class: add ()" if isinstance(solver, type) else ""
        raise TypeError(f"solver is {solver!r}; expected an instance of a proxsvm.solvers.DualSolver{hint}")
    if nonfinite not in ("skip", "raise"):
        raise ValueError(f"nonfinite is {nonfinite!r}; expected 'skip' or 'raise'")
    if max_grad_norm is not None:
        if isinstance(max_grad_norm, str) or not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {max_grad_norm!r}; expected a length above 0, or None")
        if solver.needs_graph:
            raise ValueError(
                f"max_grad_norm bounds the one gradient of SingleStepFW, but {type(solver).__name__} uses many "
                "directions: leave it out, and bound the step by lr"
            )
    if isinstance(process_group, str) and process_group != "default":
        raise ValueError(f"process_group is {process_group!r}; expected 'default', None or a ProcessGroup")
    if not (fused is None or isinstance(fused, bool)):
        raise ValueError(f"fused is {fused!r}; expected None (where possible), True (always) or False (never)")
    _require("memory", memory, "μ in [0, 1)", lambda x: 0 <= x < 1)


def check_group(group: dict[str, Any], defaults: Mapping[str, Any], memory: float = 0.0) -> None:
    """Raise unless ``group`` is valid; its parameters become a list."""
    lr, mu, decay = (group[k] if k in group else defaults[k] for k in ("lr", "momentum", "weight_decay"))
    if isinstance(lr, str) and lr == "auto":
        group["auto"], lr = True, 1.0
        group["lr"] = lr  # what schedulers multiply
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}; expected a number or a 0-dim tensor")
        lr = group["lr"] = lr if lr.dim() == 0 else lr.reshape(())  # the user's own tensor, or a view of it
    _require("lr", lr, "η ≥ 0, finite in float32", lambda x: 0 <= x <= LARGEST)
    _require("momentum", mu, "μ in [0, 1)", lambda x: 0 <= x < 1)
    if memory and mu:
        raise ValueError(
            f"momentum is {mu} and memory {memory}; expected one of them: memory is momentum inside the problem, which "
            "γ knows. The paper's own needs memory=0.0"
        )
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
    if not isinstance(given, Tensor | set):  # torch rejects a set, which has no order
        given = group["params"] = list(given)
    for p in [given] if isinstance(given, Tensor) else given:
        tensor = p[1] if isinstance(p, tuple) else p
        if isinstance(tensor, Tensor) and not (tensor.is_floating_point() and tensor.dtype.itemsize > 1):
            raise TypeError(
                f"a parameter has dtype {tensor.dtype}; proxsvm optimizes real floating-point tensors of at least 16 "
                "bits"
            )
        if isinstance(tensor, Tensor) and tensor.layout != torch.strided:
            raise TypeError(f"a parameter has layout {tensor.layout}; proxsvm optimizes dense tensors: p.to_dense()")


def checked(group: dict[str, Any], memory: float = 0.0) -> dict[str, Any]:
    """``group``; raise if an option has since been set, by hand or by a scheduler, to an invalid value.

    A learning rate on an accelerator is not read.
    """
    if torch.compiler.is_compiling():
        return group
    lr, mu, decay, average = group["lr"], group["momentum"], group["weight_decay"], group["average"]
    try:
        eta = float(lr) if not isinstance(lr, Tensor) or (type(lr) is Tensor and lr.is_cpu) else 0.0
        fine = -ROUNDING <= eta <= LARGEST and 0 <= mu < 1 and 0 <= decay < float("inf")
        fine = fine and (average is None or 0 <= average < 1) and not (memory and mu)
    except (TypeError, ValueError):
        fine = False
    if not fine:
        check_group({**group, "params": []}, {}, memory)  # says which
    return group


def _require(name: str, value: Any, expected: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise TypeError(f"{name} is {value!r}; expected a number, {expected}")
    if not holds(float(value)):
        raise ValueError(f"{name} is {float(value)}; expected {expected}")


def check_state(state_dict: dict[str, Any], groups: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]) -> None:
    """Raise ValueError unless ``state_dict`` is one of an optimizer with these groups, shapes and dtypes."""
    saved = _saved_groups(state_dict)
    if len(saved) != len(groups):
        raise ValueError(f"the state_dict has {len(saved)} parameter groups, this optimizer {len(groups)}")
    places: dict[Any, tuple[Tensor, Metric]] = {}
    for k, (theirs, mine, metric) in enumerate(zip(saved, groups, metrics, strict=True)):
        _check_saved_group(k, theirs)
        if len(theirs["params"]) != len(mine["params"]):
            raise ValueError(
                f"group {k} of the state_dict has {len(theirs['params'])} parameters, this optimizer's has "
                f"{len(mine['params'])}: build the optimizer as it was when the state was saved"
            )
        places.update(zip(theirs["params"], ((p, metric) for p in mine["params"]), strict=True))
    modes = [theirs.get("averaged", False) for theirs in saved]
    if any(type(mode) is not bool or mode != modes[0] for mode in modes):
        raise ValueError(f"the state_dict has averaged={modes} in its groups; expected True for all, or False for all")
    averaged = any(modes)
    for place, state in state_dict["state"].items():
        if place not in places:
            raise ValueError(f"the state_dict has a state for parameter {place}, which is in none of its groups")
        p, metric = places[place]
        _check_names(place, state, metric)
        for name, x in state.items():
            _check_tensor(name, x, p, metric, place)
        _check_versions(place, state, averaged)


def _saved_groups(state_dict: Any) -> Sequence[Mapping[str, Any]]:
    """The groups of a state, if it looks like one."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        given = list(state_dict) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        raise ValueError(f"an optimizer's state_dict has 'state' and 'param_groups'; this has {given}")
    groups, states = state_dict["param_groups"], state_dict["state"]
    if not (isinstance(groups, list | tuple) and isinstance(states, Mapping)) or not all(
        isinstance(entry, Mapping) for entry in (*groups, *states.values())
    ):
        raise ValueError("the state_dict's 'param_groups' is not a list of dicts, or its 'state' not a dict of dicts")
    return groups


def _check_saved_group(k: int, group: Mapping[str, Any]) -> None:
    """Raise ValueError unless a ProxOptimizer can have the options of ``group``, the k-th of a state."""
    missing, foreign = OPTIONS - set(group), FOREIGN & set(group)
    if missing or foreign:
        raise ValueError(
            f"group {k} of the state_dict lacks {sorted(missing)} and has {sorted(foreign)}: it is the state of "
            "another optimizer. Start with a new ProxOptimizer, and choose its lr again"
        )
    try:
        check_group({**group, "params": []}, {})
    except TypeError as error:
        raise ValueError(f"group {k} of the state_dict: {error}") from error
    for name in SHARED:
        if name in group:
            _check_number(f"{name!r} of group {k}", group[name])


def _check_names(place: Any, state: Mapping[str, Any], metric: Metric) -> None:
    """Raise ValueError unless the state of a parameter is one of this optimizer with this metric."""
    theirs = {name for name in set(state) - set(KEPT) if not str(name).startswith(STATISTICS)}
    stepped = {"q", "z", "average", "start"} & set(state)
    if theirs - set(metric.state) or (stepped and metric.state and not theirs):
        raise ValueError(
            f"the state of parameter {place} has {sorted(map(str, state))}; expected {sorted(KEPT)} at most, and "
            f"{list(metric.state)} of {metric}: it is the state of another optimizer, or was saved with another metric"
        )


def _check_tensor(name: str, x: Any, p: Tensor, metric: Metric, place: Any) -> None:
    """Raise ValueError unless ``x`` can be the state ``name`` of the parameter ``p``."""
    what = f"the {NAMES.get(name, name)} of parameter {place}"
    if name == "age" and name in metric.state and isinstance(x, int) and x >= 0:
        return  # a plain count
    if not isinstance(x, Tensor) or (x.is_meta and not p.is_meta):
        raise ValueError(f"{what} is {x!r}; expected a tensor with numbers in it")
    if name.startswith(STATISTICS):
        return  # whatever the model's buffers are; follow() compares them
    if name == "t":
        _check_number(what, x)
        if not x.is_meta and x < 0:
            raise ValueError(f"{what} is {float(x)}; expected 0 or more")
        return
    shape, dtype = tuple(p.shape), state_dtype(name, p.dtype)
    if name in metric.state:
        expected = metric.start(torch.empty(p.shape, dtype=p.dtype, device="meta")).get(name)
        if expected is None:
            raise ValueError(f"{what} is {tuple(x.shape)}; {metric} keeps none for a parameter of shape {shape}")
        shape, dtype = tuple(expected.shape), expected.dtype
    if x.shape != shape or x.dtype != dtype:
        raise ValueError(
            f"{what} is {tuple(x.shape)}, {x.dtype}; expected {shape}, {dtype}: it was saved with another model or in "
            "another precision"
        )
    if not x.is_meta and not local(x).isfinite().all():
        raise ValueError(f"{what} contains NaN or infinite values: the state is damaged, or its training had diverged")


def _check_number(what: str, x: Any) -> None:
    if not isinstance(x, Tensor) or x.numel() != 1 or not (x.is_meta or x.isfinite()):
        given = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) and x.numel() != 1 else repr(x)
        raise ValueError(f"{what} is {given}; expected a tensor of one finite number")


def _check_versions(place: Any, state: Mapping[str, Any], averaged: bool) -> None:
    """Raise unless averaged tensors have both versions if the model was saved with the averages, otherwise one.

    Buffers may have both in any case, if a state was loaded and no model followed the optimizer.
    """
    for name in state:
        kind, _, path = str(name).partition(":")
        other = {"average": "weights", "weights": "average"}.get(kind)
        both = other is not None and (f"{other}:{path}" if path else other) in state
        if other is not None and both != averaged and not (path and both):
            raise ValueError(
                f"the state of parameter {place} has {sorted(map(str, state))}, but its groups averaged={averaged}. "
                "There are both 'average' and 'weights' if the model was saved with the averages, otherwise only the "
                "first. (With torch.distributed.checkpoint, call proxsvm.follow() or optimizer.eval() before you get "
                "the state to load into, or save after optimizer.train().)"
            )
