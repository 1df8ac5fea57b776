"""A hull given as a list of atoms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from proxsvm.losses._hulls.base import Hull, Polytope, cvxpy, flat
from proxsvm.losses.base import Atom, parts


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
