"""Atoms, the tangent planes of a loss, and hulls, which describe all of them for a batch: S(y).

From one hull follow the oracle, the lower bound, the nearest point and cvxpy's constraints. Only :meth:`Hull.express`
needs cvxpy (the extra ``qp``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._extras import load
from proxsvm._kernels.tensors import Array
from proxsvm._scores import Scores, as_column, inner, like, one_hot, parts
from proxsvm.structures import Marginals, Structure


@dataclass(frozen=True)
class Atom:
    """A piece of the loss for each sample: the affine function u ↦ ⟨s, u⟩ + c.

    ``s`` has the structure and shapes of the scores (first dimension: the n samples), ``offset`` is c, ``[n]``.
    ``value``, ``[n]``, is ⟨s, u⟩ + c at the scores where the oracle found the atom, if it was computed directly: at
    large scores ⟨s, u⟩ and c cancel.

    >>> atom = Atom(s=torch.tensor([[1.0, -1.0]]), offset=torch.tensor([1.0]))
    >>> atom.b(torch.tensor([[0.5, 2.0]]))
    tensor([-0.5000])
    """

    s: Scores
    offset: Tensor
    value: Tensor | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Any]:
        """s, c = atom."""
        return iter((self.s, self.offset))

    def b(self, scores: Scores) -> Tensor:
        """The atom's value at each sample, b = ⟨s, u⟩ + c, ``[n]``."""
        products = inner(self.s, scores)
        return self.offset.to(products.dtype) + products

    def value_at(self, scores: Scores) -> Tensor:
        """b at the scores where the oracle found this atom, ``[n]``."""
        return self.b(scores) if self.value is None else self.value

    def at(self, scores: Scores) -> Tensor:
        """b as a function of the scores where the oracle found this atom; its gradient is s."""
        b = self.b(scores)
        return b if self.value is None else self.value + (b - b.detach()).nan_to_num()  # ∞ − ∞, where b is infinite

    def where(self, chosen: Tensor, other: Atom) -> Atom:
        """This atom for the samples that are ``chosen`` (bool, ``[n]``), ``other`` for the rest."""

        pairs = zip(parts(self.s), parts(other.s), strict=True)
        s = like(self.s, tuple(torch.where(as_column(chosen, a), a, b) for a, b in pairs))
        value = None if self.value is None or other.value is None else torch.where(chosen, self.value, other.value)
        return Atom(s, torch.where(chosen, self.offset, other.offset), value)


class Polytope(NamedTuple):
    """The hull of S(y) for a batch, in cvxpy's variables.

    ``s``: one expression ``[n, size]`` per score tensor; ``offset``: ``[n]``, affine or, for a loss of infinitely many
    atoms, concave: the largest c of each s, −ℓ*(s).
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
    """A hull of one score tensor with a closed form, which the fast solvers use; c has the curvature −``ridge``."""

    ridge: float = 0.0

    @abstractmethod
    def best(self, v: Tensor) -> Atom:
        """The oracle's atom."""

    @abstractmethod
    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """argmax over (s, c) in the hull of ⟨s, v⟩ + c − (h/2) ‖s‖²; ``h`` > 0 broadcasts to the scores."""

    @abstractmethod
    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """``rows``, ``[k, *s.shape]``, projected onto the directions in which a nearest s moves within its face."""

    def contains(self, s: Tensor, slack: float) -> bool:
        """Whether s is in the hull, up to a rounding error of ``slack``: whether it is the nearest point to itself."""
        h = torch.full_like(s[:1], 1e20)  # c does not count
        (nearest,) = parts(self.nearest(h * s, h).s)
        return bool(((nearest - s).abs() <= slack).all())


def flat(x: Tensor) -> Array:
    """A tensor ``[n, ...]`` as a float64 array ``[n, size]``."""
    return np.asarray(x.detach().reshape(len(x), -1).cpu().double().numpy())


@dataclass(frozen=True)
class Listed(Hull):
    """The convex hull of a few atoms, each for the whole batch, and of (0, 0), which every loss has."""

    atoms: Sequence[Atom]

    def best(self, v: Any) -> Atom:
        found, value = self.atoms[0], self.atoms[0].b(v)
        for atom in self.atoms[1:]:
            b = atom.b(v)
            found, value = atom.where(b > value, found), torch.maximum(value, b)
        return found

    def express(self) -> Polytope:
        """Weights α ≥ 0 with Σ_t α_t ≤ 1 over the list: the rest is the weight of (0, 0)."""
        cp, n = load("cvxpy", extra="qp"), len(self.atoms[0].offset)
        alpha = cp.Variable((n, len(self.atoms)), nonneg=True)
        s = []
        for tensors in zip(*(parts(atom.s) for atom in self.atoms), strict=True):
            of_sample = np.stack([flat(x) for x in tensors], axis=1)  # [n, T, size]
            s.append(cp.vstack([alpha[i] @ of_sample[i] for i in range(n)]))
        offset = cp.sum(cp.multiply(np.hstack([flat(atom.offset) for atom in self.atoms]), alpha), axis=1)
        return Polytope(tuple(s), offset, [cp.sum(alpha, axis=1) <= 1])


