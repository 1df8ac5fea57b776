"""The proximal problem of one step, and its dual: every formula of the toolkit, once, on 0-dim tensors.

In the displacement d = w − w_t, with u the scores, J their Jacobian, H = M/η the metric, r = decay · M w_t and sample
weights p_i (1/n):

    P(d)          = ½⟨d, H d⟩ + ⟨r, d⟩ + Σ_i p_i ℓ(u_i + J_i d; y_i)
    D(delta, lam) = lam − ½ ‖r + delta‖²,    delta = Σ_i p_i J_iᵀ s_i,    lam = Σ_i p_i (⟨s_i, u_i⟩ + c_i)
    d             = −H⁻¹ (r + delta)

with the inner product of the dual, ⟨a, b⟩ = ⟨a, H⁻¹ b⟩, which belongs to the :class:`~proxsvm.geometry.Geometry`.

There are two kinds: :class:`ProxProblem` has the graph (or the features), and can be solved to any accuracy;
:class:`GradientProblem` has the gradients that a backward pass left, and one direction.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxsvm._ranks import Ranks
from proxsvm.geometry import Geometry, Number, Params, flatten
from proxsvm.linearization.base import LinearMap
from proxsvm.linearization.features import linear
from proxsvm.linearization.graph import Linearization
from proxsvm.losses.base import Atom, ConvexLoss, Origin, Scores, detached, like, parts
from proxsvm.metrics.base import Metric
from proxsvm.point import Deferred, DualPoint, scaled


def best_gamma(ascent: Tensor, curvature: Tensor) -> Tensor:
    """argmax over γ in [0, 1] of γ a − γ² c / 2; where c = 0 the function is linear and its better end is returned.

    >>> best_gamma(torch.tensor(1.0), torch.tensor(4.0)), best_gamma(torch.tensor(-1.0), torch.tensor(0.0))
    (tensor(0.2500), tensor(0.))
    """
    return (ascent / curvature.clamp(min=torch.finfo(curvature.dtype).tiny)).clamp(0, 1)


class Problem(ABC):
    """What both kinds of problems share: the dual along a segment, and the value of a point."""

    floor: Tensor
    """f = Σ_i p_i f_i, a lower bound that the loss declares; otherwise 0."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry, self.params, self.groups = geometry, geometry.params, geometry.groups

    @abstractmethod
    def first(self) -> DualPoint:
        """The vertex of the training direction at the scores u, which is the loss's own gradient (proposition 2)."""

    def start(self) -> DualPoint:
        """delta = 0, lam = f, and D = f − ½‖r‖²: where a loss is at least f, (0, f) is a plane below it."""
        floor = self.floor
        zero = torch.zeros_like(floor)
        return DualPoint(scaled(zero, self.params), floor, zero, 0, dual=floor + self._dual_of_zero)

    @property
    def _dual_of_zero(self) -> Tensor:
        """D(0, 0) = −½‖r‖²."""
        return self.geometry.r_squared() * -0.5

    def _segment(self, point: DualPoint, toward: DualPoint) -> tuple[Tensor, Tensor]:
        """⟨r + delta, x⟩ and ‖x‖² with x = delta_s − delta, from ``point`` to ``toward``."""
        space, change = self.geometry, toward.delta
        if point.steps == 0:  # delta = 0
            return space.inner_r(change), space.inner(change, change)
        change = [b - a for a, b in zip(point.delta, toward.delta, strict=True)]
        return space.inner_r(change) + space.inner(point.delta, change), space.inner(change, change)

    def line_search(self, point: DualPoint, toward: DualPoint) -> Tensor:
        """The γ in [0, 1] with the largest dual on the segment from ``point`` to ``toward``.

        γ = clip₀₁[ (lam_s − lam − ⟨r + delta, delta_s − delta⟩) / ‖delta_s − delta‖² ]
        """
        cost, curvature = self._segment(point, toward)
        return best_gamma(toward.lam - point.lam - cost, curvature)

    def move(self, point: DualPoint, toward: DualPoint) -> DualPoint:
        """The best point of the segment from ``point`` to ``toward``."""
        before = self.dual(point) if point.dual is None else point.dual
        cost, curvature = self._segment(point, toward)
        rise = toward.lam - point.lam
        ascent = rise - cost
        gamma = best_gamma(ascent, curvature)
        delta = scaled(gamma, toward.delta)
        if point.steps:
            delta = [a + gamma * (b - a) for a, b in zip(point.delta, toward.delta, strict=True)]
        mass = point.gamma + gamma * (toward.gamma - point.gamma) if point.steps else gamma * toward.gamma
        dual = torch.addcmul(before, gamma, torch.addcmul(ascent, gamma, curvature, value=-0.5))
        return DualPoint(delta, torch.addcmul(point.lam, gamma, rise), mass, point.steps + 1, dual=dual)

    def displacement(self, point: DualPoint) -> list[Tensor]:
        """d = −H⁻¹ (r + delta), one tensor per parameter."""
        return self.geometry.displacement(point.delta)

    def dual(self, point: DualPoint) -> Tensor:
        """D(delta, lam) = lam − ½ ‖r + delta‖²."""
        q = self.geometry.r_plus(point.delta)
        return point.lam - self.geometry.inner(q, q) / 2

    def factor(self, point: DualPoint) -> Tensor | None:
        """c of delta = c x, with x the one direction of a :class:`GradientProblem`; None for a problem with a graph."""
        return None

    def past_after(self, point: DualPoint) -> Tensor | None:
        """h after a step to ``point``; None without memory."""
        return None

    # Where the samples are spread over ranks, all must call the same methods in the same order.

    ranks: Ranks | None = None

    def mean(self, value: Tensor) -> Tensor:
        """(1/R) Σ_ranks value."""
        return value if self.ranks is None else self.ranks.mean([value])[0]

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        """The rows of all ranks, one after another, and which of them are this rank's."""
        if self.ranks is None:
            return rows, slice(None)
        found, rank = self.ranks.gather(rows.detach().cpu()), self.ranks.rank
        begin = sum(map(len, found[:rank]))
        return torch.cat(found).to(rows.device), slice(begin, begin + len(rows))

    def check(self, point: DualPoint, solver: object) -> None:
        """Raise if a solver has bypassed the averages, so that the replicas would drift apart. It synchronises."""
        if self.ranks is None:
            return
        mine = torch.stack([point.lam, point.gamma.to(point.lam)])
        largest = self.ranks.max(torch.stack([mine, -mine]))
        if largest.isfinite().all() and (largest[0] != -largest[1]).any():
            raise RuntimeError(
                f"{solver!r} found different dual points on different ranks, and nothing was changed: on several ranks "
                "a solver may use the samples only through expect() and linearization.vjp(), as MultiStepFW does"
            )


