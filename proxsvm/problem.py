"""The proximal problem of one step, and its dual. The formulas of the toolkit live here, and on scalars in ``climbed``.

In the displacement d = w − w_t, with u the scores, J their Jacobian, H = M/η the metric, r = decay · M w_t and sample
weights p_i (1/n):

    P(d)          = ½⟨d, H d⟩ + ⟨r, d⟩ + Σ_i p_i ℓ(u_i + J_i d; y_i)
    D(delta, lam) = lam − ½ ‖r + delta‖²,    delta = Σ_i p_i J_iᵀ s_i,    lam = Σ_i p_i (⟨s_i, u_i⟩ + c_i)
    d             = −H⁻¹ (r + delta)

with the inner product of the dual, ⟨a, b⟩ = ⟨a, H⁻¹ b⟩. It belongs to the :class:`~proxsvm.metrics._geometry.Geometry`,
the only part that knows η.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.scalars import climbed
from proxsvm._numbers import Number, minus, plus, times, to_tensor, zero_like
from proxsvm.linearization.base import LinearMap
from proxsvm.linearization.features import linear
from proxsvm.linearization.graph import Linearization
from proxsvm.losses.base import Atom, ConvexLoss, Origin, Scores, detached, like, parts
from proxsvm.metrics._geometry import Geometry
from proxsvm.metrics._groups import Group, Params, by_hand
from proxsvm.metrics.base import Metric
from proxsvm.point import DualPoint, Scaled


class ProxProblem:
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
        self,
        geometry: Geometry,
        origin: Origin | None = None,
        linearization: LinearMap | None = None,
        first: DualPoint | None = None,
        floor: Number | None = None,
    ) -> None:
        if origin is not None:
            origin.check()
        self.geometry = geometry
        self._origin, self._linearization, self._first, self._floor = origin, linearization, first, floor
        self._at_start: Atom | None = None  # an atom that was found at the scores u, and knows its value there

    @property
    def params(self) -> list[Tensor]:
        """The parameters w_t, in the order of every delta."""
        return self.geometry.params

    @property
    def groups(self) -> list[Group]:
        """Which parameters share η, weight decay and a metric."""
        return self.geometry.groups

    @property
    def origin(self) -> Origin:
        """The loss, the scores, the target and the sample weights p."""
        if self._origin is None:
            raise RuntimeError(_GRAPH_IS_GONE)
        return self._origin

    @property
    def linearization(self) -> LinearMap:
        """The map J and its transpose."""
        if self._linearization is None:
            raise RuntimeError(_GRAPH_IS_GONE)
        return self._linearization

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
        if loss.reduction == "none":
            raise ValueError("a proximal problem needs a loss with reduction='mean' or 'sum', not 'none'")
        p = loss.coefficients(scores, target, sample_weight)
        return cls.from_origin(Origin(loss, scores, target, p), params, lr=lr, weight_decay=weight_decay, metric=metric)

    @classmethod
    def from_origin(
        cls,
        origin: Origin,
        params: Params,
        *,
        lr: Number | None = None,
        weight_decay: float = 0.0,
        metric: Metric | None = None,
    ) -> ProxProblem:
        """The problem of a loss value, from the ``origin`` that the value carries."""
        return cls.of(origin, Geometry(*by_hand(params, lr, weight_decay, metric)))

    @classmethod
    def of(cls, origin: Origin, geometry: Geometry) -> ProxProblem:
        """The same in an existing geometry."""
        return cls(geometry, origin, Linearization(origin.scores, geometry.params)).observe()

    def observe(self) -> ProxProblem:
        """Pass the first direction to metrics that learn from it: once, before the problem is used."""
        if self.geometry.observes:
            self._first = self.first()
            self.geometry.observe(self._first.delta)
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
        return cls(Geometry(*by_hand(line.params, lr, weight_decay, metric)), origin, line).observe()

    # Where the samples are spread over ranks, a subclass overrides these.

    on_ranks = False

    def mean(self, value: Tensor) -> Tensor:
        """The average over ranks of a value; here there is one rank."""
        return value

    def check(self, point: DualPoint, solver: object) -> None:
        """Raise an error if the ranks do not agree on a solver's ``point``."""

    def expect(self, b: Tensor) -> Tensor:
        """Σ_i p_i b_i, the mean of one scalar per sample. Every sum over samples is computed here."""
        return self.mean(torch.dot(self.origin.coefficients, b))

    # Vertices: what a solver moves towards.

    @property
    def floor(self) -> Number:
        """f = Σ_i p_i f_i, a lower bound that the loss declares; otherwise 0."""
        if self._floor is None:
            known = None if self._origin is None else self._origin.lower_bounds()
            like: Number = 0.0  # after backward() the start is not evaluated
            if self._first is None or self._first.products is None:
                like = self.origin.coefficients[0] if self._first is None else self._first.lam
            self._floor = zero_like(like) if known is None else self.expect(known)
        return self._floor

    def start(self) -> DualPoint:
        """delta = 0, lam = f, and D = f − ½‖r‖²: where a loss is at least f, (0, f) is a plane below it."""
        floor, zero = self.floor, zero_like(self.floor)
        return DualPoint(Scaled(zero, self.params), floor, zero, 0, dual=plus(floor, self._dual_of_zero))

    def first(self) -> DualPoint:
        """The vertex of the training direction at the scores u, which is the loss's own gradient (proposition 2)."""
        if self._first is not None:
            return self._first
        origin, atom = self.origin, self.origin.atom
        self._at_start = origin.loss.direction(detached(origin.scores), origin.target) if atom is None else atom
        return self.vertex(self._at_start)

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

    # The dual along a segment.

    def _segment(self, point: DualPoint, toward: DualPoint) -> tuple[Number, Number]:
        """⟨r + delta, x⟩ and ‖x‖² with x = delta_s − delta, from ``point`` to ``toward``."""
        space = self.geometry
        if point.steps == 0:  # delta = 0: no copy of the direction
            known = toward.products or space.products(toward.delta)
            return known.r_delta, known.delta_delta
        change = [b - a for a, b in zip(point.delta, toward.delta, strict=True)]
        return space.inner_r(change) + space.inner(point.delta, change), space.inner(change, change)

    def line_search(self, point: DualPoint, toward: DualPoint) -> Number:
        """The γ in [0, 1] with the largest dual on the segment from ``point`` to ``toward``.

        γ = clip₀₁[ (lam_s − lam − ⟨r + delta, delta_s − delta⟩) / ‖delta_s − delta‖² ]
        """
        return climbed(0.0, point.lam, toward.lam, *self._segment(point, toward))[0]

    def move(self, point: DualPoint, toward: DualPoint) -> DualPoint:
        """The best point of the segment from ``point`` to ``toward``."""
        before = self.dual(point) if point.dual is None else point.dual
        gamma, dual, lam = climbed(before, point.lam, toward.lam, *self._segment(point, toward))
        delta: Sequence[Tensor] = Scaled(gamma, toward.delta)
        if point.steps:
            delta = [a + gamma * (b - a) for a, b in zip(point.delta, toward.delta, strict=True)]
        mass = plus(point.gamma, times(gamma, minus(toward.gamma, point.gamma)))
        return DualPoint(delta, lam, mass, point.steps + 1, dual=dual)

    # The value of a point.

    def displacement(self, point: DualPoint) -> list[Tensor]:
        """d = −H⁻¹ (r + delta), one tensor per parameter."""
        return self.geometry.displacement(point.delta)

    def primal(self, point: DualPoint) -> Number:
        """P(d) at the point's displacement, where ½⟨d, H d⟩ = ½‖r + delta‖² and ⟨r, d⟩ = −⟨r, r + delta⟩."""
        q = self.geometry.r_plus(point.delta)
        return self._linearised_loss(point) + self.geometry.inner(q, q) / 2 - self.geometry.inner_r(q)

    def dual(self, point: DualPoint) -> Number:
        """D(delta, lam) = lam − ½ ‖r + delta‖²."""
        q = self.geometry.r_plus(point.delta)
        return point.lam - self.geometry.inner(q, q) / 2

    def gap(self, point: DualPoint) -> Number:
        """P − D ≥ 0: a bound on how far the point is from the exact solution."""
        return self._linearised_loss(point) - self._spent(point)

    def relative_gap(self, point: DualPoint) -> Tensor:
        """(P − D) / (P − D₀) in [0, 1], D₀ the dual of the start: 1 at the start, 0 at the solution."""
        return self.relative(self.gap(point), point)

    def relative(self, gap: Number, point: DualPoint) -> Tensor:
        """A certified ``gap`` of ``point`` as a fraction of P − D₀."""
        dual = self.dual(point) if point.dual is None else point.dual
        part = to_tensor(gap, torch.empty(()) if not isinstance(dual, Tensor) else dual)
        return torch.where(part > 0, part / (part + dual - self._dual_of_zero - self.floor), torch.zeros_like(part))

    @property
    def _dual_of_zero(self) -> Number:
        """D(0, 0) = −½‖r‖²."""
        known = None if self._first is None else self._first.products
        return self.geometry.r_squared() * -0.5 if known is None else known.start

    def _linearised_loss(self, point: DualPoint) -> Tensor:
        v = self.linearised_scores(point)
        return self.expect(self.origin.loss.oracle(v, self.origin.target).value_at(v))

    def _spent(self, point: DualPoint) -> Number:
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


_GRAPH_IS_GONE = (
    "this problem was made after backward(), which leaves one direction and no graph: a solver that needs more takes "
    "its step with a closure that only evaluates the loss, optimizer.step(lambda: criterion(model(x), y))"
)