@dataclass(frozen=True)
class Simplex(ClosedHull):
    """s = α − e_y, c = ⟨cost, α⟩ over α ≥ 0, Σ_k α_k = 1: the multi-class hinge.

    ``target`` is y, ``[n]``; ``cost`` is ``[n, K]``, 0 at y.

    >>> hull = Simplex(torch.tensor([0]), torch.tensor([[0.0, 1.0]]))
    >>> hull.best(torch.tensor([[0.5, 0.0]])).s                       # u + cost = [0.5, 1]
    tensor([[-1.,  1.]])
    >>> hull.nearest(torch.tensor([[0.5, 0.0]]), torch.tensor(1.0)).s     # α = e_y + (v + cost)/h = [1.5, 1], projected
    tensor([[-0.2500,  0.2500]])
    """

    target: Tensor
    cost: Tensor

    def lift(self, s: Tensor) -> Tensor:
        return inner(self.cost, s)

    def best(self, v: Tensor) -> Atom:
        return Rivals(self.target, self.cost, 1).best(v)

    def nearest(self, v: Tensor, h: Tensor) -> Atom:
        """The projection of e_y + (v + cost)/h onto the simplex."""
        e_y = one_hot(v, self.target, v.shape[1])
        s = project_on_simplex(e_y + (v + self.cost) / h) - e_y
        return Atom(s, self.lift(s))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """The directions that keep Σα and every α_k = 0."""
        free = (s + one_hot(s, self.target, s.shape[1]) > 0).to(s)  # α > 0
        inside = free * rows
        return inside - free * (inside.sum(2, keepdim=True) / free.sum(1, keepdim=True))

    def express(self) -> Polytope:
        """With fewer constraints than the top-1 hinge: Σ_k α_k = 1."""
        cp, e_y = load("cvxpy", extra="qp"), flat(one_hot(self.cost, self.target, self.cost.shape[1]))
        alpha = cp.Variable(e_y.shape, nonneg=True)
        offset = cp.sum(cp.multiply(flat(self.cost), alpha), axis=1)
        return Polytope((alpha - e_y,), offset, [cp.sum(alpha, axis=1) == 1])


