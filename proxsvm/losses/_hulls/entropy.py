"""The simplex and the box under the entropy: the cross-entropies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxsvm.losses._hulls.base import Hull, Polytope, cvxpy, flat
from proxsvm.losses.base import Atom


@dataclass(frozen=True)
class EntropySimplex(Hull):
    """s = m α − q, c ≤ m · entropy(α) over α ≥ 0, Σ_k α_k = 1, with q ≥ 0 ``[n, K]`` and m = Σ_k q_k.

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
