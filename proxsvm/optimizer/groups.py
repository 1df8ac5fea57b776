"""Checks of options, parameter groups and saved states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.base import ConvexLoss
from proxsvm.metrics.base import Metric
from proxsvm.optimizer.averages import COUNT, STATISTICS
from proxsvm.optimizer.ranks import local
from proxsvm.optimizer.state import SHARED, state_dtype
from proxsvm.solvers.base import DualSolver

LARGEST = torch.finfo(torch.float32).max
ROUNDING = 1e-12  # a schedule to 0 may end this far below 0
NUMBERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "lr": ("η ≥ 0, finite in float32", lambda x: -ROUNDING <= x <= LARGEST),
    "momentum": ("μ in [0, 1)", lambda x: 0 <= x < 1),
    "memory": ("μ in [0, 1)", lambda x: 0 <= x < 1),
    "weight_decay": ("0 or more", lambda x: 0 <= x < float("inf")),
    "average": ("None, or the largest weight of the average, in [0, 1)", lambda x: x is None or 0 <= x < 1),
    "max_grad_norm": ("a length above 0, or None", lambda x: x is None or x > 0),
}
OF_A_GROUP = ("lr", "momentum", "weight_decay", "average")
FOREIGN = {"nesterov", "dampening", "betas", "amsgrad", "rho", "alpha", "centered", "capturable", "lr_decay", "etas"}
KEPT = ("q", "z", "average", "weights", "moved", "start")  # what has the shape of a parameter; start: of version 0.2

TWINS = {  # of torch's losses
    "CrossEntropyLoss": "CrossEntropy",
    "BCEWithLogitsLoss": "BinaryCrossEntropy",
    "MSELoss": "SquaredError",
    "L1Loss": "L1Regression",
    "HuberLoss": "Huber",
    "MultiMarginLoss": "MultiClassHinge",
}


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
        twin = TWINS.get(type(loss).__name__, "ConvexLoss")
        raise TypeError(
            f"loss is a {type(loss).__name__}; expected a proxsvm.losses.{twin}: the step-size comes from its "
            "tangent planes. ProxOptimizer(CrossEntropy(), SingleStepFW(), "
            "model.parameters()) is the whole line. (Declare further terms: term = optimizer.watch(term))"
        )
    if not isinstance(solver, DualSolver):
        hint = ", not its class: add ()" if isinstance(solver, type) else ""
        raise TypeError(f"solver is {solver!r}; expected an instance of a proxsvm.solvers.DualSolver{hint}")
    if nonfinite not in ("skip", "raise"):
        raise ValueError(f"nonfinite is {nonfinite!r}; expected 'skip' or 'raise'")
    if isinstance(process_group, str) and process_group != "default":
        raise ValueError(f"process_group is {process_group!r}; expected 'default', None or a ProcessGroup")
    if not (fused is None or isinstance(fused, bool)):
        raise ValueError(f"fused is {fused!r}; expected None (where possible), True (always) or False (never)")
    _check_numbers({"memory": memory, "max_grad_norm": max_grad_norm})
    if max_grad_norm is not None and solver.needs_graph:
        raise ValueError(
            f"max_grad_norm bounds the one gradient of SingleStepFW, but {type(solver).__name__} uses many "
            "directions: leave it out, and bound the step by lr"
        )


def check_group(group: dict[str, Any], defaults: Mapping[str, Any], memory: float = 0.0) -> None:
    """Raise unless ``group`` is valid; its parameters become a list."""
    options = {name: group.get(name, defaults.get(name)) for name in OF_A_GROUP}
    if isinstance(options["lr"], str) and options["lr"] == "auto":
        group["auto"], group["lr"], options["lr"] = True, 1.0, 1.0  # lr: what schedulers multiply
    _check_numbers(options)
    if isinstance(lr := options["lr"], Tensor):
        group["lr"] = lr if lr.dim() == 0 else lr.reshape(())  # the user's own tensor, or a view of it
    if memory and options["momentum"]:
        raise ValueError(
            f"momentum is {options['momentum']} and memory {memory}; expected one of them: the paper's momentum needs "
            "memory=0.0"
        )
    for option in ("differentiable", "maximize"):
        if group.get(option):
            raise ValueError(f"a group has {option}=True; expected False: a step minimises, in place, without a graph")
    given = group["params"]
    if not isinstance(given, Tensor | set):  # torch rejects a set, which has no order
        given = group["params"] = list(given)
    for p in [given] if isinstance(given, Tensor) else given:
        x = p[1] if isinstance(p, tuple) else p
        if isinstance(x, Tensor) and not (x.is_floating_point() and x.dtype.itemsize > 1 and x.layout == torch.strided):
            raise TypeError(
                f"a parameter has dtype {x.dtype} and layout {x.layout}; proxsvm optimizes dense tensors of real "
                "floating-point numbers of at least 16 bits"
            )


def checked(group: dict[str, Any], memory: float = 0.0) -> dict[str, Any]:
    """``group``; raise if an option has since been set, by hand or by a scheduler, to an invalid value."""
    if not torch.compiler.is_compiling():
        check_group({name: group[name] for name in OF_A_GROUP} | {"params": ()}, {}, memory)
    return group


def _check_numbers(options: Mapping[str, Any]) -> None:
    """Raise unless each option is valid. A tensor on an accelerator is not read."""
    for name, value in options.items():
        expected, holds = NUMBERS[name]
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ValueError(
                    f"{name} is a tensor of shape {tuple(value.shape)}; expected a number or a 0-dim tensor"
                )
            if type(value) is not Tensor or not value.is_cpu:
                continue
        try:
            fine = holds(value if value is None or isinstance(value, str) else float(value))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} is {value!r}; expected a number, {expected}") from error
        if not fine:
            raise ValueError(f"{name} is {float(value)}; expected {expected}")


# Saved states.


def check_state(
    state_dict: Any,
    groups: Sequence[Mapping[str, Any]],
    metrics: Sequence[Metric],
    buffers: Mapping[str, Tensor],
) -> None:
    """Raise ValueError unless ``state_dict`` is one of an optimizer with these groups, shapes and dtypes.

    Keys that are no parameters' are the user's own. ``buffers``: by their names in the state.
    """
    saved, states = (state_dict.get(k) if isinstance(state_dict, Mapping) else None for k in ("param_groups", "state"))
    if not isinstance(saved, list) or not isinstance(states, Mapping) or not all(isinstance(g, Mapping) for g in saved):
        given = list(state_dict) if isinstance(state_dict, Mapping) else state_dict
        raise ValueError(f"got {given!r}; expected a state_dict: a dict 'state' and a list of dicts 'param_groups'")
    for k, group in enumerate(saved):
        _check_saved_group(k, group)
    theirs, mine = ([len(g["params"]) for g in found] for found in (saved, groups))
    if theirs != mine:
        raise ValueError(
            f"the parameter groups of the state_dict have {theirs} parameters, this optimizer's {mine}: build the "
            "optimizer as it was when the state was saved"
        )
    averaged = any(group.get("averaged", False) for group in saved)
    owners = {
        key: (p, metric)
        for theirs, group, metric in zip(saved, groups, metrics, strict=True)
        for key, p in zip(theirs["params"], group["params"], strict=True)
    }
    for key, own in states.items():
        if key in owners:
            _check_own(key, own, *owners[key], averaged, buffers)
        elif isinstance(key, int):
            raise ValueError(f"the state_dict has a state for parameter {key}, which is in none of its groups")


def _check_saved_group(k: int, group: Mapping[str, Any]) -> None:
    """Raise ValueError unless a ProxOptimizer can have the options of ``group``, the k-th of a state."""
    missing, foreign = {"params", "lr", "momentum", "weight_decay"} - set(group), FOREIGN & set(group)
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
            _check_tensor(f"{name!r} of group {k}", group[name], torch.empty(()), torch.Size(), None)


def _check_own(key: Any, own: Any, p: Tensor, metric: Metric, averaged: bool, buffers: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless ``own`` can be the state of the parameter ``p``: names, shapes, dtypes, finiteness."""
    learned = metric.start(torch.empty(p.shape, dtype=p.dtype, device="meta"))
    counts = {name for name, x in learned.items() if not isinstance(x, Tensor)}  # plain numbers
    expected: dict[Any, tuple[torch.Size, torch.dtype | None]] = {
        **{name: (x.shape, x.dtype) for name, x in (*learned.items(), *buffers.items()) if name not in counts},
        **{name: (p.shape, state_dtype(name, p.dtype)) for name in KEPT},
        **dict.fromkeys(("t", COUNT), (torch.Size(), None)),
    }
    names = set(own) if isinstance(own, Mapping) else {type(own)}
    unknown = [name for name in names - set(expected) - counts if not str(name).startswith(STATISTICS)]
    if unknown or (names & set(KEPT) and learned and not names & set(learned)):
        raise ValueError(
            f"the state of parameter {key} has {sorted(map(str, names))}; expected {sorted(KEPT)} at most, and "
            f"{list(learned)} of {metric}: it is the state of another optimizer, or was saved with another metric"
        )
    for name in names & set(expected):
        _check_tensor(f"{name!r} of parameter {key}", own[name], p, *expected[name])
    for name in names & counts:
        if not isinstance(own[name], int) or own[name] < 0:
            raise ValueError(f"the state {name!r} of parameter {key} is {own[name]!r}; expected a count")
    both = {"average", "weights"}
    if names & both not in (set(), both if averaged else {"average"}):
        raise ValueError(
            f"the state of parameter {key} has {sorted(map(str, names))}, but its groups averaged={averaged}: expected "
            "both 'average' and 'weights' where that is True, otherwise only the first. (With "
            "torch.distributed.checkpoint, call proxsvm.follow() before you get the state to load into.)"
        )


def _check_tensor(what: str, x: Any, p: Tensor, shape: torch.Size, dtype: torch.dtype | None) -> None:
    """Raise ValueError unless ``x`` can be the state ``what`` of ``p``; without a ``dtype``, one number."""
    known = isinstance(x, Tensor) and (p.is_meta or not x.is_meta)
    if not known or (x.numel() != 1 if dtype is None else (x.shape, x.dtype) != (shape, dtype)):
        given = f"{tuple(x.shape)}, {x.dtype}" if known else repr(x)
        raise ValueError(
            f"the state {what} is {given}; expected a tensor {tuple(shape)}, {dtype or 'a number'}: it was saved with "
            "another model or in another precision"
        )
    if not x.is_meta and not local(x).isfinite().all():
        raise ValueError(
            f"the state {what} contains NaN or infinite values: it is damaged, or its training had diverged"
        )
