"""ProxOptimizer: a loss and a dual solver as a ``torch.optim.Optimizer``."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from proxsvm._kernels.step import Kernels
from proxsvm._kernels.tensors import accumulator
from proxsvm._ranks import ProcessGroup, Ranks, ranks_of
from proxsvm.geometry import Geometry, Number, Write, check_metric, complete, copying, flatten
from proxsvm.linearization.graph import Linearization
from proxsvm.losses.base import ConvexLoss, Origin
from proxsvm.metrics.auto import FIRST_DISTANCE, FIRST_DISTANCE_WITH_MEMORY, History
from proxsvm.metrics.base import Metric
from proxsvm.metrics.kronecker import Kronecker
from proxsvm.optimizer import averages, messages
from proxsvm.optimizer.follow import follow as follow_optimizer
from proxsvm.optimizer.groups import OF_A_GROUP, check_group, check_options, check_related, equal, given_value, readable
from proxsvm.optimizer.ranks import (
    AveragedLinearization,
    agree,
    any_sharded,
    check_replicas,
    local,
    local_grad,
    reached,
    shares,
)
from proxsvm.optimizer.record import ROUNDING, Record, replaced, watch
from proxsvm.optimizer.state import SHARED, Store, checked, keep_precision, shared_scalars
from proxsvm.past import PastProblem
from proxsvm.point import DualPoint
from proxsvm.problem import GradientProblem, Past, Problem, ProxProblem
from proxsvm.solvers.base import DualSolver

Step: TypeAlias = tuple[Problem, Tensor]  # with the loss value


class StepReport(NamedTuple):
    """What the last step did, as 0-dim tensors on the device: reading one synchronises.

    ``eta``: that of the first group, a tensor where it is automatic, else as it was given.
    """

    gamma: Tensor
    loss: Tensor
    dual: Tensor
    gap: Tensor | None
    steps: int
    eta: Number

    @property
    def step_size(self) -> Tensor:
        """γ η, the step along M⁻¹ delta that was taken."""
        return self.gamma * self.eta


class ProxOptimizer(torch.optim.Optimizer):
    """Train with proximal steps: linearise the network, keep the loss exact, solve each step's problem in the dual.

    Nothing has to be set: η is the distance over gradients, γ the best step-size in closed form, the past is one more
    sample of the problem, the metric is Adam's diagonal in the eigenbases of each matrix. The paper's own optimizer is
    ``lr=0.1, momentum=0.9, metric=Euclidean(), memory=0.0, average=None``; with the solver's (delta, gamma), its
    velocity z and momentum μ (appendix A.7):

        z ← μ z − H⁻¹ (gamma · r + delta),        w ← w − H⁻¹ (r + delta) + μ z

    Args:
        loss: the criterion that the training loop calls; the optimizer watches it, to know the value that was
            differentiated.
        solver: ``SingleStepFW()`` for deep networks; any other :class:`~proxsvm.solvers.DualSolver` with a closure.
        params: parameters or group dicts, which may have their own options.
        lr: η, a number, a 0-dim tensor, or ``"auto"``, the distance over gradients
            (:mod:`proxsvm.metrics.auto`). ``group["lr"]`` is then a factor of it, 1 at first, which schedulers change.
        momentum: the paper's μ in [0, 1), which γ does not know.
        weight_decay: r = weight_decay · M w.
        nonfinite: if the loss or a gradient is NaN or infinite, ``"skip"`` changes nothing and counts the step in
            ``optimizer.skipped``; ``"raise"`` raises FloatingPointError, and synchronises at every step.
        max_grad_norm: clip in the dual. A longer gradient g is scaled by c = max_grad_norm / ‖g‖ together with its
            value, so the step stays a feasible dual point: γ is limited to c. For ``SingleStepFW``.
        process_group: the ranks over which gradients, and so the value, are averaged: ``"default"`` is that of
            torch.distributed, if initialised; with ``None`` this process trains on its own gradients.
        metric: M of ½⟨d, M d⟩/η, for every group without its own: ``Kronecker()`` if None; ``Diagonal()``, Adam's,
            costs less per step; ``Euclidean()`` is the paper's.
        average: keep w̄ ← β w̄ + (1 − β) w with β = min(average, (1 + t)/(10 + t)) after t steps; None keeps none.
            ``eval()`` replaces w by w̄, ``train()`` restores w.
        follow: the model that does that with its own ``eval()`` and ``train()``, as :func:`proxsvm.follow` says.
        fused: whether two loops compiled by numba take the step on a CPU: None where they can, True or an error, False
            never. Results agree up to rounding; state and checkpoints are the same.
        memory: μ in [0, 1): the last batches, each linearised where it was seen, are one more sample of the problem, a
            plane (q, h) with the weight μ²: momentum that γ knows. It excludes the paper's ``momentum``.

    >>> from proxsvm.losses import MultiClassHinge
    >>> from proxsvm.solvers import SingleStepFW
    >>> model = torch.nn.Linear(2, 3)
    >>> criterion = MultiClassHinge(smooth=True)
    >>> optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters())
    >>> optimizer.zero_grad()
    >>> criterion(model(torch.eye(2)), torch.tensor([0, 1])).backward()
    >>> loss = optimizer.step()
    >>> bool(0 <= optimizer.last.gamma <= 1)
    True
    """

    _step_supports_amp_scaling = True  # a GradScaler leaves the scale to step()

    def __init__(
        self,
        loss: ConvexLoss,
        solver: DualSolver | None = None,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]] = (),
        lr: Number | Literal["auto"] = "auto",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nonfinite: Literal["skip", "raise"] = "skip",
        max_grad_norm: float | None = None,
        process_group: ProcessGroup = "default",
        fused: bool | None = None,
        metric: Metric | None = None,
        memory: float = 0.9,
        average: float | None = 0.995,
        follow: nn.Module | None = None,
    ) -> None:
        numbers = {"memory": memory, "max_grad_norm": max_grad_norm}
        self.solver = check_options(loss, solver, nonfinite, process_group, fused, numbers)
        self.loss, self.nonfinite, self.memory = loss, nonfinite, memory
        self.max_grad_norm, self.process_group, self.fused = max_grad_norm, process_group, fused
        self._metric = Kronecker() if metric is None else check_metric(metric)
        self._metrics = list[Metric]()
        self._reports: list[StepReport | None] = [None]  # a compiled step can write to a list, not to an attribute
        self._terms: list[nn.Module] = []
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "average": average})
        self._prepare()
        if follow is not None:
            follow_optimizer(follow, self)

    def _prepare(self) -> None:
        """What a new optimizer and a copy of one need: the kernels, a record of its own, no model that follows it."""
        self._kernels = Kernels(self.fused)
        self._follower: Callable[[], nn.Module | None] = lambda: None
        self._buffers = averages.unfollowed(self)
        self._replicas_checked, self._warned = False, set[str]()
        me = weakref.ref(self)  # the record must not keep its optimizer alive
        self._record = Record(lambda: [] if (o := me()) is None else o._params(), hidden=any_sharded(self._params()))
        for module in (self.loss, *self._terms):
            watch(module, self._record)

    def watch(self, term: nn.Module) -> nn.Module:
        """Register a further convex term of the loss, whose values then count, and return it.

        γ needs the value of everything that is differentiated. A module whose value is non-negative and convex is
        registered here; for anything else call :meth:`backward`.

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
        >>> optimizer = ProxOptimizer(SquaredError(), SingleStepFW(), [w])
        >>> optimizer.backward(optimizer.loss(w[None], torch.zeros(1, 1)).sqrt() + 4)     # |w| + 4
        >>> optimizer.step()
        tensor(7.)
        """
        self._record.backward(total, retain_graph)

    # The step.

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
            given = type(closure).__name__
            raise TypeError(f"step() got a {given}; expected a closure, or by keyword: optimizer.step(loss=value)")
        if closure is not None and loss is not None:
            raise ValueError("step() got a closure and loss=; a closure returns its loss, so give one of them")
        self._require_training()
        try:
            returned, step = (None, self._from_backward(loss)) if closure is None else self._from_closure(closure)
            if step is not None:
                problem, value = step  # 1. the problem
                point = self.solver.solve(problem)  # type: ignore[arg-type]  # 2. the solution; a graph if it needs one
                problem.check(point, self.solver)
                self._take(problem, point, value)  # 3. the update
                self._record.spend()
                returned = value if returned is None else returned
        except BaseException:  # a GradScaler deletes what it has set only after a step that returns
            for name in ("grad_scale", "found_inf"):
                self.__dict__.pop(name, None)
            raise
        return returned

    def _from_closure(self, closure: Callable[[], Tensor | None]) -> tuple[Tensor | None, Step | None]:
        """What the closure returned, and the problem: of its graph, or of the gradients if it called ``backward()``."""
        record, before = self._record, self._record.leaf.grad
        version, start = (0, None) if before is None else (before._version, before[0].clone())  # autograd adds in place
        with torch.enable_grad():
            value = closure()
        if value is None:
            return None, self._from_backward(None)
        if record.leaf.grad is None or (record.leaf.grad is before and before._version == version):
            return value, self._from_graph(value)
        passes, seen = record.claim(), record.leaf.grad
        total = given_value(value)  # it may contain terms that were not recorded
        total = total if start is None or seen is not before else total + start
        if passes > 1 and readable(total) and total < seen[0] * (1 - ROUNDING):
            self._warn(messages.LESS)
        return value, self._from_backward(total)

    def _from_graph(self, value: Tensor) -> Step:
        """The problem of a value whose graph still exists."""
        self._record.claim(value)
        if self.solver.needs_graph:
            problem = self.problem(value)
            if problem.ranks is not None and not self.solver.on_ranks:
                raise RuntimeError(messages.ALONE.format(type(self.solver).__name__))
            return problem, problem.mean(value.detach())
        graph = self._linearised(value)
        first, chosen = graph.first(), {id(p) for p in graph.params}
        space = self._geometry(self._groups(lambda p: id(p) in chosen), None, kernels=True)
        options: dict[str, Any] = {"max_norm": self.max_grad_norm, "past": self._past()}
        return GradientProblem(space, first.delta, first.lam, graph.floor, **options), graph.mean(value.detach())

    def _from_backward(self, loss: Number | None) -> Step | None:
        """The problem of the existing gradients; None where there are none."""
        if self.solver.needs_graph:
            raise RuntimeError(messages.FREED.format(type(self.solver).__name__))
        groups = self._groups(lambda p: p.grad is not None)
        owners = [p for g in groups for p in g["params"]]
        if not owners:
            if any(p.is_meta for p in self._params()):
                raise RuntimeError(messages.META)
            return None
        ranks, scale, sharded = self._ranks(), getattr(self, "grad_scale", None), any_sharded(owners)
        known = self._value(loss, owners[0], scale)
        if loss is None and not torch.compiler.is_compiling():
            self._record.claim()
            if ranks is None and scale is None:  # others change the gradients rightly
                for wrong in self._record.faults():
                    self._warn(wrong)
        value, floor = (known if ranks is None else ranks.mean([known])[0]).unbind()
        space, g = self._geometry(groups, ranks, kernels=True), [local_grad(p) if sharded else p.grad for p in owners]
        past, max_norm = self._past(), self.max_grad_norm
        problem = GradientProblem(space, g, value, floor, scale=scale, max_norm=max_norm, past=past)
        if loss is None and readable(value) and value <= 0 and space.squared_length(g) > ROUNDING:
            self._warn(messages.NEGATIVE if value < -ROUNDING else messages.ZERO)  # a small value may be rounded to 0
        return problem, value

    def _value(self, loss: Number | None, p: Tensor, scale: Tensor | None) -> Tensor:
        """The value that the gradients belong to, the given one or the recorded one, and its lower bound: ``[2]``."""
        like = torch.empty((), dtype=accumulator(p.dtype), device=p.device)
        known = None if self._record.leaf.grad is None else self._record.leaf.grad.to(like)
        if known is not None and scale is not None:
            known = known / scale.to(like)
        if loss is not None:
            return replaced(known, given_value(loss).to(like))
        if scale is None and getattr(self, "found_inf", None) is not None:
            raise RuntimeError(messages.UNSCALED)
        if known is not None:
            return known
        if any(g["lr"] != 0 for g in self.param_groups):
            raise RuntimeError(messages.NO_VALUE)
        return torch.zeros(2).to(like)  # lr = 0 everywhere: nothing moves, whatever the value

    def _take(self, problem: Problem, point: DualPoint, value: Tensor) -> None:
        """Move the parameters to ``point``, unless it, the value or a scaled gradient is not finite."""
        space, found_inf = problem.geometry, getattr(self, "found_inf", None)
        dual = problem.dual(point) if point.dual is None else point.dual
        total = dual + value  # finite only if both are
        skip = (total - total) != 0
        if self.nonfinite == "raise" and skip and (found_inf is None or not found_inf):
            raise FloatingPointError(
                f"the loss is {float(value)} and the dual {float(dual)}: a NaN or infinite loss or gradient. Nothing "
                "was changed; nonfinite='skip' skips such steps"
            )
        if found_inf is not None:  # an overflow of the loss scale is no fault: the GradScaler will lower it
            skip = skip | (found_inf.to(skip.device) > 0)
        h, factor = problem.past_after(point), problem.factor(point)
        x, c = (point.delta, torch.ones_like(value)) if factor is None else (None, factor)
        writes, stays = space.update(x, c, point.gamma, skip, self.memory)
        complete([*writes, *self._scalars(space, h, skip, stays)])
        if (ranks := self._ranks()) is not None:
            agree(ranks, space, [self.param_groups[0][name] for name in SHARED])
        gap = None if point.gap is None else point.gap.to(value)
        eta = space.buckets[0].eta
        self._reports[0] = StepReport(point.gamma.to(value), value, dual.to(value), gap, point.steps, eta)

    def _scalars(self, space: Geometry, h: Tensor | None, skip: Tensor, stays: Sequence[Tensor]) -> list[Write]:
        """What keeps the scalars after a step: what was skipped, the past's h, the history of lr="auto", the counts."""
        shared = self.param_groups[0]
        still = functools.reduce(torch.logical_and, (stay.to(skip.device) for stay in stays))
        new = {} if h is None else {"h": h}
        if any(group.auto for group in space.groups) and space.history is not None:
            new |= space.history._asdict()
        pairs = [(shared["skipped"], shared["skipped"] + skip.to(shared["skipped"].device))]
        for name, number in new.items():
            pairs.append((old := shared[name], torch.where(still.to(old.device), old, number.to(old))))
        for bucket, stay in zip(space.buckets, stays, strict=True):
            if (steps := bucket.kept.steps) is not None:
                pairs.append((steps, steps + stay.logical_not()))
        if self._buffers is not None:
            pairs += averages.update_buffers(self, still)
        return copying(pairs)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            messages.warn(text)

    # Problems.

    def problem(self, value: Tensor) -> ProxProblem:
        """The proximal problem of a loss value, at the parameters that it depends on: to solve or verify by hand.

        ``value`` is what ``criterion(model(x), y)`` returned, before any ``backward()``. On several ranks it is the
        problem averaged over them, and every rank must make this call. With ``memory`` the past is one more sample.
        """
        self._require_training()
        graph, past = self._linearised(value).observe(), self._past()
        return graph if past is None else PastProblem(graph, past)

    def _linearised(self, value: Tensor) -> ProxProblem:
        """The problem of a value without memory, before the metric has observed its gradient."""
        origin: Origin | None = getattr(value, "origin", None)
        if origin is None:
            raise ValueError(messages.NO_ORIGIN)
        params = self._params()
        if any_sharded(params):
            raise RuntimeError(messages.SHARDED)
        ranks = self._ranks()
        seen = reached(origin.scores, params, ranks)
        geometry = self._geometry(self._groups(lambda p: id(p) in seen), None)
        graph = origin.scores, geometry.params
        line = Linearization(*graph) if ranks is None else AveragedLinearization(*graph, ranks)
        return ProxProblem(geometry, origin, line, ranks)

    def _geometry(self, groups: list[dict[str, Any]], ranks: Ranks | None, kernels: bool = False) -> Geometry:
        """The geometry of this rank's parts of the parameters in ``groups``, with what is kept for them."""
        owners, shared = [p for g in groups for p in g["params"]], shared_scalars(self.param_groups)
        store = Store(self.state, owners, self.memory)
        options: dict[str, Any] = {
            "history": History(shared["max_distance"], shared["squares"]),
            "first_distance": FIRST_DISTANCE_WITH_MEMORY if self.memory else FIRST_DISTANCE,
            "keys": store.keys,
            "kernels": self._kernels if kernels else None,
        }
        if any_sharded(owners):
            groups = [{**g, "params": [local(p) for p in g["params"]]} for g in groups]
            options |= {"shares": shares(owners, ranks), "ranks": ranks}
        return Geometry(*flatten(groups, None, 0.0), store.kept, **options)

    def _past(self) -> Past | None:
        return Past(self.memory, self.param_groups[0]["h"]) if self.memory else None

    def _ranks(self) -> Ranks | None:
        ranks = ranks_of(self.process_group)
        if ranks is not None and not self._replicas_checked and not torch.compiler.is_compiling():
            check_replicas(ranks, self._params())
            self._replicas_checked = True
        return ranks

    def _params(self) -> list[Tensor]:
        return [p for g in self.param_groups for p in g["params"]]

    def _groups(self, wanted: Callable[[Any], bool]) -> list[dict[str, Any]]:
        """The groups, each with its metric and only the wanted parameters; neighbours with equal options are one."""
        found: list[dict[str, Any]] = []
        for g, metric in zip(self.param_groups, self._metrics, strict=True):
            check_related(g, self.memory)
            group = {**g, "params": [p for p in g["params"] if wanted(p)], "metric": metric}
            if found and all(equal(found[-1].get(name), group.get(name)) for name in (*OF_A_GROUP, "auto", "metric")):
                found[-1]["params"] += group["params"]
            else:
                found.append(group)
        return found

    # Averages.

    @property
    def averaged(self) -> bool:
        """Whether the averaged weights are in place, as after ``eval()``."""
        return averages.in_place(self)

    def _require_training(self) -> None:
        if self.averaged:
            raise RuntimeError(messages.AVERAGED)

    def eval(self) -> None:
        """Replace the weights with their averages; no step can be taken until ``train()``.

        Nothing is lost and nothing synchronises; after an exception inside, a further ``eval()`` or ``train()``
        completes the switch. Parameters without an average do not change. Under FSDP2, :func:`proxsvm.follow` the
        model: after a forward pass it may hold gathered copies of its shards, which have to be dropped.
        """
        averages.switch(self, True)

    def train(self) -> None:
        """Put the training weights back, bit for bit."""
        averages.switch(self, False)

    # What the last step did, and states.

    @property
    def last(self) -> StepReport | None:
        """What the last step did; None before the first."""
        return self._reports[0]

    @property
    def skipped(self) -> Tensor:
        """How many steps were skipped, because a loss or a gradient was not finite: a 0-dim tensor on the device."""
        count: Tensor = self.param_groups[0]["skipped"]
        return count

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own options, ``metric`` included; it is checked before anything changes."""
        metric = check_metric(param_group.get("metric", self._metric))
        group = {k: v for k, v in param_group.items() if k != "metric"}  # an object, which does not belong in a state
        check_group(group, self.defaults, self.memory)
        if not metric.elementwise and any_sharded([p[1] if isinstance(p, tuple) else p for p in group["params"]]):
            raise TypeError(messages.WHOLE.format(metric))
        super().add_param_group(group)
        self._metrics.append(metric)
        self._replicas_checked = False
        shared_scalars(self.param_groups)
        self.param_groups[-1]["averaged"] = self.averaged  # what has no average yet stays as it is

    def state_dict(self) -> dict[str, Any]:
        """The state, to be saved with the model's own: together they resume bit for bit, in either mode.

        ``"averaged"`` in each group tells whether the model's ``state_dict()`` at the same moment has the averages, as
        after ``eval()``, and always if the model follows its optimizer. Then this one also holds the training weights.
        """
        return averages.complete(self, super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and with it the mode that it was saved in; it is checked before anything changes.

        States of version 0.2 are converted. The state of ``Euclidean()`` without momentum or averages holds no tensors,
        and does not tell its metric: an optimizer with another metric takes over its options, including ``lr``, and
        starts with fresh moments.
        """
        averaged, buffers = self.averaged, averages.kinds(self._buffers or ())
        state_dict = checked(state_dict, self.param_groups, self._metrics, buffers)
        super().load_state_dict(state_dict)
        keep_precision(state_dict, self.param_groups, self.state)
        shared_scalars(self.param_groups)
        averages.loaded(self, averaged)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{k: getattr(self, k) for k in _OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "loss" in state:  # a copy; load_state_dict() also calls this, without a loss
            self._prepare()


_OWN = (
    *("loss", "solver", "nonfinite", "max_grad_norm", "process_group", "fused", "memory"),
    *("_reports", "_terms", "_metric", "_metrics"),
)
