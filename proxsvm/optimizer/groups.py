"""Options of the optimizer and of its parameter groups, checked before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from proxsvm.geometry import check_numbers
from proxsvm.losses.base import ConvexLoss
from proxsvm.optimizer.messages import SCHEDULED, THE_LINE
from proxsvm.solvers.base import DualSolver

OF_A_GROUP = ("lr", "momentum", "weight_decay", "average")
TWINS = {  # of torch's losses
    "CrossEntropyLoss": "CrossEntropy()",
    "BCEWithLogitsLoss": "BinaryCrossEntropy()",
    "MSELoss": "SquaredError()",
    "L1Loss": "L1Regression()",
    "HuberLoss": "Huber()",
    "SmoothL1Loss": "Huber()",
    "MultiMarginLoss": "MultiClassHinge()",
    "NLLLoss": "CrossEntropy()",
    "BCELoss": "BinaryCrossEntropy()",
}


def check_options(
    loss: object, solver: object, nonfinite: object, process_group: object, fused: object, numbers: Mapping[str, Any]
) -> DualSolver:
    """The solver; raise unless these can be the options of a ProxOptimizer."""
    if not isinstance(loss, ConvexLoss):
        kind = loss if isinstance(loss, type) else type(loss)
        twin = f"{kind.__name__}()" if issubclass(kind, ConvexLoss) else TWINS.get(kind.__name__, "CrossEntropy()")
        expected = f"one of this package, as proxsvm.losses.{twin}: {THE_LINE.format(twin)}"
        raise TypeError(f"loss is {given_kind(loss)}; expected {expected}")
    if not isinstance(solver, DualSolver):
        line = THE_LINE.format(f"{type(loss).__name__}()")
        raise TypeError(f"solver is {given_kind(solver)}; expected an instance of a proxsvm.solvers.DualSolver: {line}")
    for name, value, known in (("nonfinite", nonfinite, ("skip", "raise")), ("fused", fused, (None, True, False))):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; expected {' or '.join(map(repr, known))}")
    if isinstance(process_group, str) and process_group != "default":
        raise ValueError(f"process_group is {process_group!r}; expected 'default', None or a ProcessGroup")
    check_numbers(numbers)
    if numbers["max_grad_norm"] is not None and solver.needs_graph:
        name = type(solver).__name__
        raise ValueError(f"max_grad_norm bounds the one gradient of SingleStepFW; for {name} bound the step by lr")
    return solver


def given_kind(x: object) -> str:
    """What was given for an object of another kind."""
    return f"{x!r}, a class: add ()" if isinstance(x, type) else f"a {type(x).__name__}"


def check_group(group: dict[str, Any], defaults: Mapping[str, Any], memory: float = 0.0) -> None:
    """Raise unless ``group`` is valid; its parameters become a list."""
    options = {name: group.get(name, defaults.get(name)) for name in OF_A_GROUP}
    if isinstance(options["lr"], str) and options["lr"] == "auto":
        group["auto"], group["lr"], options["lr"] = True, 1.0, 1.0  # lr: what schedulers multiply
    check_numbers(options)
    check_related({**group, **options}, memory)
    for option in ("differentiable", "maximize"):
        if group.get(option):
            raise ValueError(f"a group has {option}=True; expected False: a step minimises, in place, without a graph")
    given = group["params"]
    if not isinstance(given, set):  # torch rejects a set, which has no order
        given = group["params"] = [given] if isinstance(given, Tensor) else list(given)
    for p in given:
        x = p[1] if isinstance(p, tuple) else p
        if isinstance(x, Tensor) and not (x.is_floating_point() and x.dtype.itemsize > 1 and x.layout == torch.strided):
            raise TypeError(
                f"a parameter has dtype {x.dtype} and layout {x.layout}; proxsvm optimizes dense tensors of real "
                "floating-point numbers of at least 16 bits"
            )


def check_related(group: Mapping[str, Any], memory: float) -> None:
    """Raise if options contradict each other; at every step, because schedulers and users change them."""
    if group.get("auto") and ("swa_lr" in group or group.get("initial_lr", 1.0) != 1.0):
        raise ValueError(SCHEDULED)
    if memory and group["momentum"]:
        raise ValueError(
            f"momentum is {group['momentum']} and memory {memory}; expected one of them: the paper's momentum needs "
            "memory=0.0 (and OneCycleLR sets a momentum, unless it is told cycle_momentum=False)"
        )


def equal(a: object, b: object) -> bool:
    """Whether two options are known to be equal; a tensor is not read."""
    return a is b or (isinstance(a, float) and isinstance(b, float) and a == b)


def given_value(loss: object) -> Tensor:
    """The value that was passed to ``step(loss=...)``, as a 0-dim tensor."""
    if loss.is_complex() if isinstance(loss, Tensor) else isinstance(loss, str) or not isinstance(loss, SupportsFloat):
        raise TypeError(f"loss is {loss!r}; expected a real number, or a tensor of one")
    given = loss.detach() if isinstance(loss, Tensor) else torch.as_tensor(loss, dtype=torch.float64)
    if given.numel() != 1:
        raise ValueError(f"loss is a tensor of shape {tuple(given.shape)}; expected one value")
    if readable(given) and -torch.inf < float(given) < 0:
        raise ValueError(f"loss is {float(given)}; expected 0 or more: the step-size comes from a loss ℓ ≥ 0")
    return given.reshape(()) if given.dim() else given


def readable(x: Tensor) -> bool:
    """Whether a value can be read without synchronising with a device or breaking a graph."""
    return type(x) is Tensor and x.is_cpu and not torch.compiler.is_compiling()


def no_decay(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups for ``ProxOptimizer(..., weight_decay=...)``: weights decay; biases, norms and other vectors do not.

    Parameters with fewer than two dimensions go into the second group, whose weight decay is 0. Those that need no
    gradient are left out, shared ones are listed once, and a group may be empty.

    >>> weights, rest = no_decay(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    >>> [tuple(p.shape) for p in weights["params"]], [tuple(p.shape) for p in rest["params"]], rest["weight_decay"]
    ([(3, 2)], [(3,), (3,), (3,)], 0.0)
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    rest = {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}
    return [{"params": [p for p in trained if p.dim() >= 2]}, rest]