class Past(NamedTuple):
    """The last batches, each linearised where it was seen, as one plane: one more sample, with the weight μ².

        q ← μ q + (1 − μ) g          h ← μ (h + ⟨q, d⟩) + (1 − μ) (value + ⟨g, d⟩)

    q is kept with the parameters (:class:`~proxsvm.geometry.Kept`), h is its value at w_t. Both are 0 at first.
    """

    mu: float
    h: Tensor


class GradientProblem(Problem):
    """The problem of a value and its gradients, after ``backward()``: one direction and no graph.

    The gradients g may be longer than ``max_norm``: with c = min(1, max_norm / ‖g‖) the start and the first vertex are

        delta = 0,    lam = f,    and    delta_s = c g,    lam_s = f + c (value − f),

    with mass c: a convex combination of the gradient's own vertex and the start, so a feasible dual point. With a past
    they have the weight 1 − μ², and the vertex is (1 − μ²) delta_s + μ² q, (1 − μ²) lam_s + μ² h.

    Every point is a multiple of the first vertex, and its mass ``gamma`` tells which: all formulas are scalar.

    Args:
        geometry: that of the parameters which have a gradient.
        gradients: S · g, one tensor per parameter.
        value: the loss value that they belong to, without S.
        floor: the loss's lower bound f; 0 if None.
        scale: S, the loss scale that the gradients still carry; 1 if None.
        max_norm: the largest ‖g‖ that a step uses.
        past: the memory.

    >>> w = torch.tensor([3.0])
    >>> space = Geometry(*flatten([w], lr=0.5, weight_decay=0.0))
    >>> problem = GradientProblem(space, [torch.tensor([2.0])], torch.tensor(6.0))
    >>> point = problem.move(problem.start(), problem.first())     # γ = clip(6 / (η·4)) = 1
    >>> problem.displacement(point), problem.dual(point)
    ([tensor([-1.])], tensor(5.))
    """

    def __init__(
        self,
        geometry: Geometry,
        gradients: Sequence[Tensor],
        value: Tensor,
        floor: Tensor | None = None,
        *,
        scale: Tensor | None = None,
        max_norm: float | None = None,
        past: Past | None = None,
    ) -> None:
        super().__init__(geometry)
        c, factor = torch.ones_like(value), None if scale is None else 1 / scale
        if max_norm is not None:
            norm = geometry.squared_length(gradients).sqrt() * (1.0 if factor is None else factor)
            c = torch.where(norm > max_norm, max_norm / norm, torch.ones_like(norm))
            factor = c if factor is None else c * factor
        geometry.observe(gradients, factor)
        floor = torch.zeros_like(value) if floor is None else floor
        self._past, self.floor, self._clipped = past, floor, max_norm is not None
        self._plane = value if max_norm is None else floor + c * (value - floor)
        lam, delta, old = self._plane, gradients if factor is None else scaled(factor, gradients), 0.0
        if past is not None:
            old, g = past.mu**2, delta
            lam, self.floor = (1 - old) * lam + old * past.h, (1 - old) * floor
            delta = Deferred(lambda: torch._foreach_lerp([x.detach() for x in g], geometry.past(), old))
        self.products = geometry.first(old)
        self._first = DualPoint(delta, lam, c, 1)

    def first(self) -> DualPoint:
        return self._first

    @property
    def _dual_of_zero(self) -> Tensor:
        return self.products.r_r * -0.5

    def factor(self, point: DualPoint) -> Tensor:
        """c of delta = c x, with x that of the first vertex: the ratio of their masses."""
        mass = self._first.gamma
        return torch.where(mass > 0, point.gamma / mass, torch.zeros_like(mass)) if self._clipped else point.gamma

    def _segment(self, point: DualPoint, toward: DualPoint) -> tuple[Tensor, Tensor]:
        found = self.products
        if point.steps == 0 and toward is self._first:
            return found.r_x, found.x_x
        c, change = self.factor(point), self.factor(toward) - self.factor(point)
        return change * (found.r_x + c * found.x_x), change**2 * found.x_x

    def dual(self, point: DualPoint) -> Tensor:
        """D = lam − ½ (‖r‖² + 2c ⟨r, x⟩ + c² ‖x‖²)."""
        c, found = self.factor(point), self.products
        return point.lam - (found.r_r + c * (2 * found.r_x + c * found.x_x)) / 2

    def past_after(self, point: DualPoint) -> Tensor | None:
        """h after the step d = −H⁻¹ (r + c x): with g = (x − μ² q) / (1 − μ²) it is

        h ← μ h + (1 − μ) value + (⟨x, d⟩ + μ ⟨q, d⟩) / (1 + μ)
        """
        if self._past is None:
            return None
        c, (mu, h), found = self.factor(point), self._past, self.products
        against = found.r_x + mu * found.q_r + c * (found.x_x + mu * found.q_x)
        return mu * h + (1 - mu) * self._plane - against / (1 + mu)


