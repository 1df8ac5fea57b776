"""The checks of an optimizer's options."""

from __future__ import annotations

from proxsvm.losses.base import ConvexLoss
from proxsvm.solvers.base import DualSolver


def check_options(
    loss: object,
    solver: object,
    nonfinite: object,
    max_grad_norm: float | None,
    process_group: object,
    fused: object,
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
