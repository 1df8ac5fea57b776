"""The proximal problem of one step, and its dual. The formulas of the toolkit live here and nowhere else.

In the displacement d = w − w_t, with u the scores, J their Jacobian, r = ∂ρ(w_t) and sample weights p_i (1/n):

    P(d)          = ‖d‖²/(2η) + ⟨r, d⟩ + Σ_i p_i ℓ(u_i + J_i d; y_i)
    D(delta, lam) = lam − (η/2) ‖r + delta‖²,    delta = Σ_i p_i J_iᵀ s_i,    lam = Σ_i p_i (⟨s_i, u_i⟩ + c_i)
    d             = −η (r + delta)

Parameter groups may differ in η, so every inner product is weighted: ⟨a, b⟩_η = Σ_g η_g ⟨a, b⟩_g.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from proxsvm.features import linear
from proxsvm.groups import Group, Number, Params, flatten
from proxsvm.linearization import Linearization
from proxsvm.losses.base import Atom, Origin, PiecewiseLinearLoss, Scores, like, parts
from proxsvm.point import DualPoint, Scaled
from proxsvm.update import Sweep, Sweeps

__all__ = ["DualPoint", "ProxProblem"]


class ProxProblem:
    """The proximal problem at w_t. Make it with :meth:`from_scores`, or by ``optimizer.problem(value)``.

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
        params: list[Tensor],
        groups: list[Group],
        origin: Origin | None = None,
        linearization: Linearization | None = None,
        first: DualPoint | None = None,
        sweeper: Sweeps | None = None,
    ) -> None:
        self.params, self.groups = params, groups
        self.sweeper = Sweeps() if sweeper is None else sweeper
        self._origin, self._linearization, self._first = origin, linearization, first
        self._swept: tuple[Sequence[Tensor], list[tuple[Group, list[int], Sweep]]] | None = None

    @property
    def origin(self) -> Origin:
        """The loss, the scores, the target and the sample weights p."""
        if self._origin is None:
            raise RuntimeError(_GRAPH_IS_GONE)
        return self._origin

    @property
    def linearization(self) -> Linearization:
        """The map J and its transpose."""
        if self._linearization is None:
            raise RuntimeError(_GRAPH_IS_GONE)
        return self._linearization

    # Ways to make one.

    @classmethod
    def from_scores(
        cls,
        loss: PiecewiseLinearLoss,
        scores: Any,
        target: Any,
        params: Params,
        *,
        lr: Number | None = None,
        weight_decay: float = 0.0,
        sample_weight: Tensor | None = None,
    ) -> ProxProblem:
        """The problem of a mini-batch, by hand.

        Args:
            loss: the loss ℓ.
            scores: what the network returned, with its graph, computed from ``params``.
            target: the y of the loss.
            params: parameters, or group dicts with ``params`` and their own ``lr`` and ``weight_decay``.
            lr: η, for every group without its own.
            weight_decay: r = weight_decay · w.
            sample_weight: ``[n]``, as in the loss.
        """
        scores, target = loss.prepare(scores, target)
        if loss.reduction == "none":
            raise ValueError("a proximal problem needs a loss with reduction='mean' or 'sum', not 'none'")
        n = len(parts(scores)[0])
        p = loss.coefficients(parts(scores)[0].detach().new_empty(n), sample_weight)
        return cls.from_origin(Origin(loss, scores, target, p), params, lr=lr, weight_decay=weight_decay)

    @classmethod
    def from_origin(
        cls, origin: Origin, params: Params, *, lr: Number | None = None, weight_decay: float = 0.0
    ) -> ProxProblem:
        """The problem of a loss value, from the ``origin`` that the value carries."""
        flat, groups = flatten(params, lr, weight_decay)
        return cls(flat, groups, origin, Linearization(origin.scores, flat))

    @classmethod
    def from_gradients(
        cls,
        grads: Sequence[Tensor],
        value: Tensor,
        params: Params,
        *,
        lr: Number | None = None,
        weight_decay: float = 0.0,
        sweeper: Sweeps | None = None,
    ) -> ProxProblem:
        """What is left of the problem after ``backward()``: its first vertex, delta_s = grads and lam_s = value."""
        flat, groups = flatten(params, lr, weight_decay)
        one = torch.ones_like(value)
        return cls(flat, groups, first=DualPoint(grads, value, one, 1), sweeper=sweeper)

    @classmethod
    def from_features(
        cls,
        loss: PiecewiseLinearLoss,
        features: Any,
        target: Any,
        *,
        lr: Number,
        weight_decay: float = 0.0,
        weight: Tensor | None = None,
        sample_weight: Tensor | None = None,
    ) -> ProxProblem:
        """The problem of a linear model, whose scores are features times weights: no network, no graph.

        From w = 0 it *is* the SVM  min ½‖w‖² + C Σ_i ℓ(x_i w; y_i), scaled by 1/(N·C): take η = N·C.

        Args:
            loss: the loss ℓ.
            features: ``[n, F]``, a dense tensor or a sparse one (torch or SciPy).
            target: y; class indices give as many outputs as there are classes, real targets one for each entry.
            lr: η.
            weight_decay: r = weight_decay · w.
            weight: w_t, ``[*out, F]`` (``[K, F]`` for K classes); 0 if None.
            sample_weight: ``[n]``, as in the loss.

        >>> from proxsvm.losses import MultiClassHinge
        >>> X, y = torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])
        >>> problem = ProxProblem.from_features(MultiClassHinge(), X, y, lr=2.0)     # N = 2, C = 1
        >>> problem.params[0].shape, problem.primal(problem.start())
        (torch.Size([2, 1]), tensor(1.))
        """
        origin, line = linear(loss, features, target, weight, sample_weight)
        flat, groups = flatten(line.params, lr, weight_decay)
        return cls(flat, groups, origin, line)

    def expect(self, b: Tensor) -> Tensor:
        """Σ_i p_i b_i, the mean of a number a sample. Every sum over samples is made here."""
        return torch.dot(self.origin.coefficients, b)

    # Vertices: what a solver moves towards.

    def start(self) -> DualPoint:
        """delta = 0, lam = 0, and D = −(η/2)‖r‖²."""
        zero = self._zero()
        return DualPoint(Scaled(zero, self.params), zero, zero, 0, dual=-self._r_squared() / 2)

    def first(self) -> DualPoint:
        """The vertex of the training direction at the scores u, which is the loss's own gradient (proposition 2)."""
        if self._first is not None:
            return self._first
        loss, scores, target, _, atom = self.origin
        return self.vertex(loss.direction(_detach(scores), target) if atom is None else atom)

    def vertex(self, atom: Atom, reuse: bool = False) -> DualPoint:
        """An atom for each sample, as a dual point: delta = Σ p_i J_iᵀ s_i, lam = Σ p_i (⟨s_i, u_i⟩ + c_i).

        ``reuse``: as in :meth:`Linearization.vjp <proxsvm.linearization.Linearization.vjp>`.
        """
        scores, p = self.origin.scores, self.origin.coefficients
        weighted = tuple(p.reshape(-1, *[1] * (s.dim() - 1)) * s for s in parts(atom.s))
        lam = self.expect(atom.b(_detach(scores)))
        delta = self.linearization.vjp(like(scores, weighted), reuse)
        return DualPoint(delta, lam, torch.ones_like(lam), 1, atom=atom)

    def best_atom(self, point: DualPoint) -> tuple[Atom, Tensor]:
        """The Frank-Wolfe atom at ``point``, and the certified gap P − D there.

        It is the oracle's atom at the linearised scores u + J d. Of a smoothed loss it is the smoothed atom there,
        for as long as that promises at least half of the gap.
        """
        loss, target = self.origin.loss, self.origin.target
        v = self.linearised_scores(point)
        atom = loss.oracle(v, target)
        spent = point.lam - self._delta_dot_q(point)
        gap = self.expect(atom.b(v)) - spent
        if loss.smooth:
            soft = loss.direction(v, target)
            promise = self.expect(soft.b(v)) - spent
            atom = soft.where((promise >= gap / 2).expand(len(atom.offset)), atom)
        return atom, gap

    def conditional_gradient(self, point: DualPoint) -> tuple[DualPoint, Tensor]:
        """The Frank-Wolfe vertex at ``point``, and the certified gap P − D there."""
        atom, gap = self.best_atom(point)
        return self.vertex(atom), gap

    # The dual along a segment.

    def _segment(self, point: DualPoint, toward: DualPoint) -> tuple[Tensor, Tensor]:
        """(a, c) of D(point + γ (toward − point)) = D(point) + γ a − γ² c / 2."""
        ascent = toward.lam - point.lam
        if point.steps == 0:  # delta = 0: no copy of the direction
            return ascent - self._inner_r(toward.delta), self._inner(toward.delta, toward.delta)
        change = [b - a for a, b in zip(point.delta, toward.delta, strict=True)]
        return ascent - self._inner_r(change) - self._inner(point.delta, change), self._inner(change, change)

    def line_search(self, point: DualPoint, toward: DualPoint) -> Tensor:
        """The γ in [0, 1] of the largest dual on the segment from ``point`` to ``toward``.

        γ = clip₀₁[ (lam_s − lam − ⟨r + delta, delta_s − delta⟩_η) / ‖delta_s − delta‖²_η ]
        """
        return _clip(*self._segment(point, toward))

    def move(self, point: DualPoint, toward: DualPoint) -> DualPoint:
        """The best point of the segment from ``point`` to ``toward``."""
        ascent, curvature = self._segment(point, toward)
        gamma = _clip(ascent, curvature)
        delta: Sequence[Tensor]
        if point.steps == 0:
            delta = Scaled(gamma, toward.delta)
        else:
            delta = [a + gamma * (b - a) for a, b in zip(point.delta, toward.delta, strict=True)]
        before = self.dual(point) if point.dual is None else point.dual
        return DualPoint(
            delta,
            lam=point.lam + gamma * (toward.lam - point.lam),
            gamma=point.gamma + gamma * (toward.gamma - point.gamma),
            steps=point.steps + 1,
            dual=before + gamma * ascent - gamma**2 * curvature / 2,
        )

    # What a point is worth.

    def displacement(self, point: DualPoint) -> list[Tensor]:
        """d = −η (r + delta), one tensor a parameter."""
        return [-g.eta * self._q(point, g, i) for g in self.groups for i in g.at]

    def primal(self, point: DualPoint) -> Tensor:
        """P(d) at the point's displacement."""
        loss, _, target, *_ = self.origin
        v = self.linearised_scores(point)
        value = self.expect(loss.oracle(v, target).b(v))
        q = [self._q(point, g, i) for g in self.groups for i in g.at]
        return value + self._inner(q, q) / 2 - self._inner_r(q)

    def dual(self, point: DualPoint) -> Tensor:
        """D(delta, lam)."""
        q = [self._q(point, g, i) for g in self.groups for i in g.at]
        return point.lam - self._inner(q, q) / 2

    def gap(self, point: DualPoint) -> Tensor:
        """P − D ≥ 0: a bound on how far the point is from the exact solution."""
        loss, _, target, *_ = self.origin
        v = self.linearised_scores(point)
        return self.expect(loss.oracle(v, target).b(v)) - point.lam + self._delta_dot_q(point)

    def relative_gap(self, point: DualPoint) -> Tensor:
        """(P − D) / (P − D₀) in [0, 1], D₀ the dual of the start: 1 at the start, 0 at the solution."""
        return self.relative(self.gap(point), point)

    def relative(self, gap: Tensor, point: DualPoint) -> Tensor:
        """A certified ``gap`` of ``point`` as a fraction of P − D₀."""
        dual = self.dual(point) if point.dual is None else point.dual
        total = gap + dual + self._r_squared() / 2
        return torch.where(gap > 0, gap / total, torch.zeros_like(gap))

    # The inner products, weighted by η.

    def _inner(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        return sum((g.eta * _sum([_dot(a[i], b[i]) for i in g.at]) for g in self.groups), start=self._zero())

    def _inner_r(self, x: Sequence[Tensor]) -> Tensor:
        """⟨r, x⟩_η without forming r = decay · w."""
        terms = (g.eta * g.decay * _sum([_dot(self.params[i], x[i]) for i in g.at]) for g in self.groups if g.decay)
        return sum(terms, start=self._zero())

    def _r_squared(self) -> Tensor:
        terms = (g.eta * g.decay**2 * _sum([_dot(w, w) for w in self._of(g)]) for g in self.groups if g.decay)
        return sum(terms, start=self._zero())

    def products(self, delta: Sequence[Tensor]) -> list[Tensor]:
        """⟨r, delta⟩_η, ‖delta‖²_η and ‖r‖²_η: all that a single step asks of its vectors, in one sweep over them."""
        zero = self._zero()
        r_delta, delta_delta, r_r = zero, zero, zero
        for group, _, sweep in self.sweeps(delta):
            xx, wx, ww = (x.to(zero) for x in sweep.products(with_w=group.decay != 0))
            delta_delta = delta_delta + group.eta * xx
            if group.decay:
                r_delta = r_delta + group.eta * group.decay * wx
                r_r = r_r + group.eta * group.decay**2 * ww
        return [r_delta, delta_delta, r_r]

    def sweeps(self, x: Sequence[Tensor]) -> list[tuple[Group, list[int], Sweep]]:
        """The parameters and ``x`` side by side, a sweep for each group, device and dtype, and where they stand.

        The sweeps of the last ``x`` are kept: the step that follows the inner products walks the same vectors.
        """
        if self._swept is None or self._swept[0] is not x:
            made = []
            for group in self.groups:
                for at in self._of_a_kind(group):
                    made.append((group, at, self.sweeper.over([self.params[i] for i in at], [x[i] for i in at])))
            self._swept = x, made
        return self._swept[1]

    def _delta_dot_q(self, point: DualPoint) -> Tensor:
        """⟨delta, r + delta⟩_η, which is −⟨delta, d⟩."""
        if point.steps == 0:
            return self._zero()
        return self._inner(point.delta, point.delta) + self._inner_r(point.delta)

    def _q(self, point: DualPoint, group: Group, i: int) -> Tensor:
        """r + delta of parameter i."""
        if not group.decay:
            return point.delta[i].detach()
        return torch.add(point.delta[i], self.params[i].detach(), alpha=group.decay)

    def _of_a_kind(self, group: Group) -> list[list[int]]:
        """The places of a group's parameters, apart for each device and dtype."""
        params = self._of(group)
        if len(set(map(attrgetter("dtype"), params))) == len(set(map(attrgetter("device"), params))) == 1:
            return [list(group.at)]  # as nearly always
        kinds = list(map(attrgetter("device", "dtype"), params))
        return [[i for i, other in zip(group.at, kinds, strict=True) if other == kind] for kind in dict.fromkeys(kinds)]

    def _of(self, group: Group) -> list[Tensor]:
        return self.params[group.at.start : group.at.stop]

    def _zero(self) -> Tensor:
        if self._first is not None:
            return torch.zeros_like(self._first.lam)
        return torch.zeros_like(self.origin.coefficients[0])

    def linearised_scores(self, point: DualPoint) -> Scores:
        """u + J d at the point's displacement."""
        scores = self.origin.scores
        if point.steps == 0 and not any(g.decay for g in self.groups):
            return _detach(scores)  # d = 0
        change = parts(self.linearization.jvp(self.displacement(point)))
        return like(scores, tuple(u.detach() + c for u, c in zip(parts(scores), change, strict=True)))


_GRAPH_IS_GONE = (
    "this problem was made after backward(), which leaves one direction and no graph. A solver that needs more than "
    "SingleStepFW does takes the step with a closure that only evaluates the loss: "
    "optimizer.step(lambda: criterion(model(x), y))"
)


def _clip(ascent: Tensor, curvature: Tensor) -> Tensor:
    """argmax over γ in [0, 1] of γ a − γ² c / 2; where c = 0 the line is straight and its better end is taken."""
    gamma = torch.where(curvature > 0, ascent / curvature, (ascent > 0).to(ascent.dtype))
    return gamma.clamp(0, 1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩, accumulated in float32 or better."""
    if a.dtype in (torch.float16, torch.bfloat16):
        a, b = a.float(), b.float()
    return torch.dot(a.detach().reshape(-1), b.detach().reshape(-1))


def _sum(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum()


def _detach(scores: Scores) -> Scores:
    return like(scores, tuple(u.detach() for u in parts(scores)))
