"""The metrics of all parameter groups, bound to the parameters of one problem: the only part that knows η.

With H = M/η in each group and r = decay · M w, the inner product of the dual is ⟨a, b⟩ = ⟨a, H⁻¹ b⟩, so that

    ⟨a, b⟩ = Σ_g η ⟨a, M⁻¹ b⟩_g        ⟨r, x⟩ = Σ_g η decay ⟨w, x⟩_g        ‖r‖² = Σ_g η decay² ⟨w, M w⟩_g
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from proxsvm._kernels.step import Kernels, Loops
from proxsvm._kernels.tensors import Tensors, accumulator, compare, require_dense
from proxsvm._ranks import Ranks
from proxsvm._scores import known
from proxsvm.metrics.auto import FIRST_DISTANCE, History, distance_over_gradients
from proxsvm.metrics.base import Matrix, Metric, State
from proxsvm.metrics.diagonal import Diagonal, bias_correction
from proxsvm.metrics.euclidean import Euclidean

Number: TypeAlias = "float | Tensor"
Params: TypeAlias = "Iterable[Tensor] | Iterable[Mapping[str, Any]]"
Write: TypeAlias = Callable[[], object]  # changes something in place; a second call changes nothing more
EUCLIDEAN = Euclidean()
TURNING = ("q", "moved")  # what is kept in the metric's own coordinates
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


# Parameter groups.


def check_numbers(options: Mapping[str, Any]) -> None:
    """Raise unless each option is valid. A tensor on an accelerator is not read.

    >>> check_numbers({"lr": -1.0})
    Traceback (most recent call last):
    ValueError: lr is -1.0; expected η ≥ 0, finite in float32
    """
    for name, value in options.items():
        expected, holds = NUMBERS[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"{name} is a tensor of shape {tuple(value.shape)}; expected a number or a 0-dim tensor")
        if isinstance(value, Tensor) and (type(value) is not Tensor or not value.is_cpu):
            continue
        try:
            fine = holds(value if value is None or isinstance(value, str) else float(value))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} is {value!r}; expected a number, {expected}") from error
        if not fine:
            raise ValueError(f"{name} is {float(value)}; expected {expected}")


class Group(NamedTuple):
    """Parameters that share η, weight decay and a metric; ``at``: their indices in the problem's list.

    ``auto``: whether η is chosen automatically; ``eta`` is then a factor of it. ``momentum`` is the paper's μ,
    ``average`` the largest weight of the average of the weights, None where there is none; only the update uses them.
    """

    eta: Number
    decay: float
    at: range
    metric: Metric = EUCLIDEAN
    auto: bool = False
    momentum: float = 0.0
    average: float | None = None


def flatten(
    params: Params, lr: Number | None, weight_decay: float, metric: Metric | None = None
) -> tuple[list[Tensor], list[Group]]:
    """Parameters or group dicts as one list, and the groups with their indices in it; options are checked."""
    given = list(params)
    dicts: list[Mapping[str, Any]] = [g for g in given if isinstance(g, Mapping)]
    if not dicts:
        dicts = [{"params": given}]
    elif len(dicts) != len(given):
        raise TypeError("params mixes tensors and group dicts; expected one or the other")
    flat: list[Tensor] = []
    groups: list[Group] = []
    for g in dicts:
        members = [g["params"]] if isinstance(g["params"], Tensor) else list(g["params"])
        eta, decay = g.get("lr", lr), g.get("weight_decay", weight_decay)
        auto, mu, average = g.get("auto", False), g.get("momentum", 0.0), g.get("average")
        if eta is None and "lr" not in g:
            raise ValueError("no lr: pass lr=η, or groups with an 'lr' of their own")
        if isinstance(eta, str):
            raise ValueError(
                f"lr is {eta!r}; expected a number here: 'auto' needs the history of an optimizer whose group was "
                "created with it"
            )
        if not torch.compiler.is_compiling():
            check_numbers({"lr": eta, "weight_decay": decay, "momentum": mu, "average": average})
        if isinstance(eta, Tensor) and eta.dim():
            eta = eta.reshape(())
        if members:
            eta = eta * (1 - mu) if auto and mu else eta  # the paper's momentum multiplies a step by 1/(1 − μ)
            at, chosen = range(len(flat), len(flat) + len(members)), check_metric(g.get("metric", metric))
            groups.append(Group(eta, decay, at, chosen, auto, mu, average))
            flat += members
    if not flat:
        raise ValueError("params is empty (a generator that was already used up?)")
    return flat, groups


def check_metric(metric: Any) -> Metric:
    """``metric``, the Euclidean one for None; raise TypeError if it is not a metric."""
    if metric is None:
        return EUCLIDEAN
    if not isinstance(metric, Metric):
        hint = ", not its class: add ()" if isinstance(metric, type) else ""
        raise TypeError(f"metric is {metric!r}; expected an instance of a proxsvm.metrics.Metric{hint}")
    return metric


# Buckets: what one pass over memory covers.


class Kept(NamedTuple):
    """What an optimizer keeps for the parameters of a bucket between steps.

    ``metric``: the state of the metric for each parameter; ``steps``: how many steps they have taken, None where nobody
    needs it; ``vectors``: lists with one tensor per parameter, those that there are of ``q``, the past (memory), ``z``,
    the velocity, ``average``, and ``moved``, the sum of the steps (lr="auto"). q and ``moved`` are in the metric's own
    coordinates.
    """

    metric: list[State]
    steps: Tensor | None
    vectors: dict[str, list[Tensor]]


class Sums(NamedTuple):
    """Inner products of x = (1 − b) g + b q: 0-dim tensors, 0 where they were not requested. u: how far w has moved."""

    xx: Tensor  # ⟨x, M⁻¹x⟩
    wx: Tensor  # ⟨w, x⟩
    ww: Tensor  # ⟨w, M w⟩
    qx: Tensor  # ⟨q, M⁻¹x⟩
    qw: Tensor  # ⟨q, w⟩
    gg: Tensor  # ⟨g, M⁻¹g⟩
    uu: Tensor  # ⟨u, M u⟩


class Bucket:
    """The parameters of one group, dtype and device, as one flat vector.

    ``at``: their indices in the problem's list; ``share``: the weight of their inner products in a sum over ranks,
    1/copies where several ranks hold the same parameters; ``eta``: η, the automatic one included.
    """

    def __init__(self, group: Group, at: Sequence[int], w: list[Tensor], kept: Kept, share: float = 1.0) -> None:
        self.group, self.at, self.w, self.kept, self.share = group, at, w, kept, share
        learned = group.metric.state if group.metric.elementwise else ()
        self.vectors = {"w": w, **kept.vectors, **{name: [own[name] for own in kept.metric] for name in learned}}
        self.decay, self.dtype, self.device = group.decay, accumulator(w[0].dtype), w[0].device
        eta = group.eta
        self.eta: Number = eta.to(self.device, self.dtype) if isinstance(eta, Tensor) else eta
        self._matrix: Matrix | None = None
        self._loops: Loops | None = None
        self._gradients: tuple[Tensors, Tensor | None] = (), None
        # In the metric's own coordinates: M⁻¹x of the direction of products(), and what was asked for by its name.
        self._first: Tensor | None = None
        self._coordinates: dict[str, Tensor] = {}

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each parameter."""
        return [w.numel() for w in self.w]

    def own(self, x: Tensors) -> list[Tensor]:
        """The bucket's part of a vector over all parameters."""
        return [x[i] for i in self.at]

    def part(self, x: Tensors) -> Tensor:
        """That part as one new vector."""
        return self.flat(self.own(x))

    # Flat vectors, in float32 or better.

    def flat(self, tensors: Tensors) -> Tensor:
        """One tensor per parameter as one new vector."""
        return torch.cat([t.detach().reshape(-1) for t in tensors]).to(self.dtype)

    def views(self, flat: Tensor) -> list[Tensor]:
        """A flat vector in the parameters' shapes."""
        return [part.view(w.shape) for part, w in zip(torch.split(flat, self.sizes), self.w, strict=True)]

    def map(self, function: Callable[[Tensors], Tensors], x: Tensor) -> Tensor:
        """A linear map of lists with one tensor per parameter, for flat vectors."""
        if self.group.metric.elementwise:
            return function([x])[0]
        views = self.views(x)
        found = function(views)
        return x if found is views else self.flat(found)

    # The metric of the step.

    def observe(self, gradients: Tensors, scale: Tensor | None = None, kernels: Kernels | None = None) -> None:
        """Fix M by the first direction of the step, scale · gradients."""
        require_dense(gradients)
        self._gradients, self._matrix, self._loops, self._coordinates = (gradients, scale), None, None, {}
        metric, vectors = self.group.metric, {**self.vectors, "g": gradients}
        if kernels is not None and type(metric) in (Euclidean, Diagonal):
            if (bound := kernels.bind(self.at[0], vectors)) is not None:  # it has compared all
                self._loops, self._gradients = bound[0], (bound[1], scale)
                return
        elif kernels is not None and kernels.fused:
            raise RuntimeError(f"fused=True, but there are no compiled loops for {metric}: leave fused=None")
        compare("gradient", self.w, gradients)
        self.check()

    def check(self) -> None:
        """Compare what is kept with the parameters, before anything changes: one may have another shape by now."""
        for name, tensors in self.vectors.items():
            compare(name, self.w, tensors)

    @property
    def matrix(self) -> Matrix:
        """M, once a direction was observed; a metric that learns nothing needs none."""
        metric, kept = self.group.metric, self.kept
        if isinstance(metric, Matrix):
            return metric
        if self._matrix is None:
            assert kept.steps is not None
            if metric.elementwise:  # one vector instead of many parameters
                self._before = [{name: self.flat(self.vectors[name]) for name in metric.state}]
                given = [self.gradient()]
            else:
                gradients, scale = self._gradients
                given, self._before = [g.detach().to(self.dtype) for g in gradients], kept.metric
                given = given if scale is None else list(torch._foreach_mul(given, scale))
            self._matrix, self._after = metric.observe(given, self._before, kept.steps)
        return self._matrix

    def gradient(self) -> Tensor:
        """The direction that was observed, scale · gradients."""
        gradients, scale = self._gradients
        g = self.flat(gradients)
        return g if scale is None else g.mul_(scale)

    # In the metric's own coordinates, where a step needs fewer rotations.

    def coordinates(self, name: str) -> Tensor:
        """The coordinates of g, the direction that was observed, or of what is kept under a name.

        q and the sum of the steps are kept in the coordinates of the step before. The update changes both in place.
        """
        if name not in self._coordinates:
            matrix = self.matrix
            if name == "g":
                found = self.map(matrix.rotate, self.gradient()) if matrix.observed is None else matrix.observed
            else:
                change = matrix.carry if name in TURNING else matrix.rotate
                found = self.map(change, self.flat(self.vectors[name]))
            self._coordinates[name] = found
        return self._coordinates[name]

    def inside(self, function: Callable[[Tensors], Tensors], x: Tensor) -> Tensor:
        """A linear map of coordinates."""
        return self.map(function, x) if self.matrix.inside is self.matrix else function([x])[0]

    # The two passes of a single step.

    def products(self, b: float, starting: bool) -> Sums:
        """The inner products of x = (1 − b) g + b q, with g the observed direction: all that a single step needs.

        ``starting``: whether ⟨w, M w⟩ is needed, because it may be the first step of lr="auto".
        """
        kept, metric, decay = self.kept, self.group.metric, self.decay != 0
        past, auto = "q" in self.vectors, "moved" in self.vectors
        if self._loops is not None:
            moments = None
            if isinstance(metric, Diagonal):
                assert kept.steps is not None
                moments = metric.beta2, metric.eps, bias_correction(metric.beta2, kept.steps).item()
            return Sums(*self._loops.products(1 - b, b, self._gradients[1], moments, decay))
        x = g = self.coordinates("g")
        inside, zero = self.matrix.inside, g.new_zeros(())
        wx = ww = qx = qw = gg = uu = zero
        if past:
            q = self.coordinates("q")
            x = torch.lerp(g, q, b)
        y = self._first = self.inside(inside.solve, x)
        if past:
            qx = torch.dot(q, y)
        if auto:
            moved = self.coordinates("moved")
            gg = torch.dot(g, self.inside(inside.solve, g) if past else y)
            uu = torch.dot(moved, self.inside(inside.times, moved))
        if decay or (auto and starting):
            w = self.coordinates("w")
            wx, ww = torch.dot(w, x), torch.dot(w, self.inside(inside.times, w))
            qw = torch.dot(q, w) if past else zero
        return Sums(torch.dot(x, y), wx, ww, qx, qw, gg, uu)

    def update(
        self, x: Tensors | None, factor: Tensor, gamma: Tensor, skip: Tensor, memory: float
    ) -> tuple[list[Write], Tensor]:
        """What moves w by −η (factor · M⁻¹x + decay · w), and everything that is kept with it; and whether it stays.

        With t = η factor M⁻¹x and drop = η decay,

            z ← μ z − t − gamma · drop · w       w ← w − drop · w − t + μ z       q ← μ q + (1 − μ) g
            w̄ ← w̄ − rate · (w̄ − w)

        and nothing at all where η = 0: the paper's z contains η and would keep moving.

        ``x``: the bucket's part of a direction; None for that of :meth:`products`. ``gamma``: the mass of the point.
        ``skip``: a 0-dim bool tensor, whether nothing may change. ``memory``: μ of the past, 0 without one.
        """
        kept, mu, average = self.kept, memory or self.group.momentum, self.group.average
        drop = self.eta * self.decay
        lift, rate = drop * gamma, 0.0 if average is None else averaging_rate(average, kept.steps)
        if isinstance(self.eta, Tensor):
            skip = skip | (self.eta == 0)
        if not isinstance(self.group.eta, Tensor) and self.group.eta == 0:  # known without a device
            return [], torch.ones_like(skip)
        if known(skip):
            return [], skip
        if x is None and self._loops is not None:
            return [self._loops.update(self.eta * factor, lift, drop, mu, rate)], skip
        if x is not None:
            self._first = self.inside(self.matrix.inside.solve, self.map(self.matrix.rotate, self.flat(x)))
        assert self._first is not None, "products() comes before update()"
        unless = None if known(skip) is False else skip
        moved, self._first = self._first * (-self.eta * factor), None
        d, w = self.map(self.matrix.rotate_back, moved), self.flat(self.w)
        new: dict[str, Tensor] = {}
        if "z" in self.vectors:
            z = self.flat(self.vectors["z"]).mul_(mu).add_(d)
            new["z"] = self._unless(unless, "z", z.addcmul_(w, lift, value=-1) if self.decay else z)
            d = torch.add(d, self._rounded(new["z"]), alpha=mu)
        if self.decay:
            d = torch.addcmul(d, w, drop, value=-1) if isinstance(drop, Tensor) else torch.sub(d, w, alpha=drop)
        if "moved" in self.vectors:
            turned = self.map(self.matrix.rotate, d) if self.decay or "z" in new else moved
            new["moved"] = self._unless(unless, "moved", self.coordinates("moved").add_(turned))
        new["w"] = self._unless(unless, "w", w.add_(d))
        if "q" in self.vectors:
            new["q"] = self._unless(unless, "q", self.coordinates("q").lerp_(self.coordinates("g"), 1 - mu))
        if "average" in self.vectors:
            mean = self.flat(self.vectors["average"]).lerp_(self._rounded(new["w"]), rate)
            new["average"] = self._unless(unless, "average", mean)
        self._coordinates = {}
        pairs = [pair for name, x in new.items() for pair in zip(self.vectors[name], self.views(x), strict=True)]
        learned, numbers = self._learned(unless)
        return [*copying([*pairs, *learned]), *numbers], skip

    def _unless(self, skip: Tensor | None, name: str, new: Tensor) -> Tensor:
        """What is kept under ``name`` after the step: ``new``, or as before, bit for bit, if ``skip`` holds."""
        return new if skip is None else torch.where(skip, self.flat(self.vectors[name]), new)

    def _rounded(self, x: Tensor) -> Tensor:
        """``x`` as the parameters can hold it."""
        return x.to(self.w[0].dtype).to(self.dtype)

    def _learned(self, skip: Tensor | None) -> tuple[list[tuple[Tensor, Tensor]], list[Write]]:
        """The tensors of the metric and their values after the step, unless ``skip`` holds; what sets its numbers."""
        pairs: list[tuple[Tensor, Tensor]] = []
        numbers: list[Write] = []
        if not self.group.metric.state:
            return pairs, numbers
        assert self.matrix is not None  # observed by now
        for i, (before, after) in enumerate(zip(self._before, self._after, strict=True)):
            for name, x in after.items():
                if not isinstance(x, Tensor):  # a device does not say whether the step is skipped: it counts
                    numbers.append(partial(self.kept.metric[i].update, {name: x}))
                elif x is not before[name]:
                    x = x if skip is None else torch.where(skip, before[name], x)
                    if self.group.metric.elementwise:  # one vector was observed instead of many parameters
                        pairs += zip(self.vectors[name], self.views(x), strict=True)
                    else:
                        pairs.append((before[name], x))
        return pairs, numbers


