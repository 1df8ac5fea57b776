"""Memory in a problem with a graph: the past is one more sample, with the two atoms (q, h) and (0, 0).

    P(d) = ½⟨d, H d⟩ + ⟨r, d⟩ + (1 − μ²) Σ_i p_i ℓ(u_i + J_i d; y_i) + μ² max(0, h + ⟨q, d⟩)

It is the further score ⟨q, d⟩ of the sample with the largest weight, whose loss has κ max(0, h + ·) added to it with
κ = μ² / ((1 − μ²) p_i). So every solver, the gap and ``verify`` hold without a change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm.linearization.base import LinearMap
from proxsvm.losses.base import Atom, ConvexLoss, Origin, Scores, parts
from proxsvm.losses.hulls import Hull, Polytope
from proxsvm.metrics.base import dots
from proxsvm.point import DualPoint
from proxsvm.problem import Past, ProxProblem


def _inner(scores: tuple[Tensor, ...]) -> Scores:
    """The scores of the batch, without that of the past."""
    return scores[:-1] if len(scores) > 2 else scores[0]


class PastLoss(ConvexLoss):
    """A loss whose sample ``at`` has κ max(0, h + a) added, with ``a``, ``[n]``, as its last scores."""

    def __init__(self, loss: ConvexLoss, at: int, kappa: Tensor, h: Tensor) -> None:
        super().__init__()
        self.loss, self.at, self.kappa, self.h = loss, at, kappa, h
        self.exact, self.smooth = loss.exact, loss.smooth

    def _with_plane(self, atom: Atom, a: Tensor, active: Tensor) -> Atom:
        """The atom of the batch, and the plane of the past where it is active."""
        s, offset = torch.zeros_like(a), atom.offset.clone()
        s[self.at] = self.kappa * active
        offset[self.at] += s[self.at] * self.h
        value = None if atom.value is None else atom.value + s * (self.h + a)
        return Atom((*parts(atom.s), s), offset, value)

    def oracle(self, scores: Any, target: Any) -> Atom:
        """The plane where it is above 0."""
        return self._with_plane(self.loss.oracle(_inner(scores), target), scores[-1], self.h + scores[-1][self.at] > 0)

    def direction(self, scores: Any, target: Any) -> Atom:
        """The plane in any case, as in a single step."""
        return self._with_plane(self.loss.direction(_inner(scores), target), scores[-1], torch.ones_like(self.h))

    def lower_bound(self, scores: Any, target: Any) -> Tensor | None:
        """That of the batch: the past is at least 0."""
        return self.loss.lower_bound(_inner(scores), target)

    def hull(self, scores: Any, target: Any) -> Hull | None:
        """The product of the batch's hull and a segment."""
        hull = self.loss.hull(_inner(scores), target)
        return None if hull is None else _PastHull(self, hull, len(scores[-1]))


class _PastHull(Hull):
    def __init__(self, loss: PastLoss, hull: Hull, n: int) -> None:
        self.loss, self.hull, self.n = loss, hull, n

    def express(self) -> Polytope:
        """That of the batch, and s in [0, κ] for the past."""
        import cvxpy as cp

        inner, loss = self.hull.express(), self.loss
        plane = cp.Variable((self.n, 1))
        bound = torch.zeros(self.n, 1, dtype=torch.double)
        bound[loss.at] = float(loss.kappa)
        constraints = [*inner.constraints, plane >= 0, plane <= bound.numpy()]
        return Polytope((*inner.s, plane), inner.offset + plane[:, 0] * float(loss.h), constraints)

    def lift(self, s: Scores) -> Tensor | None:
        assert isinstance(s, tuple)
        offset = self.hull.lift(_inner(s))
        return None if offset is None else offset + s[-1] * self.loss.h


class PastMap(LinearMap):
    """J of the batch, with ⟨q, d⟩ as the last score of the sample ``at``."""

    def __init__(self, batch: LinearMap, at: int, q: Sequence[Tensor], mean: Callable[[Tensor], Tensor]) -> None:
        first = parts(batch.scores)[0]
        super().__init__((*parts(batch.scores), first.new_zeros(len(first))), batch.params)
        self.batch, self.at, self.q, self.mean = batch, at, q, mean

    def vjp(self, s: Scores, reuse: bool = False) -> list[Tensor]:
        """Jᵀ s + s_past q; of several ranks, each has the past as a sample of its own."""
        assert isinstance(s, tuple)
        found, past = self.batch.vjp(_inner(s), reuse), self.mean(s[-1][self.at])
        return [torch.add(x, past * q.to(x.dtype)) for x, q in zip(found, self.q, strict=True)]

    def jvp(self, d: Sequence[Tensor]) -> Scores:
        """J d and ⟨q, d⟩."""
        change = parts(self.batch.jvp(d))
        a = change[0].new_zeros(len(change[0]))
        a[self.at] = dots(self.q, d).to(a)
        return (*change, a)

    def jacobian(self, chunk: int = 64) -> Tensor:
        """J of the batch, and the row q."""
        J = self.batch.jacobian(chunk)
        rows = J.new_zeros(len(parts(self.scores)[-1]), J.shape[1])
        rows[self.at] = torch.cat([q.reshape(-1) for q in self.q]).to(J)
        return torch.cat([J, rows])


class PastProblem(ProxProblem):
    """The problem of a ``batch``, whose metric is fixed, and of the past that its geometry keeps."""

    def __init__(self, batch: ProxProblem, past: Past) -> None:
        origin, old, q = batch.origin, past.mu**2, batch.geometry.past()
        p = (1 - old) * origin.coefficients
        at = int(p.argmax())
        loss = PastLoss(origin.loss, at, old / p[at], past.h)
        line = PastMap(batch.linearization, at, q, batch.mean)
        super().__init__(batch.geometry, Origin(loss, line.scores, origin.target, p), line, batch.ranks)
        self.batch, self.past, self.q = batch, past, q

    def past_after(self, point: DualPoint) -> Tensor:
        first, d, (mu, h) = self.batch.first(), self.displacement(point), self.past
        return mu * (h + dots(self.q, d)) + (1 - mu) * (first.lam + dots(first.delta, d))
