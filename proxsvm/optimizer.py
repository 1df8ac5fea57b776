"""ProxOptimizer: a loss and a dual solver as a ``torch.optim.Optimizer``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from proxsvm.linearization import leaves
from proxsvm.losses.base import Origin, PiecewiseLinearLoss
from proxsvm.problem import DualPoint, Number, ProxProblem
from proxsvm.solvers.base import DualSolver


class StepReport(NamedTuple):
    """What the last step did, as 0-dim tensors on the device: to read one is to wait for it."""

    gamma: Tensor
    loss: Tensor
    dual: Tensor
    gap: Tensor | None
    steps: int


class ProxOptimizer(Optimizer):
    """Train with proximal steps: linearise the network, keep the loss exact, solve the step's SVM in the dual.

    One hyper-parameter, η (``lr``); no schedule is needed, because γ is the best step-size in closed form. With the
    solver's (delta, gamma), velocity z and momentum μ (the paper's appendix A.7):

        z ← μ z − η (gamma · r + delta),        w ← w − η (r + delta) + μ z

    Args:
        loss: the criterion that the training loop calls. The optimizer watches it, to know the value that a
            ``backward()`` differentiated.
        solver: ``SingleStepFW()`` for deep networks; any other :class:`~proxsvm.solvers.DualSolver` with a closure.
        params: parameters or group dicts, each with its own ``lr``, ``momentum``, ``weight_decay`` if it likes.
        lr: η, the proximal coefficient; a number or a 0-dim tensor.
        momentum: μ in [0, 1).
        weight_decay: r = weight_decay · w.
        nonfinite: what to do when the loss or a gradient is NaN or infinite. ``"skip"`` leaves weights and momentum as
            they are and counts the step in ``optimizer.skipped``; ``"raise"`` raises FloatingPointError, and waits
            for the device at every step to know.

    >>> from proxsvm.losses import MultiClassHinge
    >>> from proxsvm.solvers import SingleStepFW
    >>> model = torch.nn.Linear(2, 3)
    >>> criterion = MultiClassHinge(smooth=True)
    >>> optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), lr=0.1, momentum=0.9)
    >>> optimizer.zero_grad()
    >>> criterion(model(torch.eye(2)), torch.tensor([0, 1])).backward()
    >>> loss = optimizer.step()
    >>> bool(0 <= optimizer.last.gamma <= 1)
    True
    """

    def __init__(
        self,
        loss: PiecewiseLinearLoss,
        solver: DualSolver,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: Number = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nonfinite: Literal["skip", "raise"] = "skip",
    ) -> None:
        if not isinstance(loss, PiecewiseLinearLoss):
            raise TypeError(
                f"loss is a {type(loss).__name__}; expected a proxsvm.losses.PiecewiseLinearLoss: the step-size comes "
                "from a loss that is convex and piecewise linear"
            )
        if not isinstance(solver, DualSolver):
            hint = ", not its class: add ()" if isinstance(solver, type) else ""
            raise TypeError(f"solver is {solver!r}; expected an instance of a proxsvm.solvers.DualSolver{hint}")
        if nonfinite not in ("skip", "raise"):
            raise ValueError(f"nonfinite is {nonfinite!r}; expected 'skip' or 'raise'")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.loss, self.solver, self.nonfinite = loss, solver, nonfinite
        self.last: StepReport | None = None
        self.skipped = torch.zeros((), dtype=torch.long, device=self.param_groups[0]["params"][0].device)
        self._watch()

    # The record: Σ weight × value of what was differentiated since zero_grad(), kept on the device.

    def _watch(self) -> None:
        self._value: Tensor | None = None
        handle = self.loss.register_forward_hook(_Watch(self))
        weakref.finalize(self, handle.remove)

    def _record(self, weighted_value: Tensor) -> None:
        if not any(p.grad is not None for g in self.param_groups for p in g["params"]):
            self._value = None  # the gradients were cleared by model.zero_grad(): what stood here went with them
        self._value = weighted_value if self._value is None else self._value + weighted_value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the record of the value that they belong to."""
        super().zero_grad(set_to_none)
        self._value = None

    # The step.

    def problem(self, value: Tensor) -> ProxProblem:
        """The proximal problem of a loss value, at the parameters that it depends on: to solve or verify by hand.

        ``value`` is what ``criterion(model(x), y)`` returned, before any ``backward()``.
        """
        origin: Origin | None = getattr(value, "origin", None)
        if origin is None:
            raise ValueError(
                "this value does not come straight from a proxsvm loss, so its scores are unknown: return "
                "criterion(model(x), y) itself, with reduction 'mean' or 'sum', not scaled, added to or detached, "
                "with gradients enabled. (Loss weights belong into lr or sample_weight.)"
            )
        reached = leaves(origin.scores)
        groups = [{**g, "params": [p for p in g["params"] if id(p) in reached]} for g in self.param_groups]
        return ProxProblem.from_origin(origin, groups)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Tensor] | None = None, *, loss: Number | None = None
    ) -> Tensor | None:
        """Take one step and return the loss value that it was taken for.

        Args:
            closure: evaluates the loss and returns it, ``lambda: criterion(model(x), y)``; the optimizer
                differentiates. (One that calls ``backward()`` itself, as trainers write it, works for
                ``SingleStepFW``.) Without it, the step uses the gradients and the value of the ``backward()`` calls
                since ``zero_grad()``.
            loss: the value of the gradients, where it was not computed by this optimizer's criterion.
        """
        if closure is not None:
            if loss is not None:
                raise ValueError("step() got a closure and loss=; a closure returns its loss, so give one of them")
            before = self._value
            with torch.enable_grad():
                value = closure()
            if self._value is before:
                problem = self.problem(value)
                self._take(self.solver.solve(problem), problem, value.detach())
                return value
        return self._step_on_gradients(loss)

    def _step_on_gradients(self, loss: Number | None) -> Tensor | None:
        if self.solver.needs_graph:
            raise RuntimeError(
                f"{type(self.solver).__name__} needs the graph, which backward() has freed: leave out backward() and "
                "call optimizer.step(lambda: criterion(model(x), y))"
            )
        groups = [{**g, "params": [p for p in g["params"] if p.grad is not None]} for g in self.param_groups]
        grads = [p.grad for g in groups for p in g["params"]]
        if any(g.is_sparse for g in grads):
            raise RuntimeError("a gradient is sparse; proxsvm needs dense ones: nn.Embedding(..., sparse=False)")
        value = self._value if loss is None else torch.as_tensor(loss).detach()
        if value is None:
            if any(g["lr"] != 0 for g in self.param_groups):
                raise RuntimeError(
                    "step() has no loss value: this optimizer's own criterion (optimizer.loss) was not differentiated "
                    "since zero_grad(). Call loss.backward() on a value of that criterion first, or pass the value: "
                    "optimizer.step(loss=value)"
                )
            value = torch.zeros(())  # lr = 0 everywhere: nothing can move, whatever the value
        if not grads:
            return value
        value = value.to(device=grads[0].device, dtype=_accumulator(grads[0].dtype))
        problem = ProxProblem.from_gradients(grads, value, groups)
        self._take(self.solver.solve(problem), problem, value)
        return value

    def _take(self, point: DualPoint, problem: ProxProblem, value: Tensor) -> None:
        dual = problem.dual(point) if point.dual is None else point.dual
        finite = dual.isfinite() & value.isfinite()
        if self.nonfinite == "raise" and not finite:
            raise FloatingPointError(
                f"the loss is {float(value)} and the dual {float(dual)}: a NaN or infinite loss or gradient. Nothing "
                "was changed; nonfinite='skip' passes over such steps"
            )
        self.last = StepReport(point.gamma, value, dual, point.gap, point.steps)
        self.skipped += ~finite
        momentum = {id(p): g["momentum"] for g in self.param_groups for p in g["params"]}
        one, zero = torch.ones_like(dual), torch.zeros_like(dual)
        gamma = torch.where(finite, point.gamma, zero)
        for group in problem.groups:
            eta = torch.where(finite, group.eta * one, zero)  # a skipped step is one with η = 0 and μ = 1, 0
            for i in group.at:
                w = problem.params[i]
                delta = torch.where(finite, point.delta[i], 0.0)
                mu = momentum[id(w)]
                if mu:
                    z = self._velocity(w)
                    z.mul_(torch.where(finite, mu * one, one))
                    if group.decay:
                        z.addcmul_(w, eta * group.decay * gamma, value=-1)
                    z.addcmul_(delta, eta, value=-1)
                if group.decay:
                    w.mul_(1 - eta * group.decay)
                w.addcmul_(delta, eta, value=-1)
                if mu:
                    w.addcmul_(z, torch.where(finite, mu * one, zero))

    def _velocity(self, w: Tensor) -> Tensor:
        state = self.state[w]
        if "z" not in state:
            state["z"] = torch.zeros_like(w, memory_format=torch.preserve_format)
        velocity: Tensor = state["z"]
        return velocity

    # Groups and copies.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own ``lr``, ``momentum`` and ``weight_decay``, checked before anything changes."""
        lr, mu, decay = (param_group.get(k, self.defaults[k]) for k in ("lr", "momentum", "weight_decay"))
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}; expected a number or a 0-dim tensor")
        if not 0 < float(lr) < float("inf"):
            raise ValueError(f"lr is {float(lr)}; expected η > 0")
        if not 0 <= mu < 1:
            raise ValueError(f"momentum is {mu}; expected μ in [0, 1)")
        if not 0 <= decay < float("inf"):
            raise ValueError(f"weight_decay is {decay}; expected 0 or more")
        given = param_group["params"]
        if not isinstance(given, Tensor):
            given = param_group["params"] = list(given)
        for p in [given] if isinstance(given, Tensor) else given:
            tensor = p[1] if isinstance(p, tuple) else p
            if isinstance(tensor, Tensor) and not tensor.is_floating_point():
                raise TypeError(f"a parameter has dtype {tensor.dtype}; proxsvm optimizes real floating-point tensors")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        own = ("loss", "solver", "nonfinite", "last", "skipped")
        return {**super().__getstate__(), **{k: getattr(self, k) for k in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "loss" in state:  # a copy; load_state_dict() comes here too, without one
            self._watch()


class _Watch:
    """A forward hook on the criterion: when its value is differentiated, tell the optimizer value × weight.

    The optimizer is held weakly, and a copy of the criterion watches for nobody.
    """

    def __init__(self, optimizer: ProxOptimizer | None = None) -> None:
        self.optimizer = weakref.ref(optimizer) if optimizer is not None else lambda: None

    def __call__(self, criterion: PiecewiseLinearLoss, args: Any, value: Tensor) -> None:
        if not value.requires_grad or self.optimizer() is None:
            return
        detached = value.detach()

        def record(weight: Tensor) -> None:
            optimizer = self.optimizer()
            if optimizer is not None:
                optimizer._record((weight.detach() * detached).sum())

        value.register_hook(record)  # type: ignore[no-untyped-call]

    def __reduce__(self) -> tuple[type[_Watch], tuple[()]]:
        return _Watch, ()


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