def averaging_rate(average: float, steps: Tensor | None) -> Tensor:
    """1 − β of w̄ ← β w̄ + (1 − β) w, with β = min(average, (1 + t)/(10 + t)) after t steps.

    >>> averaging_rate(0.5, torch.tensor(0.0)), averaging_rate(0.5, torch.tensor(90.0))
    (tensor(0.9000), tensor(0.5000))
    """
    assert steps is not None
    return (steps + 10).reciprocal().mul(9).clamp(min=1 - average)


# The update: everything that can fail is computed before the first of the writes.


def copying(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Write]:
    """What sets each first tensor to the second, in place: one call for each device and dtype."""
    kinds: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for old, new in pairs:
        olds, news = kinds.setdefault((old.device, old.dtype), ([], []))
        olds.append(old.detach())
        news.append(new)
    return [partial(torch._foreach_copy_, olds, news) for olds, news in kinds.values()]


def complete(writes: Sequence[Write]) -> None:
    """Make all writes, or none: an exception between two of them (Ctrl-C) is raised when all are made.

    >>> x, y = torch.zeros(1), torch.zeros(1)
    >>> def interrupt() -> None:
    ...     if not y:
    ...         y.fill_(1)
    ...         raise KeyboardInterrupt
    >>> try:
    ...     complete([interrupt, partial(x.fill_, 2)])
    ... except KeyboardInterrupt:
    ...     print(x)
    tensor([2.])
    """
    try:
        for write in writes:
            write()
    except BaseException:
        for write in writes:
            write()
        raise