def rival(v: Tensor, y: Tensor, cost: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The wrong class with the largest v_k + cost_k, ``[n, 1]``, its margin v_k − v_y + cost_k and v_y, ``[n]``.

    Margin and v_y are differentiable. ``cost`` is ``[n, K]``; None for 1. Where there is no wrong class, k is y and the
    margin 0.

    >>> rival(torch.tensor([[2.0, 0.5, 1.5]]), torch.tensor([0]), None)
    (tensor([[2]]), tensor([0.5000]), tensor([2.]))
    """
    at = y[:, None]
    u = v.detach() if cost is None else v.detach() + cost
    k = u.scatter(1, at, -torch.inf).max(1, keepdim=True).indices  # faster than argmax
    v_k, v_y = v.gather(1, torch.cat([k, at], 1)).unbind(1)
    delta = k != at if cost is None else cost.gather(1, k)
    return k, v_k - v_y + delta.squeeze(1), v_y


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
class Rivals(Hull):
    """s = α − σ e_y, c = ⟨cost, α⟩ with α ≥ 0 and σ = Σ_j α_j; ``target`` is y, ``[n]``, ``cost`` ``[n, K]``, 0 at y.

    With ``k``: α_j ≤ σ/k and σ ≤ 1, the top-k hinge. Without: α_j ≤ 1, the hinge of Weston and Watkins.

    >>> cost = torch.tensor([[0.0, 1.0, 1.0]])
    >>> Rivals(torch.tensor([0]), cost, k=2).best(torch.tensor([[2.0, 0.5, 1.5]]))
    Atom(s=tensor([[-0.5000,  0.0000,  0.5000]]), offset=tensor([0.5000]))
    >>> Rivals(torch.tensor([0]), cost).best(torch.tensor([[1.0, 0.5, 2.0]]))
    Atom(s=tensor([[-2.,  1.,  1.]]), offset=tensor([2.]))
    """

    target: Tensor
    cost: Tensor
    k: int | None = None

    def best(self, v: Tensor) -> Atom:
        """Every class within the margin; or the k with the largest margins, where their mean is positive."""
        y = self.target[:, None]
        margin = (v - v.gather(1, y)).add_(self.cost).scatter_(1, y, 0.0)
        if self.k is None:
            alpha, value = (margin > 0).to(v), margin.clamp(min=0).sum(1)
            offset = inner(self.cost, alpha)
        else:
            # For a single one, max is faster.
            margins, top = margin.topk(self.k, sorted=False) if self.k > 1 else margin.max(1, keepdim=True)
            value = margins.mean(1).clamp(min=0)
            share = ((value > 0).to(v)[:, None] / self.k).expand(-1, self.k)
            alpha, offset = torch.zeros_like(v).scatter(1, top, share), inner(share, self.cost.gather(1, top))
        alpha.scatter_(1, y, 0.0)
        return Atom(alpha.scatter_(1, y, -alpha.sum(1, keepdim=True)), offset, value)

    def express(self) -> Polytope:
        cp, y = load("cvxpy", extra="qp"), flat(one_hot(self.cost, self.target, self.cost.shape[1]))
        alpha = cp.Variable(y.shape, nonneg=True)
        total = cp.sum(alpha, axis=1, keepdims=True) @ np.ones((1, y.shape[1]))
        bounds = [alpha <= 1] if self.k is None else [alpha <= total / self.k, total <= 1]
        return Polytope((alpha - cp.multiply(y, total),), cp.sum(cp.multiply(flat(self.cost), alpha), axis=1), bounds)


@dataclass(frozen=True)
class EntropySimplex(Hull):
    """s = m α − q, c ≤ m · entropy(α) over α ≥ 0, Σ_k α_k = 1, with q ≥ 0 ``[n, K]`` and m = Σ_k q_k: cross-entropy.

    >>> EntropySimplex(torch.tensor([[1.0, 0.0]])).best(torch.zeros(1, 2))
    Atom(s=tensor([[-0.5000,  0.5000]]), offset=tensor([0.6931]))
    """

    q: Tensor

    def best(self, v: Tensor) -> Atom:
        s = self.q.sum(1, keepdim=True) * v.softmax(1) - self.q
        return Atom(s, self.lift(s))

    def lift(self, s: Tensor) -> Tensor:
        mass = self.q.sum(1)
        alpha = ((s + self.q) / mass.clamp(min=torch.finfo(s.dtype).tiny)[:, None]).clamp(min=0)
        entropy: Tensor = torch.special.entr(alpha).sum(1)
        return mass * entropy

    def express(self) -> Polytope:
        cp, q = load("cvxpy", extra="qp"), flat(self.q)
        alpha, mass = cp.Variable(q.shape, nonneg=True), q.sum(1)
        s = cp.multiply(mass[:, None] * np.ones_like(q), alpha) - q
        return Polytope((s,), cp.multiply(mass, cp.sum(cp.entr(alpha), axis=1)), [cp.sum(alpha, axis=1) == 1])


@dataclass(frozen=True)
class Box(ClosedHull):
    """low ≤ s ≤ high, c ≤ −⟨s, center⟩ − band ‖s‖₁ − (ridge/2) ‖s‖², with low ≤ 0 ≤ high; all of the scores' shape.

    >>> hull = Box(torch.tensor([-1.0]), torch.tensor([1.0]), center=torch.tensor([2.0]), band=0.5)
    >>> hull.best(torch.tensor([3.0]))
    Atom(s=tensor([1.]), offset=tensor([-2.5000]))
    >>> hull.nearest(torch.tensor([3.0]), torch.tensor(1.0))
    Atom(s=tensor([0.5000]), offset=tensor([-1.2500]))
    >>> hull = Box(torch.tensor([0.0]), torch.tensor([torch.inf]), torch.tensor([-1.0]), ridge=0.5)
    >>> hull.best(torch.tensor([0.5]))                                   # 2 (0.5 + 1)
    Atom(s=tensor([3.]), offset=tensor([0.7500]))
    """

    low: Tensor
    high: Tensor
    center: Tensor
    band: float = 0.0
    ridge: float = 0.0

    @staticmethod
    def between(low: float, high: float, center: Tensor, band: float = 0.0, ridge: float = 0.0) -> Box:
        """The box with the same bounds for all outputs."""
        return Box(torch.full_like(center, low), torch.full_like(center, high), center, band, ridge)

    def lift(self, s: Tensor) -> Tensor:
        return self.worth(s, -self.center)

    def worth(self, s: Tensor, residual: Tensor) -> Tensor:
        """⟨s, residual⟩ − band ‖s‖₁ − (ridge/2) ‖s‖², ``[n]``."""
        worth = s * residual - self.band * s.abs() - self.ridge / 2 * s.square()
        return worth.reshape(len(s), -1).sum(1)

    def best(self, v: Tensor) -> Atom:
        s, offset = self.nearest(v, 0.0)
        return Atom(s, offset, self.worth(s, v - self.center))

    def nearest(self, v: Tensor, h: Tensor | float) -> Atom:
        """The residual v − center, shrunk by the band, divided by ridge + h and clipped; 0 / 0 is 0."""
        shrunk = F.softshrink(v - self.center, self.band)
        s = torch.where(shrunk == 0, 0.0, shrunk / (self.ridge + h)).clamp(self.low, self.high)
        return Atom(s, self.lift(s))

    def tangent(self, s: Tensor, rows: Tensor) -> Tensor:
        """The outputs that are free to move: between their bounds, off the band."""
        return ((s > self.low) & (s < self.high) & ((s != 0) | (self.band == 0))).to(s) * rows

    def express(self) -> Polytope:
        cp, low, high, center = load("cvxpy", extra="qp"), flat(self.low), flat(self.high), flat(self.center)
        s = cp.Variable(center.shape)
        paid = cp.multiply(center, s) + self.band * cp.abs(s) + self.ridge / 2 * cp.square(s)
        above, below = np.isfinite(low), np.isfinite(high)
        bounds = [s[above] >= low[above], s[below] <= high[below]]
        return Polytope((s,), -cp.sum(paid, axis=1), [bound for bound in bounds if bound.size])


@dataclass(frozen=True)
class EntropyBox(Hull):
    """s = m α − a, c ≤ Σ_j m_j · entropy of (α_j, 1 − α_j) over 0 ≤ α ≤ 1, m = a + b; a, b ≥ 0 of the scores' shape."""

    a: Tensor
    b: Tensor

    def lift(self, s: Tensor) -> Tensor:
        """For each output that of two classes, with q = (a, b)."""
        q, both = (torch.stack(pair, -1).reshape(-1, 2) for pair in ((self.a, self.b), (s, -s)))
        return EntropySimplex(q).lift(both).reshape(len(s), -1).sum(1)

    def express(self) -> Polytope:
        cp, a, mass = load("cvxpy", extra="qp"), flat(self.a), flat(self.a + self.b)
        alpha = cp.Variable(a.shape, nonneg=True)
        offset = cp.sum(cp.multiply(mass, cp.entr(alpha) + cp.entr(1 - alpha)), axis=1)
        return Polytope((cp.multiply(mass, alpha) - a,), offset, [alpha <= 1])


@dataclass(frozen=True)
class MarginalHull(Hull):
    """s = μ − φ(y), c = ⟨cost, s⟩ (a hinge) or c ≤ the entropy of μ (a likelihood), over the marginals of a structure.

    ``truth`` is φ(y), a tuple of tensors, and ``cost`` what each part costs; None stands for the entropy.
    """

    marginals: Marginals
    truth: tuple[Tensor, ...]
    cost: tuple[Tensor | None, ...] | None

    @staticmethod
    def of(structure: Structure, scores: Any, target: Any, cost: Any) -> MarginalHull | None:
        """That of a structure; None where its marginals have no short description."""
        marginals = structure.polytope(scores, target)
        if marginals is None:
            return None
        return MarginalHull(marginals, parts(structure.features(target, scores)), None if cost is None else parts(cost))

    def lift(self, s: Any) -> Tensor | None:
        if self.cost is None:
            return self.marginals.entropy(tuple(a + b for a, b in zip(parts(s), self.truth, strict=True)))
        return paid(self.cost, s)

    def express(self) -> Polytope:
        cp = load("cvxpy", extra="qp")
        mu, constraints, entropy = self.marginals.express(with_entropy=self.cost is None)
        s = tuple(x - flat(phi) for x, phi in zip(mu, self.truth, strict=True))
        if self.cost is None:
            return Polytope(s, entropy, constraints)
        costs = [cp.sum(cp.multiply(flat(c), x), axis=1) for c, x in zip(self.cost, s, strict=True) if c is not None]
        return Polytope(s, sum(costs), constraints)


def paid(cost: Any, s: Any) -> Tensor:
    """⟨cost, s⟩ for each sample, ``[n]``; None in the cost is 0."""
    none = parts(s)[0].new_zeros(len(parts(s)[0]))
    return sum([(c * x).flatten(1).sum(1) for c, x in zip(parts(cost), parts(s), strict=True) if c is not None], none)
