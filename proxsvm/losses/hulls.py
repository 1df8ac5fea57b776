"""Descriptions of S(y). From one hull follow the oracle, the lower bound, the nearest point and cvxpy's constraints.

Only :meth:`Hull.express` needs cvxpy (the extra ``qp``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._scores import parts
from proxsvm.losses.atom import Atom
from proxsvm.structures import Marginals

Array: TypeAlias = "np.ndarray[Any, Any]"


class Polytope(NamedTuple):
    """The hull of S(y) for a batch, in cvxpy's variables.

    ``s``: one expression per score tensor, ``[n, size]`` flattened within the sample; ``offset``: ``[n]``, affine or,
    for a loss with infinitely many atoms, concave: the largest c of each s, −ℓ*(s).
    """

    s: tuple[Any, ...]
    offset: Any
    constraints: list[Any]


class Hull(ABC):
    """The convex hull of S(y) for a batch: all dual points (s_i, c_i) of its samples."""

    @abstractmethod
    def express(self) -> Polytope:
        """The hull in cvxpy, for ``ExactQP``."""

    def best(self, v: Any) -> Atom | None:
        """argmax over (s, c) in the hull of ⟨s, v⟩ + c, the oracle; None where the hull has no formula for it."""
        return None

    def lift(self, s: Any) -> Tensor | None:
        """The largest c of each s of the hull, −ℓ*(s), ``[n]``; None where the hull has no formula for it."""
        return None


class ClosedHull(Hull):
    """A hull of one score tensor with a closed form, which the fast solvers use:

        nearest(v, h) = argmax over (s, c) in the hull of  ⟨s, v⟩ + c − (h/2) ‖s‖²

    As h → 0 it becomes the oracle's vertex, ``best(v)``.
    """

    @abstractmethod
    def best(self, v: Tensor) -> Atom:
        """The oracle's atom."""

    @abstractmethod
    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The atom with a quadratic around it; ``h`` > 0 broadcasts to the scores."""

    @abstractmethod
    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """``rows``, ``[k, *s.shape]``, projected onto the directions in which a nearest s moves within its face."""

    @abstractmethod
    def contains(self, s: Tensor, slack: float) -> bool:
        """Whether s, with its best c, is in the hull, up to a rounding error of ``slack``."""


def cvxpy() -> Any:
    """The package."""
    return load("cvxpy", extra="qp")


def flat(x: Tensor) -> Array:
    """A tensor ``[n, ...]`` as a float64 array ``[n, size]``."""
    return np.asarray(x.detach().reshape(len(x), -1).cpu().double().numpy())


def one_hot(scores: Tensor, y: Tensor) -> Tensor:
    """e_y for each sample, in the scores' dtype, ``[n, K]``; torch's own one_hot synchronises with the device."""
    return torch.zeros_like(scores).scatter(1, y[:, None], 1.0)


@dataclass(frozen=True)
class Listed(Hull):
    """The convex hull of a few atoms, each for the whole batch, and of (0, 0), which every loss has.

    >>> hull = Listed([Atom(torch.tensor([[1.0]]), torch.tensor([-2.0])), Atom(torch.tensor([[-1.0]]), torch.zeros(1))])
    >>> hull.best(torch.tensor([[3.0]]))
    Atom(s=tensor([[1.]]), offset=tensor([-2.]))
    """

    atoms: Sequence[Atom]

    def best(self, v: Any) -> Atom:
        """The best of the list, by trying each."""
        found, value = self.atoms[0], self.atoms[0].b(v)
        for atom in self.atoms[1:]:
            b = atom.b(v)
            found, value = atom.where(b > value, found), torch.maximum(value, b)
        return found

    def express(self) -> Polytope:
        """Weights α ≥ 0 with Σ_t α_t ≤ 1 over the list: the rest is the weight of (0, 0)."""
        cp, n = cvxpy(), len(self.atoms[0].offset)
        alpha = cp.Variable((n, len(self.atoms)), nonneg=True)
        s = []
        for k in range(len(parts(self.atoms[0].s))):
            of_sample = np.stack([flat(parts(atom.s)[k]) for atom in self.atoms], axis=1)  # [n, T, size]
            s.append(cp.vstack([alpha[i] @ of_sample[i] for i in range(n)]))
        offset = cp.sum(cp.multiply(np.hstack([flat(atom.offset) for atom in self.atoms]), alpha), axis=1)
        return Polytope(tuple(s), offset, [cp.sum(alpha, axis=1) <= 1])


# Classes.


@dataclass(frozen=True)
class Simplex(ClosedHull):
    """s = α − e_y, c = ⟨cost, α⟩ over α ≥ 0, Σ_k α_k = 1: the multi-class hinge.

    ``target`` is y, ``[n]``; ``cost`` is ``[n, K]``, 0 at y.

    >>> hull = Simplex(torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    >>> hull.best(torch.tensor([[0.5, 0.0]])).s                       # u + cost = [0.5, 1]
    tensor([[-1.,  1.]])
    >>> hull.nearest(torch.tensor([[0.5, 0.0]]), torch.tensor(1.0)).s     # α = e_y + (v + cost)/h = [1.5, 1], projected
    tensor([[-0.2500,  0.2500]])
    >>> hull.contains(torch.tensor([[-0.5, 0.5]]), 1e-6), hull.contains(torch.tensor([[0.5, -0.5]]), 1e-6)
    (True, False)
    """

    target: Tensor
    cost: Tensor

    def _atom(self, alpha: Tensor) -> Atom:
        return Atom(alpha - one_hot(alpha, self.target), (alpha * self.cost).sum(1))

    def lift(self, s: Tensor) -> Tensor:
        """⟨cost, s + e_y⟩."""
        return (s * self.cost).sum(1) + self.cost.gather(1, self.target[:, None]).squeeze(1)

    def best(self, v: Tensor) -> Atom:
        """The wrong class with the largest margin, or 0 where none is positive."""
        k, margin = rival(v, self.target, self.cost)
        one = (margin > 0).to(v)
        s = torch.zeros_like(v).scatter(1, k[:, None], one[:, None]).scatter(1, self.target[:, None], -one[:, None])
        return Atom(s, one * self.cost.gather(1, k[:, None]).squeeze(1), margin.relu())

    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The projection of e_y + (v + cost)/h onto the simplex, by sorting; ``h`` broadcasts to ``[n, 1]``."""
        return self._atom(project_on_simplex(one_hot(v, self.target) + (v + self.cost) / h))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """The directions that keep Σα and every α_k = 0."""
        free = (s.scatter_add(1, self.target[:, None], torch.ones_like(s[:, :1])) > 0).to(s)  # α > 0
        inside = free * rows
        return inside - free * (inside.sum(2, keepdim=True) / free.sum(1, keepdim=True))

    def contains(self, s: Tensor, slack: float) -> bool:
        """α ≥ 0 and Σ_k α_k = 1."""
        if s.shape != self.cost.shape:
            return False
        alpha = s + one_hot(s, self.target)
        return bool((alpha >= -slack).all() and (s.sum(1).abs() <= slack * s.shape[1]).all())

    def express(self) -> Polytope:
        """α ≥ 0, Σ_k α_k = 1, s = α − e_y, c = ⟨cost, α⟩."""
        cp = cvxpy()
        alpha = cp.Variable(tuple(self.cost.shape), nonneg=True)
        offset = cp.sum(cp.multiply(flat(self.cost), alpha), axis=1)
        return Polytope((alpha - flat(one_hot(self.cost, self.target)),), offset, [cp.sum(alpha, axis=1) == 1])


def rival(v: Tensor, y: Tensor, cost: Tensor | None) -> tuple[Tensor, Tensor]:
    """The wrong class k with the largest v_k + cost_k, and its margin v_k − v_y + cost_k, ``[n]``; differentiable in v.

    ``cost`` is ``[n, K]``; None for 1. Where there is no wrong class, k is y and the margin 0.

    >>> rival(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]), None)
    (tensor([2]), tensor([0.5000]))
    """
    at = y[:, None]
    u = v.detach() if cost is None else v.detach() + cost
    k = u.scatter(1, at, torch.full_like(at, -torch.inf, dtype=u.dtype)).argmax(1, keepdim=True)
    v_k, v_y = v.gather(1, torch.cat([k, at], 1)).unbind(1)
    k = k.squeeze(1)
    return k, v_k - v_y + (k != y if cost is None else cost.gather(1, k[:, None]).squeeze(1))


def project_on_simplex(z: Tensor) -> Tensor:
    """The nearest point of the unit simplex to each row: (z − θ)₊ with θ such that it sums to 1.

    >>> project_on_simplex(torch.tensor([[2.0, 0.0], [0.6, 0.4]]))
    tensor([[1.0000, 0.0000],
            [0.6000, 0.4000]])
    """
    z = z - z.amax(1, keepdim=True)  # large entries would cost digits
    ordered = z.sort(1, descending=True).values
    excess = ordered.cumsum(1) - 1
    k = torch.arange(1, z.shape[1] + 1, device=z.device)
    support = (ordered * k > excess).sum(1, keepdim=True).clamp(min=1)  # 0 where z contains a NaN
    return (z - excess.gather(1, support - 1) / support).clamp(min=0)


@dataclass(frozen=True)
class TopKSimplex(Hull):
    """0 ≤ α_j ≤ σ/k with σ = Σ_j α_j ≤ 1; s = α − σ e_y, c = Σ_{j ≠ y} α_j. ``target`` is y, ``[n]``; K classes.

    >>> TopKSimplex(torch.tensor([0]), k=2, K=3).best(torch.tensor([[2.0, 0.5, 1.5]]))
    Atom(s=tensor([[-0.5000,  0.0000,  0.5000]]), offset=tensor([0.5000]))
    """

    target: Tensor
    k: int
    K: int

    def best(self, v: Tensor) -> Atom:
        """The k classes with the largest augmented scores, or 0 where their mean margin is not positive."""
        at = self.target[:, None]
        top = (v - v.gather(1, at) + 1).scatter(1, at, 0.0).topk(self.k, dim=1, sorted=False)
        value = top.values.mean(1)
        share = (value > 0).to(v)[:, None] / self.k
        y_in_top = (top.indices == at).any(1, keepdim=True)
        s = torch.zeros_like(v).scatter(1, top.indices, share.expand(-1, self.k))
        s = s.scatter(1, at, share * (y_in_top.to(v) - self.k))
        return Atom(s, (share * (self.k - y_in_top.to(v))).squeeze(1), value.clamp(min=0))

    def express(self) -> Polytope:
        """The top-k simplex."""
        cp = cvxpy()
        y = flat(torch.nn.functional.one_hot(self.target, self.K))
        alpha = cp.Variable(y.shape, nonneg=True)
        total = cp.sum(alpha, axis=1, keepdims=True) @ (y * 0 + 1)[:1]
        return Polytope(
            (alpha - cp.multiply(y, total),),
            cp.sum(cp.multiply(1 - y, alpha), axis=1),
            [alpha <= total / self.k, total <= 1],
        )


@dataclass(frozen=True)
class Rivals(Hull):
    """s = Σ_k β_k (e_k − e_y), c = Σ_k β_k over 0 ≤ β_k ≤ 1, k ≠ y: the Weston-Watkins hinge of K classes.

    >>> Rivals(torch.tensor([0]), 3).best(torch.tensor([[1.0, 0.5, 2.0]]))
    Atom(s=tensor([[-2.,  1.,  1.]]), offset=tensor([2.]))
    """

    target: Tensor
    K: int

    def best(self, v: Tensor) -> Atom:
        """Every class within the margin."""
        y = self.target[:, None]
        margin = (v - v.gather(1, y) + 1).scatter(1, y, 0.0).clamp(min=0)
        active = (margin > 0).to(v)
        count = active.sum(1, keepdim=True)
        return Atom(active.scatter(1, y, -count), count.squeeze(1), margin.sum(1))

    def express(self) -> Polytope:
        """The box of the β."""
        cp = cvxpy()
        y = flat(torch.nn.functional.one_hot(self.target, self.K))
        beta = cp.Variable(y.shape, nonneg=True)
        count = cp.sum(beta, axis=1, keepdims=True) @ (y * 0 + 1)[:1]
        return Polytope((beta - cp.multiply(y, count),), cp.sum(beta, axis=1), [beta <= 1 - y])


@dataclass(frozen=True)
class EntropySimplex(Hull):
    """s = m α − q, c ≤ m · entropy(α) over α ≥ 0, Σ_k α_k = 1, with q ≥ 0 ``[n, K]`` and m = Σ_k q_k: cross-entropy.

    >>> hull = EntropySimplex(torch.tensor([[1.0, 0.0]]))
    >>> hull.best(torch.zeros(1, 2))
    Atom(s=tensor([[-0.5000,  0.5000]]), offset=tensor([0.6931]))
    >>> hull.lift(torch.zeros(1, 2))                                  # α = e_y has no entropy
    tensor([0.])
    """

    q: Tensor

    def best(self, v: Tensor) -> Atom:
        """α = softmax(v)."""
        alpha, mass = v.softmax(1), self.q.sum(1)
        return Atom(mass[:, None] * alpha - self.q, mass * torch.special.entr(alpha).sum(1))

    def lift(self, s: Tensor) -> Tensor:
        """m · entropy((s + q)/m)."""
        mass = self.q.sum(1)
        alpha = ((s + self.q) / torch.where(mass > 0, mass, 1.0)[:, None]).clamp(min=0)
        entropy: Tensor = torch.special.entr(alpha).sum(1)
        return mass * entropy

    def express(self) -> Polytope:
        """α as the variable, by exponential cones."""
        cp, q = cvxpy(), flat(self.q)
        alpha, mass = cp.Variable(q.shape, nonneg=True), q.sum(1)
        s = cp.multiply(mass[:, None] * (0 * q + 1), alpha) - q
        return Polytope((s,), cp.multiply(mass, cp.sum(cp.entr(alpha), axis=1)), [cp.sum(alpha, axis=1) == 1])


# Outputs, each for itself.


@dataclass(frozen=True)
class Box(ClosedHull):
    """low ≤ s ≤ high, c = −⟨s, center⟩ − band ‖s‖₁, with low ≤ 0 ≤ high; all of the scores' shape.

    >>> hull = Box(torch.tensor([-1.0]), torch.tensor([1.0]), center=torch.tensor([2.0]), band=0.5)
    >>> hull.best(torch.tensor([3.0]))
    Atom(s=tensor([1.]), offset=tensor([-2.5000]))
    >>> hull.nearest(torch.tensor([3.0]), torch.tensor(1.0))
    Atom(s=tensor([0.5000]), offset=tensor([-1.2500]))
    >>> hull.contains(torch.tensor([0.5]), 1e-6), hull.contains(torch.tensor([1.5]), 1e-6)
    (True, False)
    """

    low: Tensor
    high: Tensor
    center: Tensor
    band: float = 0.0

    def lift(self, s: Tensor) -> Tensor:
        """−⟨s, center⟩ − band ‖s‖₁."""
        return -self._paid(s, self.center)

    def _paid(self, s: Tensor, x: Tensor) -> Tensor:
        """⟨s, x⟩ + band ‖s‖₁, ``[n]``."""
        paid = s * x + self.band * s.abs() if self.band else s * x
        return paid.reshape(len(s), -1).sum(1)

    def best(self, v: Tensor) -> Atom:
        """high above the band, low below it, 0 inside."""
        residual = v - self.center
        below = torch.where(residual < -self.band, self.low, 0.0)
        s = torch.where(residual > self.band, self.high, below)
        return Atom(s, self.lift(s), -self._paid(s, -residual))

    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The residual v − center, shrunk by the band, divided by h and clipped."""
        residual = v - self.center
        shrunk = residual.sign() * (residual.abs() - self.band).clamp(min=0)
        s = torch.minimum(torch.maximum(shrunk / h, self.low), self.high)
        return Atom(s, self.lift(s))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """The outputs that are free to move: between their bounds, off the band."""
        free = (s > self.low) & (s < self.high)
        return (free & (s != 0) if self.band else free).to(s) * rows

    def contains(self, s: Tensor, slack: float) -> bool:
        """low ≤ s ≤ high."""
        if s.shape != self.center.shape:
            return False
        return bool((s >= self.low - slack).all() and (s <= self.high + slack).all())

    def express(self) -> Polytope:
        """s = a − b with 0 ≤ a ≤ high and 0 ≤ b ≤ −low; c = −⟨s, center⟩ − band Σ (a + b)."""
        cp, low, high, center = cvxpy(), flat(self.low), flat(self.high), flat(self.center)
        if not self.band:
            s = cp.Variable(center.shape)
            return Polytope((s,), -cp.sum(cp.multiply(center, s), axis=1), [s >= low, s <= high])
        a, b = cp.Variable(center.shape, nonneg=True), cp.Variable(center.shape, nonneg=True)
        offset = -cp.sum(cp.multiply(center, a - b) + self.band * (a + b), axis=1)
        return Polytope((a - b,), offset, [a <= high, b <= -low])


@dataclass(frozen=True)
class QuadraticBox(Hull):
    """|s_j| ≤ bound, c ≤ −⟨s, center⟩ − (ridge/2) ‖s‖²: the squared error and Huber's loss.

    >>> QuadraticBox(torch.tensor([1.0]), ridge=1.0, bound=2.0).best(torch.tensor([2.5]))
    Atom(s=tensor([1.5000]), offset=tensor([-2.6250]))
    """

    center: Tensor
    ridge: float
    bound: float = float("inf")

    def best(self, v: Tensor) -> Atom:
        """(v − center)/ridge, clipped."""
        s = ((v - self.center) / self.ridge).clamp(-self.bound, self.bound)
        return Atom(s, self.lift(s))

    def lift(self, s: Tensor) -> Tensor:
        """−⟨s, center⟩ − (ridge/2) ‖s‖²."""
        return -(s * (self.center + self.ridge / 2 * s)).reshape(len(s), -1).sum(1)

    def express(self) -> Polytope:
        """s itself as the variable."""
        cp, center = cvxpy(), flat(self.center)
        s = cp.Variable(center.shape)
        offset = -cp.sum(cp.multiply(center, s) + self.ridge / 2 * cp.square(s), axis=1)
        return Polytope((s,), offset, [cp.abs(s) <= self.bound] if self.bound < float("inf") else [])


@dataclass(frozen=True)
class EntropyBox(Hull):
    """s = (a + b) α − a, c ≤ Σ_j (a_j + b_j) · entropy of (α_j, 1 − α_j) over 0 ≤ α ≤ 1; a, b ≥ 0 of the scores' shape.

    >>> hull = EntropyBox(torch.tensor([[1.0]]), torch.tensor([[0.0]]))
    >>> hull.best(torch.zeros(1, 1))
    Atom(s=tensor([[-0.5000]]), offset=tensor([0.6931]))
    """

    a: Tensor
    b: Tensor

    def best(self, v: Tensor) -> Atom:
        """α = σ(v)."""
        alpha, rest = v.sigmoid(), (-v).sigmoid()  # 1 − α would lose digits
        return Atom(self.b * alpha - self.a * rest, self._entropy(alpha, rest))

    def _entropy(self, alpha: Tensor, rest: Tensor) -> Tensor:
        entropy: Tensor = (self.a + self.b) * (torch.special.entr(alpha) + torch.special.entr(rest))
        return entropy.reshape(len(entropy), -1).sum(1)

    def lift(self, s: Tensor) -> Tensor:
        """The entropy of (s + a)/(a + b)."""
        mass = self.a + self.b
        scale = torch.where(mass > 0, mass, 1.0)
        return self._entropy(((s + self.a) / scale).clamp(0, 1), ((self.b - s) / scale).clamp(0, 1))

    def express(self) -> Polytope:
        """α as the variable, by exponential cones."""
        cp, a, mass = cvxpy(), flat(self.a), flat(self.a + self.b)
        alpha = cp.Variable(a.shape)
        offset = cp.sum(cp.multiply(mass, cp.entr(alpha) + cp.entr(1 - alpha)), axis=1)
        return Polytope((cp.multiply(mass, alpha) - a,), offset, [alpha >= 0, alpha <= 1])


# Structures.


@dataclass(frozen=True)
class MarginalHull(Hull):
    """s = μ − φ(y), c = ⟨cost, s⟩ (a hinge) or c ≤ the entropy of μ (a likelihood), over the marginals of a structure.

    ``truth`` is φ(y), a tuple of tensors, and ``cost`` what each part costs; None stands for the entropy.
    """

    marginals: Marginals
    truth: tuple[Tensor, ...]
    cost: tuple[Tensor | None, ...] | None

    def lift(self, s: Any) -> Tensor | None:
        """⟨cost, s⟩, or the entropy, where the structure has a formula for it."""
        if self.cost is None:
            return self.marginals.entropy(tuple(a + b for a, b in zip(parts(s), self.truth, strict=True)))
        return paid(self.cost, s)

    def express(self) -> Polytope:
        """μ as the variables."""
        cp = cvxpy()
        mu, constraints, entropy = self.marginals.express(with_entropy=self.cost is None)
        s = tuple(x - flat(phi) for x, phi in zip(mu, self.truth, strict=True))
        if self.cost is None:
            return Polytope(s, entropy, constraints)
        costs = [cp.sum(cp.multiply(flat(c), x), axis=1) for c, x in zip(self.cost, s, strict=True) if c is not None]
        return Polytope(s, sum(costs), constraints)


def paid(cost: Any, s: Any) -> Tensor:
    """⟨cost, s⟩ for each sample, ``[n]``; None in the cost is 0."""
    return sum((c * x).flatten(1).sum(1) for c, x in zip(parts(cost), parts(s), strict=True) if c is not None)  # type: ignore[return-value]