# The geometry of a problem.


class Products(NamedTuple):
    """Of the first direction x: ⟨r, x⟩, ‖x‖², ‖r‖², ⟨q, r⟩ and ⟨q, x⟩ in the inner product of the dual."""

    r_x: Tensor
    x_x: Tensor
    r_r: Tensor
    q_r: Tensor
    q_x: Tensor


class Geometry:
    """Inner products, H⁻¹x and the update, over all groups.

    Args:
        params: w_t.
        groups: η, weight decay and metric of ranges of ``params``.
        kept: what an optimizer keeps for the parameters of a group at some indices; nothing, if None.
        history: of an optimizer with lr="auto".
        kernels: the compiled step; torch's own operations if None.
        keys: what parameters must share, besides group, dtype and device, to be in one bucket.
        shares: the weight of each parameter's inner products in a sum over ``ranks``, 1 for all if None.
        ranks: those that hold the shards of the parameters, whose inner products are summed.

    >>> w = torch.tensor([3.0, 4.0])
    >>> space = Geometry([w], [Group(eta=0.5, decay=0.1, at=range(1))])
    >>> space.inner([w], [w]), space.displacement([torch.ones(2)])         # 0.5 · 25, and −0.5 · (0.1 w + 1)
    (tensor(12.5000), [tensor([-0.6500, -0.7000])])
    """

    def __init__(
        self,
        params: list[Tensor],
        groups: list[Group],
        kept: Callable[[Group, Sequence[int]], Kept] | None = None,
        *,
        history: History | None = None,
        first_distance: float = FIRST_DISTANCE,
        kernels: Kernels | None = None,
        keys: Sequence[Hashable] | None = None,
        shares: Sequence[float] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.params, self.groups, self.history = params, groups, history
        self._first_distance, self._kernels, self._ranks = first_distance, kernels, ranks
        self.buckets = []
        for group in groups:
            kinds: dict[tuple[Any, ...], list[int]] = {}
            for i in group.at:
                kind = params[i].dtype, params[i].device, keys and keys[i], shares[i] if shares else 1.0
                kinds.setdefault(kind, []).append(i)
            for (*_, share), at in kinds.items():
                w = [params[i] for i in at]
                state = _nothing_kept(group, w) if kept is None else kept(group, at)
                self.buckets.append(Bucket(group, at, w, state, share))

    @property
    def observes(self) -> bool:
        """Whether the metric, η or the past depends on the first direction of a step."""
        return any(b.group.metric.state or b.group.auto or "q" in b.vectors for b in self.buckets)

    def observe(self, x: Tensors, scale: Tensor | None = None) -> None:
        """Fix the metrics by the first direction of the step, scale · x."""
        for bucket in self.buckets:
            bucket.observe(bucket.own(x), scale, self._kernels)

    def first(self, b: float = 0.0) -> Products:
        """Choose η where it is automatic; the inner products of the first direction, (1 − b) x + b q."""
        starting = any(group.auto for group in self.groups)
        if starting and self.history is not None and self.history.max_distance.is_cpu:
            starting = torch.compiler.is_compiling() or bool(self.history.max_distance < 0)
        rows = [(bucket, bucket.products(b, starting)) for bucket in self.buckets]
        if any(group.auto for group in self.groups):
            self._choose_eta([(bucket, sums) for bucket, sums in rows if bucket.group.auto])
        found = []
        for bucket, sums in rows:
            eta, decay, past = bucket.eta * bucket.share, bucket.decay, "q" in bucket.vectors
            r_x, r_r = (eta * decay * sums.wx, eta * decay**2 * sums.ww) if decay else (0 * sums.xx, 0 * sums.xx)
            q_r, q_x = (eta * decay * sums.qw, eta * sums.qx) if past else (sums.qw, sums.qx)
            found.append((r_x, eta * sums.xx, r_r, q_r, q_x))
        return Products(*self.reduce([self._total(column) for column in zip(*found, strict=True)]))

    def _choose_eta(self, rows: Sequence[tuple[Bucket, Sums]]) -> None:
        """Set η of the buckets where it is automatic, by their inner products, and the history after it."""
        if self.history is None:
            raise ValueError("lr='auto' needs the history of an optimizer; a problem built by hand needs a number")
        columns = zip(*((b.share * sums.ww, b.share * sums.uu, b.share * sums.gg) for b, sums in rows), strict=True)
        start, distance, gradient = self.reduce([self._total(column) for column in columns])
        found, self.history = distance_over_gradients(
            self.history, start=start, distance=distance, gradient=gradient, first=self._first_distance
        )
        for bucket, _ in rows:
            bucket.eta = bucket.group.eta * found.to(bucket.device, bucket.dtype)

    def reduce(self, numbers: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sums over this rank's shards as sums over all of them, in one reduction."""
        if self._ranks is None:
            return numbers
        return self._ranks.sum(torch.stack([x.to(numbers[0]) for x in numbers])).unbind()

    def _total(self, numbers: Sequence[Tensor]) -> Tensor:
        """Their sum, on the device and in the dtype of the first."""
        return sum((x.to(numbers[0]) for x in numbers[1:]), start=numbers[0])

    def _sum(self, buckets: Sequence[Bucket], term: Callable[[Bucket], Tensor]) -> Tensor:
        """Σ over the buckets of share · η · term, over all ranks."""
        zero = self.params[0].new_zeros((), dtype=accumulator(self.params[0].dtype))
        return self.reduce([self._total([zero, *(b.eta * b.share * term(b) for b in buckets)])])[0]

    @property
    def _decaying(self) -> list[Bucket]:
        return [bucket for bucket in self.buckets if bucket.decay]

    # Inner products.

    def inner(self, a: Tensors, b: Tensors) -> Tensor:
        """⟨a, b⟩ = ⟨a, H⁻¹ b⟩."""
        return self._sum(self.buckets, lambda of: torch.dot(of.part(a), of.map(of.matrix.solve, of.part(b))))

    def inner_r(self, x: Tensors) -> Tensor:
        """⟨r, x⟩, without forming r."""
        return self._sum(self._decaying, lambda of: of.decay * torch.dot(of.flat(of.w), of.part(x)))

    def r_squared(self) -> Tensor:
        """‖r‖²."""

        def term(bucket: Bucket) -> Tensor:
            w = bucket.flat(bucket.w)
            return bucket.decay**2 * torch.dot(w, bucket.map(bucket.matrix.times, w))

        return self._sum(self._decaying, term)

    def squared_length(self, x: Tensors) -> Tensor:
        """Σ x², without a metric: for the bound on the gradient norm."""
        norms = [
            bucket.share * torch.stack(torch._foreach_norm(bucket.own(x))).to(bucket.dtype).square().sum()
            for bucket in self.buckets
        ]
        return self.reduce([self._total(norms)])[0]

    # Vectors.

    def solve(self, x: Tensors) -> list[Tensor]:
        """H⁻¹ x, one tensor per parameter."""
        return self._gather(lambda bucket: bucket.map(bucket.matrix.solve, bucket.part(x)) * bucket.eta)

    def displacement(self, delta: Tensors) -> list[Tensor]:
        """d = −H⁻¹ (r + delta), one tensor per parameter."""

        def of(b: Bucket) -> Tensor:
            y = b.map(b.matrix.solve, b.part(delta))
            return (torch.add(y, b.flat(b.w), alpha=b.decay) if b.decay else y) * -b.eta

        return self._gather(of)

    def scale(self) -> float | None:
        """The scalar a of H⁻¹ = a · 1, where it is the same for all parameters; else None."""
        scales = {float(bucket.eta) if bucket.group.metric.identity else None for bucket in self.buckets}
        return scales.pop() if len(scales) == 1 else None

    def r_plus(self, delta: Tensors) -> list[Tensor]:
        """r + delta with r = decay · M w, the gradient of the regularisation, one tensor per parameter."""

        def of(b: Bucket) -> Tensor:
            own = b.part(delta)
            return own.add_(b.map(b.matrix.times, b.flat(b.w)), alpha=b.decay) if b.decay else own

        return self._gather(of)

    def r(self) -> list[Tensor]:
        """r = decay · M w."""
        return self.r_plus([torch.zeros_like(w) for w in self.params])

    def root(self, rows: Tensor) -> Tensor:
        """``rows`` · H^(−1/2) of a dense ``[k, P]`` matrix over all flattened parameters: J H⁻¹ Jᵀ is its square."""
        pieces = list(torch.split(rows, [w.numel() for w in self.params], 1))
        for bucket in self.buckets:
            joined = bucket.matrix.root(torch.cat([pieces[i] for i in bucket.at], 1), [w.shape for w in bucket.w])
            for i, piece in zip(bucket.at, torch.split(joined * bucket.eta**0.5, bucket.sizes, 1), strict=True):
                pieces[i] = piece
        return torch.cat(pieces, 1)

    def _gather(self, part: Callable[[Bucket], Tensor]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for bucket in self.buckets:
            found.update(zip(bucket.at, bucket.views(part(bucket)), strict=True))
        return [found[i].to(w.dtype) for i, w in enumerate(self.params)]

    # The update.

    def update(
        self, x: Tensors | None, factor: Tensor, gamma: Tensor, skip: Tensor, memory: float = 0.0
    ) -> tuple[list[Write], list[Tensor]]:
        """What moves every bucket by −H⁻¹ (r + factor · x), with what is kept for it; see :meth:`Bucket.update`.

        ``x``: a direction; None for that of :meth:`first`. Also returns for each bucket whether it stays where it is.
        """
        writes: list[Write] = []
        stays = []
        for bucket in self.buckets:
            if x is not None:  # otherwise observe() has
                bucket.check()
            c, mass, stay = (number.to(bucket.device) for number in (factor, gamma, skip))
            found, stay = bucket.update(None if x is None else bucket.own(x), c, mass, stay, memory)
            writes += found
            stays.append(stay)
        return writes, stays

    def past(self) -> list[Tensor]:
        """q, one tensor per parameter, out of the coordinates in which it is kept."""
        return self._gather(lambda bucket: bucket.map(bucket.matrix.rotate_back, bucket.coordinates("q")))


def _nothing_kept(group: Group, w: list[Tensor]) -> Kept:
    """For a problem built by hand."""
    zero = torch.zeros((), dtype=accumulator(w[0].dtype), device=w[0].device)
    return Kept([group.metric.start(p.detach()) for p in w], zero, {})