class ProxProblem(Problem):
    """The proximal problem at w_t. Create it with :meth:`from_scores` or ``optimizer.problem(value)``.

    >>> from proxsvm.losses import L1Regression
    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> problem = ProxProblem.from_scores(L1Regression(), 2 * w, torch.tensor([0.0]), [w], lr=0.5)
    >>> start = problem.start()                          # P(0) = |2·3| = 6 and D(0, 0) = 0
    >>> problem.primal(start), problem.dual(start)
    (tensor(6.), tensor(0.))
    >>> point = problem.move(start, problem.first())     # s = 1, delta = 2, lam = 6: γ = clip(6 / (η·4)) = 1
    >>> problem.displacement(point), problem.dual(point), problem.gap(point)
    ([tensor([-1.])], tensor(5.), tensor(0.))
    """

    def __init__(
        self, geometry: Geometry, origin: Origin, linearization: LinearMap, ranks: Ranks | None = None
    ) -> None:
        origin.check()
        if origin.loss.reduction == "none":
            raise ValueError("a proximal problem needs a loss with reduction='mean' or 'sum', not 'none'")
        super().__init__(geometry)
        self.origin, self.linearization, self.ranks = origin, linearization, ranks
        self._first: DualPoint | None = None
        self._at_start: Atom | None = None  # an atom that was found at the scores u, and knows its value there

    # Ways to create one.

    @classmethod
    def from_scores(
        cls,
        loss: ConvexLoss,
        scores: Any,
        target: Any,
        params: Params,
        *,
        lr: Number | None = None,
        weight_decay: float = 0.0,
        metric: Metric | None = None,
        sample_weight: Tensor | None = None,
    ) -> ProxProblem:
        """The problem of a mini-batch, by hand.

        Args:
            loss: the loss ℓ.
            scores: what the network returned, with its graph, computed from ``params``.
            target: the y of the loss.
            params: parameters, or group dicts with ``params`` and their own ``lr``, ``weight_decay`` and ``metric``.
            lr: η, for every group without its own.
            weight_decay: r = weight_decay · M w.
            metric: M, the Euclidean one if None.
            sample_weight: ``[n]``, as in the loss.
        """
        scores, target = loss.prepare(scores, target)
        p = loss.coefficients(scores, target, sample_weight)
        geometry = Geometry(*flatten(params, lr, weight_decay, metric))
        origin = Origin(loss, scores, target, p)
        return cls(geometry, origin, Linearization(origin.scores, geometry.params)).observe()

    def observe(self) -> ProxProblem:
        """Pass the first direction to metrics that learn from it: once, before the problem is used."""
        if self.geometry.observes:
            self.geometry.observe(self.first().delta)
            if any(group.auto for group in self.groups):
                self.geometry.first()
        return self

    @classmethod
    def from_features(
        cls,
        loss: ConvexLoss,
        features: Any,
        target: Any,
        *,
        lr: Number,
        weight_decay: float = 0.0,
        metric: Metric | None = None,
        weight: Tensor | None = None,
        sample_weight: Tensor | None = None,
    ) -> ProxProblem:
        """The problem of a linear model, whose scores are features times weights: no network, no graph.

        From w = 0 it *is* the SVM  min ½‖w‖² + C Σ_i ℓ(x_i w; y_i), scaled by 1/(N·C): use η = N·C.

        Args:
            loss: the loss ℓ.
            features: ``[n, F]``, a dense tensor or a sparse one (torch or SciPy).
            target: y; class indices give one output per class, real targets one per entry.
            lr: η.
            weight_decay: r = weight_decay · M w.
            metric: M, the Euclidean one if None.
            weight: w_t, ``[*out, F]`` (``[K, F]`` for K classes); 0 if None.
            sample_weight: ``[n]``, as in the loss.

        >>> from proxsvm.losses import MultiClassHinge
        >>> X, y = torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])
        >>> problem = ProxProblem.from_features(MultiClassHinge(), X, y, lr=2.0)     # N = 2, C = 1
        >>> problem.params[0].shape, problem.primal(problem.start())
        (torch.Size([2, 1]), tensor(1.))
        """
        origin, line = linear(loss, features, target, weight, sample_weight)
        return cls(Geometry(*flatten(line.params, lr, weight_decay, metric)), origin, line).observe()

    def expect(self, b: Tensor) -> Tensor:
        """Σ_i p_i b_i, the mean of one scalar per sample. Every sum over samples is computed here."""
        return self.mean(torch.dot(self.origin.coefficients, b))

    # Vertices: what a solver moves towards.

    @functools.cached_property
    def floor(self) -> Tensor:  # type: ignore[override]
        known, p = self.origin.lower_bounds(), self.origin.coefficients
        return p.new_zeros(()) if known is None else self.expect(known)

    def first(self) -> DualPoint:
        if self._first is None:
            origin, atom = self.origin, self.origin.atom
            self._at_start = origin.loss.direction(detached(origin.scores), origin.target) if atom is None else atom
            self._first = self.vertex(self._at_start)
        return self._first

    def vertex(self, atom: Atom, reuse: bool = False) -> DualPoint:
        """An atom for each sample, as a dual point: delta = Σ p_i J_iᵀ s_i, lam = Σ p_i (⟨s_i, u_i⟩ + c_i).

        ``reuse``: as in :meth:`Linearization.vjp <proxsvm.linearization.graph.Linearization.vjp>`.
        """
        scores, p = self.origin.scores, self.origin.coefficients
        weighted = tuple(p.reshape(-1, *[1] * (s.dim() - 1)) * s for s in parts(atom.s))
        u = detached(scores)
        lam = self.expect(atom.value_at(u) if atom is self._at_start else atom.b(u))
        delta = self.linearization.vjp(like(scores, weighted), reuse)
        return DualPoint(delta, lam, torch.ones_like(lam), 1, atom=atom)

    def best_atom(self, point: DualPoint) -> tuple[Atom, Tensor]:
        """The Frank-Wolfe atom at ``point``, and the certified gap P − D there.

        It is the oracle's atom at the linearised scores u + J d. For a smoothed loss it is the smoothed atom there,
        as long as that promises at least half of the gap.
        """
        loss, target = self.origin.loss, self.origin.target
        v = self.linearised_scores(point)
        atom = loss.oracle(v, target)
        spent = self._spent(point)
        gap = self.expect(atom.value_at(v)) - spent
        if loss.smooth:
            soft = loss.direction(v, target)
            promise = self.expect(soft.value_at(v)) - spent
            atom = soft.where((promise >= gap / 2).expand(len(atom.offset)), atom)
        if self._is_start(point):
            self._at_start = atom
        return atom, gap

    def conditional_gradient(self, point: DualPoint) -> tuple[DualPoint, Tensor]:
        """The Frank-Wolfe vertex at ``point``, and the certified gap P − D there."""
        atom, gap = self.best_atom(point)
        return self.vertex(atom), gap

    # The value of a point.

    def primal(self, point: DualPoint) -> Tensor:
        """P(d) at the point's displacement, where ½⟨d, H d⟩ = ½‖r + delta‖² and ⟨r, d⟩ = −⟨r, r + delta⟩."""
        q = self.geometry.r_plus(point.delta)
        return self._linearised_loss(point) + self.geometry.inner(q, q) / 2 - self.geometry.inner_r(q)

    def gap(self, point: DualPoint) -> Tensor:
        """P − D ≥ 0: a bound on how far the point is from the exact solution."""
        return self._linearised_loss(point) - self._spent(point)

    def relative_gap(self, point: DualPoint) -> Tensor:
        """(P − D) / (P − D₀) in [0, 1], D₀ the dual of the start: 1 at the start, 0 at the solution."""
        return self.relative(self.gap(point), point)

    def relative(self, gap: Tensor, point: DualPoint) -> Tensor:
        """A certified ``gap`` of ``point`` as a fraction of P − D₀."""
        dual = self.dual(point) if point.dual is None else point.dual
        return torch.where(gap > 0, gap / (gap + dual - self._dual_of_zero - self.floor), torch.zeros_like(gap))

    def _linearised_loss(self, point: DualPoint) -> Tensor:
        v = self.linearised_scores(point)
        return self.expect(self.origin.loss.oracle(v, self.origin.target).value_at(v))

    def _spent(self, point: DualPoint) -> Tensor:
        """lam − ⟨delta, r + delta⟩: the value of the point's own atoms at its linearised scores."""
        delta, space = point.delta, self.geometry
        return point.lam if point.steps == 0 else point.lam - space.inner(delta, delta) - space.inner_r(delta)

    def linearised_scores(self, point: DualPoint) -> Scores:
        """u + J d at the point's displacement."""
        scores = self.origin.scores
        if self._is_start(point):
            return detached(scores)
        change = parts(self.linearization.jvp(self.displacement(point)))
        return like(scores, tuple(u.detach() + c for u, c in zip(parts(scores), change, strict=True)))

    def _is_start(self, point: DualPoint) -> bool:
        """Whether d = 0."""
        return point.steps == 0 and not any(g.decay for g in self.groups)
