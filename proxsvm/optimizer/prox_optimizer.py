"""ProxOptimizer: a loss and a dual solver as a ``torch.optim.Optimizer``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from proxsvm._kernels.scalars import verdict
from proxsvm._kernels.step import StepKernels
from proxsvm._kernels.tensors import accumulator
from proxsvm._numbers import Number, to_float, to_tensor
from proxsvm.losses.base import ConvexLoss, Origin
from proxsvm.metrics.base import Metric
from proxsvm.optimizer.averages import Averages
from proxsvm.optimizer.base import GroupedOptimizer
from proxsvm.optimizer.gradients import gradient_problem
from proxsvm.optimizer.loss_scale import LossScale, loss_scale
from proxsvm.optimizer.memory import geometry_of
from proxsvm.optimizer.messages import NO_ORIGIN, NO_VALUE, SHARDED, warn
from proxsvm.optimizer.options import check_options
from proxsvm.optimizer.ranks import AveragedProblem, ProcessGroup, any_sharded, local_grad, reached
from proxsvm.optimizer.record import Record
from proxsvm.optimizer.report import StepReport, report_of
from proxsvm.optimizer.value import LossValue, fault, given_value
from proxsvm.optimizer.watch import watch
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers.base import DualSolver


class _Step(NamedTuple):
    """A step that is ready to be solved.

    ``spends``: the gradients that the step consumes, and with them the record; empty where it computed its own.
    """

    problem: ProxProblem
    value: Tensor
    scale: LossScale = LossScale()
    spends: Sequence[Tensor] = ()


class ProxOptimizer(GroupedOptimizer):
    """Train with proximal steps: linearise the network, keep the loss exact, solve the step's SVM in the dual.

    One hyper-parameter, η (``lr``); no schedule is needed, because γ is the best step-size in closed form. With the
    solver's (delta, gamma), velocity z and momentum μ (the paper's appendix A.7):

        z ← μ z − η (gamma · r + delta),        w ← w − η (r + delta) + μ z

    Args:
        loss: the criterion that the training loop calls. The optimizer watches it, to know the value that a
            ``backward()`` differentiated.
        solver: ``SingleStepFW()`` for deep networks; any other :class:`~proxsvm.solvers.DualSolver` with a closure.
        params: parameters or group dicts, which may have their own ``lr``, ``momentum`` and ``weight_decay``.
        lr: η, the proximal coefficient: a number, a 0-dim tensor, or ``"auto"``, the distance over gradients of
            :class:`~proxsvm.metrics._auto.DistanceOverGradients`. (``group["lr"]`` is then a factor of it, initially
            1, which schedulers may change.)
        momentum: μ in [0, 1).
        weight_decay: r = weight_decay · w.
        nonfinite: what to do when the loss or a gradient is NaN or infinite. ``"skip"`` leaves weights and momentum as
            they are and counts the step in ``optimizer.skipped``; ``"raise"`` raises FloatingPointError, and
            synchronises with the device at every step.
        max_grad_norm: clip in the dual. A longer gradient g is scaled by c = max_grad_norm / ‖g‖ together with its
            value, so the step stays a feasible dual point: γ is limited to c. For ``SingleStepFW``.
        process_group: the ranks over which the gradients, and so the value, are averaged. ``"default"`` is
            torch.distributed's default group where one is initialised, so that DDP and FSDP2 need no setting;
            ``None`` means that this process trains on its own gradients.
        metric: M of the proximal term ½⟨d, M d⟩/η, for every group without its own: ``Euclidean()`` if None, or
            ``Diagonal()``, Adam's.
        average: keep w̄ ← β w̄ + (1 − β) w with β = min(average, (1 + t)/(10 + t)) after t steps; None keeps none.
            ``eval()`` replaces w by w̄, ``train()`` restores w; :func:`proxsvm.follow` lets the model do it.
        fused: update the weights in two loops compiled by numba (the extra ``fast``) on the CPU, two Triton kernels
            (the extra ``gpu``) on a GPU, without temporary memory, instead of torch's operations. None uses them
            where they are installed and can take the parameters. True insists, and raises where they cannot; False
            never uses them. Results agree up to rounding; state and checkpoints are the same. (``torch.compile`` fuses
            on its own, whatever the setting.)

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
        loss: ConvexLoss,
        solver: DualSolver,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: Number | Literal["auto"] = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nonfinite: Literal["skip", "raise"] = "skip",
        max_grad_norm: float | None = None,
        process_group: ProcessGroup = "default",
        fused: bool | None = None,
        metric: Metric | None = None,
        average: float | None = None,
    ) -> None:
        check_options(loss, solver, nonfinite, max_grad_norm, process_group, fused)
        self._averages = Averages(self)
        super().__init__(
            params, metric, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "average": average}
        )
        self.loss, self.solver, self.nonfinite = loss, solver, nonfinite
        self.max_grad_norm, self.process_group, self.fused = max_grad_norm, process_group, fused
        # a list, because a compiled step can write to one, but not to an attribute
        self._reports: list[StepReport | partial[StepReport] | None] = [None]
        first = next(iter(self._params()), torch.empty(()))
        self.skipped = torch.zeros((), dtype=torch.long, device=first.device)
        self._terms: list[nn.Module] = []
        self._prepare()

    def _prepare(self) -> None:
        """What a new optimizer and a copy of one need: the kernels, and a record of its own."""
        self._averages.bind(self)
        params = self._params()
        first = params[0] if params else torch.empty(())
        self._kernels = StepKernels(self.fused, first)
        self._replicas_checked, self._warned = False, set[str]()
        me = weakref.ref(self)  # the record must not keep its optimizer alive
        like = torch.empty((), dtype=accumulator(first.dtype), device=first.device)
        self._record = Record(lambda: [] if (o := me()) is None else o._params(), like, hidden=any_sharded(params))
        for module in (self.loss, *self._terms):
            watch(module, self._record)

    def watch(self, term: nn.Module) -> nn.Module:
        """Register a further convex term of the loss, whose values then count, and return it.

        γ needs the value of everything that is differentiated. The optimizer must know what is added to the
        criterion's value. A module that returns it, non-negative and convex in the scores (or whatever it penalises),
        is registered here; for anything else pass the sum, ``optimizer.step(loss=total)``.

        >>> from proxsvm.losses import L1Regression, MultiClassHinge
        >>> from proxsvm.solvers import SingleStepFW
        >>> model, criterion = torch.nn.Linear(2, 2), MultiClassHinge()
        >>> optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters())
        >>> penalty = optimizer.watch(L1Regression())
        >>> scores = model(torch.eye(2))
        >>> total = criterion(scores, torch.tensor([0, 1])) + 0.1 * penalty(scores, torch.zeros(2, 2))
        >>> total.backward()
        >>> bool(optimizer.step() == total)
        True
        """
        if not isinstance(term, nn.Module):
            raise TypeError(f"watch() got a {type(term).__name__}; expected an nn.Module that returns the term's value")
        if not any(term is known for known in self._terms):
            self._terms.append(term)
        watch(term, self._record)
        return term

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

    def backward(self, total: Tensor, retain_graph: bool | None = None) -> None:
        """``total.backward()`` for whatever is minimised, and a record of its value, which :meth:`step` then uses.

        The plain loop, ``total.backward()``, knows sums of values of the criterion and of watched terms, with any
        weights. This also covers terms that nobody watches, functions of values (a square root, a log-sum-exp, focal
        weights) and gradients of gradients (MAML, gradient penalties). Several calls add up, as gradients do. Under a
        GradScaler: ``optimizer.backward(scaler.scale(total))``.

        >>> from proxsvm.losses import SquaredError
        >>> from proxsvm.solvers import SingleStepFW
        >>> w = torch.nn.Parameter(torch.tensor([3.0]))
        >>> optimizer = ProxOptimizer(SquaredError(), SingleStepFW(), [w], lr=0.1)
        >>> optimizer.backward(optimizer.loss(w[None], torch.zeros(1, 1)).sqrt() + 4)     # |w| + 4
        >>> optimizer.step()
        tensor(7.)
        """
        self._record.backward(total, retain_graph)

    def problem(self, value: Tensor) -> ProxProblem:
        """The proximal problem of a loss value, at the parameters that it depends on: to solve or verify by hand.

        ``value`` is what ``criterion(model(x), y)`` returned, before any ``backward()``. On several ranks it is the
        problem averaged over them, and every rank must make this call.
        """
        self._averages.require_training()
        origin: Origin | None = getattr(value, "origin", None)
        if origin is None:
            raise ValueError(NO_ORIGIN)
        params = self._params()
        if any_sharded(params):
            raise RuntimeError(SHARDED)
        ranks = self._ranks()
        seen = reached(origin.scores, params, ranks)
        groups = self._groups(lambda p: id(p) in seen)
        owners = [p for g in groups for p in g["params"]]
        geometry = geometry_of(groups, owners, self.state, self._kernels, None)
        return ProxProblem.of(origin, geometry) if ranks is None else AveragedProblem.averaged(origin, geometry, ranks)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], Tensor | None] | None = None, *, loss: Number | None = None
    ) -> Tensor | None:
        """Take one step and return the loss value that it was taken for.

        Args:
            closure: evaluates the loss and returns it, ``lambda: criterion(model(x), y)``; the optimizer
                differentiates. (One that calls ``backward()`` itself, as trainers write them, works for
                ``SingleStepFW``.) Without it, the step uses the gradients and the value of the ``backward()`` calls
                since ``zero_grad()``. Gradients edited in between are detected by torch's version counters, which
                hooks, ``.data`` and NumPy do not change.
            loss: the value that the gradients belong to, if this optimizer's criterion did not compute it: this rank's
                own, and not multiplied by a GradScaler's scale.
        """
        if closure is not None and not callable(closure):
            raise TypeError(
                f"step() got a {type(closure).__name__}; expected a closure, or the value by keyword: "
                "optimizer.step(loss=value)"
            )
        if closure is not None and loss is not None:
            raise ValueError("step() got a closure and loss=; a closure returns its loss, so give one of them")
        self._averages.require_training()
        with loss_scale(self) as scale:
            return self._step(closure, loss, scale)

    def _step(
        self, closure: Callable[[], Tensor | None] | None, loss: Number | None, scale: LossScale
    ) -> Tensor | None:
        returned: Tensor | None = None
        if closure is None:
            step = self._after_backward(loss, scale)
            returned = None if step is None else step.value
        else:
            record = self._record
            passes, clears, before = record.passes, record.clears, record.sums()[0]
            before = None if before is None else before.clone()  # autograd adds in place
            with torch.enable_grad():
                returned = closure()
            if returned is None or record.passes != passes:  # it called backward(), or did nothing
                undeclared = self._undeclared(returned, before if record.clears == clears else None)
                step = self._after_backward(None, scale, undeclared)
                returned = step.value if returned is None and step is not None else returned
            else:
                step = self._before_backward(returned)
        if step is not None:
            point = self.solver.solve(step.problem)
            step.problem.check(point, self.solver)
            self._take(point, step)
            self._record.spend(step.spends, None if step.spends else returned)
        return returned

    def _undeclared(self, returned: object, before: Tensor | None) -> Tensor | None:
        """What a closure has returned beyond what was recorded since ``before``."""
        now = self._record.sums()[0]
        if now is None or not isinstance(returned, Tensor | float | int):
            return None
        recorded = now if before is None else now - before
        return torch.as_tensor(returned).detach().reshape(()).to(recorded) - recorded

    def _before_backward(self, value: Tensor) -> _Step:
        """The step for a value whose graph still exists."""
        self._record.require_unused(value)
        problem = self.problem(value)
        if problem.on_ranks and not self.solver.on_ranks:
            raise RuntimeError(
                f"{type(self.solver).__name__} does not support several ranks (its on_ranks is False): use "
                "SingleStepFW or MultiStepFW, or process_group=None if each rank trains on its own"
            )
        mean = problem.mean(value.detach())
        if self.max_grad_norm is not None:  # only with a solver of one direction, see __init__
            first = problem.first()
            known = LossValue(mean, to_tensor(problem.floor, mean))
            problem, _ = gradient_problem(first.delta, known, problem.geometry, max_norm=self.max_grad_norm)
        return _Step(problem, mean)

    def _after_backward(self, loss: Number | None, scale: LossScale, undeclared: Tensor | None = None) -> _Step | None:
        """The step for the existing gradients; None where there are none."""
        if self.solver.needs_graph:
            raise RuntimeError(
                f"{type(self.solver).__name__} needs the graph, which backward() has freed: leave out backward() and "
                "call optimizer.step(lambda: criterion(model(x), y))"
            )
        groups, owners, grads = self._groups_with_gradients()
        if not grads:
            return None
        ranks, compiling = self._ranks(), torch.compiler.is_compiling()
        known = self._value(loss, grads[0], scale).plus(undeclared)
        if loss is None and not compiling:
            self._record.require_unused()
            if ranks is None and scale.scale is None and undeclared is None:  # others change the gradients rightly
                for text in self._record.guard.faults():
                    self._warn(text)
        spends = grads
        geometry = geometry_of(groups, owners, self.state, self._kernels, ranks)
        grads = [local_grad(p) for p in owners] if any_sharded(owners) else grads
        problem, value = gradient_problem(
            grads, known, geometry, ranks=ranks, scale=scale.scale, max_norm=self.max_grad_norm
        )
        if loss is None and not compiling and (wrong := fault(value, problem)) is not None:
            self._warn(wrong)
        return _Step(problem, value, scale, spends)

    def _value(self, loss: Number | None, grad: Tensor, scale: LossScale) -> LossValue:
        """The value that the gradients belong to: the given one, or the recorded one."""
        value, floor = self._record.sums()
        known = None if value is None else LossValue(value, floor).on(grad, scale.scale)
        if loss is None:
            scale.require_known()
        else:
            given = given_value(loss)
            return LossValue(given).on(grad, None) if known is None else known.replaced(given)
        if known is not None:
            return known
        if any(g["lr"] != 0 for g in self.param_groups):
            raise RuntimeError(NO_VALUE)
        return LossValue(torch.zeros(())).on(grad, None)  # lr = 0 everywhere: nothing moves, whatever the value

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    def _take(self, point: DualPoint, step: _Step) -> None:
        """Move the parameters to ``point``, unless it, the value or a scaled gradient is not finite."""
        problem, value, scale, _ = step
        dual = problem.dual(point) if point.dual is None else point.dual
        on_device = isinstance(dual, Tensor)
        overflow: bool | Tensor = False
        if scale.found_inf is not None:  # an overflow of the loss scale is no fault: the GradScaler will lower it
            overflow = scale.found_inf.to(value.device) > 0 if on_device else to_float(scale.found_inf) > 0
        if self.skipped.device != value.device:  # the model has moved
            self.skipped = self.skipped.to(value.device)
        raises = self.nonfinite == "raise"
        skip = verdict(dual, value if on_device else to_float(value), overflow, None if raises else self.skipped)
        if raises and skip and not overflow:
            raise FloatingPointError(
                f"the loss is {float(value)} and the dual {float(dual)}: a NaN or infinite loss or gradient. Nothing "
                "was changed; nonfinite='skip' skips such steps"
            )
        report = partial(report_of, point.gamma, value, dual, point.gap, point.steps)
        self._reports[0] = report() if on_device else report  # most are never read
        if raises:
            self.skipped += skip
        self._averages.update(torch.as_tensor(problem.geometry.advance(point, skip)))

    # Averages.

    @property
    def averaged(self) -> bool:
        """Whether the averaged weights are in place, as after ``eval()``."""
        return self._averages.in_place

    def eval(self) -> None:
        """Replace the weights with their averages; no step can be taken until ``train()``.

        Nothing is lost and nothing synchronises; after an exception inside, a further ``eval()`` or ``train()``
        completes the switch. Parameters without an average do not change. For parameters in half precision, both
        versions are kept meanwhile. Under FSDP2, :func:`proxsvm.follow` the model: after a forward pass it may hold
        gathered copies of its shards, which have to be dropped.

        >>> from proxsvm.losses import L1Regression
        >>> from proxsvm.solvers import SingleStepFW
        >>> w = torch.nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), [w], lr=0.5, average=0.5)
        >>> loss = optimizer.step(lambda: optimizer.loss(w[None], torch.zeros(1, 1)))     # β = 1/10 at first
        >>> optimizer.eval(); averaged = w.item(); optimizer.train()
        >>> f"{averaged:.2f}, {w.item():.2f}"
        '0.55, 0.50'
        """
        self._averages.switch_to(True)

    def train(self) -> None:
        """Put the training weights back, bit for bit."""
        self._averages.switch_to(False)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own options, ``metric`` included; it is checked before anything changes."""
        super().add_param_group(param_group)
        self._averages.joined()

    def state_dict(self) -> dict[str, Any]:
        """The state, to be saved with the model's own: together they resume bit for bit, in either mode.

        ``"averaged"`` in each group tells whether the model's ``state_dict()`` at the same moment has the averages, as
        after ``eval()``, and always if the model follows its optimizer. Then this one also holds the training weights.
        """
        return self._averages.complete(super().state_dict())

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError unless ``state_dict`` is one of an optimizer with these groups, shapes and dtypes."""
        super().check_state_dict(state_dict)
        self._averages.check(state_dict)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and with it the mode that it was saved in; it is checked before anything changes."""
        averaged = self.averaged
        super().load_state_dict(state_dict)
        self._averages.loaded(averaged)

    # Copies.

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{k: getattr(self, k) for k in _OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "loss" in state:  # a copy; load_state_dict() also calls this, without a loss
            self._prepare()


_OWN = (
    *("loss", "solver", "nonfinite", "max_grad_norm", "process_group", "fused"),
    *("_reports", "skipped", "_terms", "_metric", "_metrics", "_averages"),
)
