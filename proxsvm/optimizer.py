"""ProxOptimizer: a loss and a dual solver as a ``torch.optim.Optimizer``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from proxsvm.distributed import (
    AveragedProblem,
    GroupLike,
    Ranks,
    any_sharded,
    is_split,
    local,
    local_grad,
    ranks_of,
    reached,
)
from proxsvm.fused import FusedSweeps
from proxsvm.gradients import measure
from proxsvm.groups import Number, check_group, check_state, flatten
from proxsvm.losses.base import Origin, PiecewiseLinearLoss
from proxsvm.point import Scaled
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.quick import single_step
from proxsvm.record import Record
from proxsvm.scaling import NO_SCALE, LossScale, Scalable
from proxsvm.solvers.base import DualSolver
from proxsvm.solvers.single_step_fw import SingleStepFW
from proxsvm.update import Sweeps, zeros_like


class StepReport(NamedTuple):
    """What the last step did, as 0-dim tensors on the device: to read one is to wait for it."""

    gamma: Tensor
    loss: Tensor
    dual: Tensor
    gap: Tensor | None
    steps: int


class ProxOptimizer(Scalable):
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
        max_grad_norm: clip in the dual. A gradient g that is longer is scaled by c = max_grad_norm / ‖g‖ together with
            its value, so the step stays a feasible dual point: γ is limited to c. For ``SingleStepFW``.
        process_group: the ranks over which the gradients are averaged, and so must the value be. ``"default"`` is
            torch.distributed's default group where one is initialised, so that DDP and FSDP2 need nothing said;
            ``None`` says that this process trains on its own gradients.
        fused: walk the weights in two loops compiled by numba (the extra ``fast``), without temporary memory, instead
            of torch's kernels. None: where numba is installed, for dense float32 and float64 parameters on the CPU.
            True insists, and raises where it cannot; False never does. The numbers are the same to rounding, state and
            checkpoints are the same. (Under ``torch.compile`` it makes no difference: the compiler fuses.)

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
        max_grad_norm: float | None = None,
        process_group: GroupLike = "default",
        fused: bool | None = None,
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
        if max_grad_norm is not None:
            if not max_grad_norm > 0:
                raise ValueError(f"max_grad_norm is {max_grad_norm}; expected a length above 0, or None")
            if solver.needs_graph:
                raise ValueError(
                    f"max_grad_norm bounds the one gradient of SingleStepFW, but {type(solver).__name__} takes many "
                    "directions: leave it out, and bound the step by lr"
                )
        if isinstance(process_group, str) and process_group != "default":
            raise ValueError(f"process_group is {process_group!r}; expected 'default', None or a ProcessGroup")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.loss, self.solver, self.nonfinite = loss, solver, nonfinite
        self.max_grad_norm, self.process_group, self.fused = max_grad_norm, process_group, fused
        # a list, because a compiled step can write to one, and not to an attribute
        self._reports: list[StepReport | partial[StepReport] | None] = [None]
        self.skipped = torch.zeros((), dtype=torch.long, device=self.param_groups[0]["params"][0].device)
        self._watch()

    def _watch(self) -> None:
        first = self.param_groups[0]["params"][0]
        like = torch.empty((), dtype=_accumulator(first.dtype), device=first.device)
        me = weakref.ref(self)  # the record must not keep its optimizer alive
        self._sweeper = Sweeps() if self.fused is False else FusedSweeps(insist=bool(self.fused))
        self._record = Record(self.loss, like, stale=lambda: (o := me()) is not None and o._has_no_gradients())
        self._replicas_checked = False

    # The step.

    @property
    def last(self) -> StepReport | None:
        """What the last step did; None before the first."""
        report = self._reports[0]
        if isinstance(report, partial):
            report = self._reports[0] = report()
        return report

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the record of the value that they belong to."""
        super().zero_grad(set_to_none)
        self._record.clear()

    def problem(self, value: Tensor) -> ProxProblem:
        """The proximal problem of a loss value, at the parameters that it depends on: to solve or verify by hand.

        ``value`` is what ``criterion(model(x), y)`` returned, before any ``backward()``. On several ranks it is the
        problem averaged over them, and every rank must make it.
        """
        origin: Origin | None = getattr(value, "origin", None)
        if origin is None:
            raise ValueError(
                "this value does not come straight from a proxsvm loss, so its scores are unknown: return "
                "criterion(model(x), y) itself, with reduction 'mean' or 'sum', not scaled, added to or detached, "
                "with gradients enabled. (Loss weights belong into lr or sample_weight.)"
            )
        params = [p for g in self.param_groups for p in g["params"]]
        if any_sharded(params):
            raise RuntimeError(
                "the parameters are sharded (DTensor), and their gradients come from backward() only: use SingleStepFW "
                "with loss.backward() and a bare optimizer.step(). Several steps need whole parameters, as under DDP"
            )
        ranks = self._ranks()
        seen = reached(origin.scores, params, ranks)
        groups = self._groups(lambda p: id(p) in seen)
        return ProxProblem.from_origin(origin, groups) if ranks is None else AveragedProblem.of(origin, groups, ranks)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Tensor | None] | None = None, *, loss: Number | None = None
    ) -> Tensor | None:
        """Take one step and return the loss value that it was taken for.

        Args:
            closure: evaluates the loss and returns it, ``lambda: criterion(model(x), y)``; the optimizer
                differentiates. (One that calls ``backward()`` itself, as trainers write it, works for
                ``SingleStepFW``.) Without it, the step uses the gradients and the value of the ``backward()`` calls
                since ``zero_grad()``.
            loss: the value of the gradients, where it was not computed by this optimizer's criterion: this rank's
                own, and not multiplied by a GradScaler's scale.
        """
        if closure is None:
            return self._step_on_gradients(loss)
        if loss is not None:
            raise ValueError("step() got a closure and loss=; a closure returns its loss, so give one of them")
        mark = self._record.mark
        with torch.enable_grad():
            value = closure()
        after = self._record.mark
        if value is None or after[0] is not mark[0] or after[1] != mark[1]:  # it called backward(), or does nothing
            return self._step_on_gradients(None)
        problem = self.problem(value)
        problem.sweeper = self._sweeper
        moved = {id(w) for w in problem.params}
        mean, groups = value.detach(), self._groups(lambda p: id(p) in moved)
        if isinstance(problem, AveragedProblem):
            if not self.solver.on_ranks:
                raise RuntimeError(
                    f"{type(self.solver).__name__} is not written for several ranks (its on_ranks is False): use "
                    "SingleStepFW or MultiStepFW, or process_group=None where each rank trains by itself"
                )
            (mean,) = problem.ranks.mean([mean])
        if self.max_grad_norm is not None:  # for a solver of one direction only, see __init__
            first = problem.first()
            bound, params = self.max_grad_norm, problem.params
            problem, _ = measure(first.delta, first.lam, groups, params, max_norm=bound, sweeper=self._sweeper)
        point = self.solver.solve(problem)
        if isinstance(problem, AveragedProblem) and self.solver.needs_graph:
            problem.check(point, self.solver)
        self._take(point, problem, mean, groups)
        return value

    def _step_on_gradients(self, loss: Number | None) -> Tensor | None:
        if self.solver.needs_graph:
            raise RuntimeError(
                f"{type(self.solver).__name__} needs the graph, which backward() has freed: leave out backward() and "
                "call optimizer.step(lambda: criterion(model(x), y))"
            )
        groups = [{**g, "params": [p for p in g["params"] if p.grad is not None]} for g in self.param_groups]
        owners = [p for g in groups for p in g["params"]]
        grads = [p.grad for p in owners]
        if any(map(attrgetter("is_sparse"), grads)):
            raise RuntimeError("a gradient is sparse; proxsvm needs dense ones: nn.Embedding(..., sparse=False)")
        scale = LossScale.of(self)
        value = self._record.value if loss is None else torch.as_tensor(loss).detach()
        if value is None:
            if any(g["lr"] != 0 for g in self.param_groups):
                raise RuntimeError(
                    "step() has no loss value: this optimizer's own criterion (optimizer.loss) was not differentiated "
                    "since zero_grad(). Call loss.backward() on a value of that criterion first, or pass the value: "
                    "optimizer.step(loss=value)"
                )
            value = torch.zeros(())  # lr = 0 everywhere: the gradients move nothing, whatever the value
        if not owners:
            return value
        ranks = self._ranks()
        sharded = any_sharded(owners)
        if sharded and ranks is None and any(is_split(p) for p in owners):
            raise RuntimeError(
                "a parameter is sharded over several ranks (DTensor), but this optimizer has no process group to sum "
                "over: leave process_group at 'default', or give it the ranks of the device mesh"
            )
        if sharded and self.fused:
            raise RuntimeError("fused=True, but a parameter is a DTensor: leave fused at None")
        if sharded:
            grads = [local_grad(p) for p in owners]
        value = value.to(device=grads[0].device, dtype=_accumulator(grads[0].dtype))
        if loss is None and scale.of_value is not None:
            value = value / scale.of_value.to(value)
        parts = [{**g, "params": [local(p) for p in g["params"]]} for g in groups] if sharded else groups
        given = ProxProblem(*flatten(parts, None, 0.0), sweeper=self._sweeper)
        ordinary = ranks is None and not sharded and self.max_grad_norm is None and all(s is None for s in scale)
        if not (ordinary and self._step_quickly(given, grads, value, groups)):
            problem, value = measure(
                grads,
                value,
                parts,
                owners,
                ranks=ranks,
                scale=scale.of_gradients,
                max_norm=self.max_grad_norm,
                sweeper=self._sweeper,
                given=given,
            )
            self._take(self.solver.solve(problem), problem, value, groups, scale)
        self._record.spend(owners[0])
        return value

    def _step_quickly(
        self, problem: ProxProblem, grads: list[Tensor], value: Tensor, groups: list[dict[str, Any]]
    ) -> bool:
        """Take the ordinary step of most trainings, if it is one."""
        if type(self.solver) is not SingleStepFW or self.fused is False or torch.compiler.is_compiling():
            return False
        momentum = [g["momentum"] for g in groups for _ in g["params"]]
        found = single_step(
            problem, grads, value, momentum, lambda at: self._velocities([problem.params[i] for i in at])
        )
        if found is None:
            return False
        self._reports[0] = partial(_report, *found, value)  # most are never read
        return True

    def _take(
        self,
        point: DualPoint,
        problem: ProxProblem,
        value: Tensor,
        groups: list[dict[str, Any]],
        scale: LossScale = NO_SCALE,
    ) -> None:
        """Move the parameters of ``groups``, whose local parts are the problem's, in order."""
        dual = problem.dual(point) if point.dual is None else point.dual
        finite = sound = (dual + value).isfinite()  # a sum is finite only if both are
        if scale.found_inf is not None:  # that a loss scale overflows is no fault: the GradScaler will lower it
            overflow = scale.found_inf.to(dual.device) > 0
            finite, sound = finite & ~overflow, finite | overflow
        if self.nonfinite == "raise" and not sound:
            self.forget_scale()
            raise FloatingPointError(
                f"the loss is {float(value)} and the dual {float(dual)}: a NaN or infinite loss or gradient. Nothing "
                "was changed; nonfinite='skip' passes over such steps"
            )
        self._reports[0] = StepReport(point.gamma, value, dual, point.gap, point.steps)
        if self.skipped.device != finite.device:  # the model has moved
            self.skipped = self.skipped.to(finite.device)
        skip = ~finite
        self.skipped += skip
        owners = [p for g in groups for p in g["params"]]
        momentum = [g["momentum"] for g in groups for _ in g["params"]]
        one, skip = torch.ones_like(dual), skip.to(torch.float32)
        # delta is factor · x and gamma · r is factor · held · r
        held: Tensor | None = point.gamma
        factor, x = one, point.delta
        if isinstance(point.delta, Scaled):  # a single step: factor = gamma / S
            factor, x, held = point.delta.factor, point.delta.tensors, scale.of_gradients
        for group, at, sweep in problem.sweeps(x):
            eta, device, mu = group.eta * one, problem.params[at[0]].device, momentum[at[0]]
            pull: Number | None = None
            shrink = None
            if group.decay:
                pull = group.decay if held is None else (group.decay * held).to(device)
                shrink = torch.where(finite, 1 - eta * group.decay * (1 - point.gamma), one).to(device)
            z = self._velocities([owners[i] for i in at]) if mu else None
            sweep.advance(z, push=(eta * factor).to(device), pull=pull, shrink=shrink, mu=mu, skip=skip.to(device))

    def _velocities(self, params: list[Tensor]) -> list[Tensor]:
        """z of parameters of one kind; what is missing is made."""
        state, sharded = self.state, any_sharded(params)
        try:
            z = [state[p]["z"] for p in params]
        except KeyError:
            missing = [p for p in params if "z" not in state[p]]
            zeros = [torch.zeros_like(p) for p in missing] if sharded else zeros_like(missing)
            for p, zero in zip(missing, zeros, strict=True):
                state[p]["z"] = zero
            z = [state[p]["z"] for p in params]
        return [local(t) for t in z] if sharded else z

    def _groups(self, wanted: Callable[[Any], bool]) -> list[dict[str, Any]]:
        return [{**g, "params": [p for p in g["params"] if wanted(p)]} for g in self.param_groups]

    def _has_no_gradients(self) -> bool:
        return all(p.grad is None for g in self.param_groups for p in g["params"])

    def _ranks(self) -> Ranks | None:
        ranks = ranks_of(self.process_group)
        if ranks is not None and not self._replicas_checked and not torch.compiler.is_compiling():
            ranks.check([p for g in self.param_groups for p in g["params"]])
            self._replicas_checked = True
        return ranks

    # Groups and copies.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own ``lr``, ``momentum`` and ``weight_decay``, checked before anything changes."""
        check_group(param_group, self.defaults)
        super().add_param_group(param_group)
        self._replicas_checked = False

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError unless ``state_dict`` is one of an optimizer with these groups, shapes and dtypes."""
        check_state(state_dict, self.param_groups)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; it is checked before anything changes."""
        self.check_state_dict(state_dict)
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        own = ("loss", "solver", "nonfinite", "max_grad_norm", "process_group", "fused", "_reports", "skipped")
        return {**super().__getstate__(), **{k: getattr(self, k) for k in own}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "loss" in state:  # a copy; load_state_dict() comes here too, without one
            self._watch()


def _report(gamma: float, dual: float, loss: Tensor) -> StepReport:
    return StepReport(loss.new_tensor(gamma), loss, loss.new_tensor(dual), None, 1)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
