"""Matchings: every row is assigned a column of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._scores import FORBIDDEN, integer_target, one_hot, require
from proxsvm.structures._checks import before, check_parts, check_sizes, unpack
from proxsvm.structures.base import Marginals, Parts, PartStructure
from proxsvm.structures.combinatorial import as_array, lowered


class Matching(PartStructure):
    """score(y) = Σ_i scores[i, y_i] over injective assignments y of rows to columns.

    Scores ``[B, n, m]`` with n ≤ m. Target: the column of every row, ``[B, n]`` (a permutation where n = m), or
    ``(columns, sizes)`` with sizes ``[B, 2]``, the rows and columns of each sample. Δ is the number of wrong rows.
    ``decode`` returns columns, 0 on padding. The best matching is scipy's ``linear_sum_assignment``; there is no
    likelihood, because the sum over all matchings is a permanent.

    >>> from proxsvm.losses import StructuredHinge
    >>> scores = torch.tensor([[[2.0, 1.0], [2.0, 0.0]]])
    >>> StructuredHinge(Matching()).decode(scores)                   # 1 + 2, and not 2 + 0
    tensor([[1, 0]])
    """

    likelihood = False

    def prepare(self, name: str, scores: Any, target: Any, *, sizes: Any = None) -> tuple[Tensor, Parts]:
        u = check_parts(name, scores, "[B, n, m]")
        B, n, m = u.shape
        target, sizes = unpack(target, sizes)
        size = check_sizes(name, sizes, (n, m), u)
        wide = f"{name} got more rows than columns; expected n ≤ m, or the scores transposed"
        require(size[:, 0] <= size[:, 1], wide)
        row = before(n, size[:, 0])
        inside = row[:, :, None] & before(m, size[:, 1])[:, None]
        phi = torch.zeros_like(u)
        if target is not None:
            y = torch.where(row, integer_target(name, target, (B, n), "columns"), 0)
            require((y >= 0) & (y < size[:, 1:]), f"{name} got a column outside [0, m), those of the scores")
            phi = one_hot(u, y, m) * inside
            require(phi.sum(1) <= 1, f"{name} got a column that two rows share")
        return torch.where(inside, u, 0.0), Parts(phi, size)

    def best(self, scores: Tensor, target: Parts) -> Tensor:
        """By scipy, on the CPU; forbidden pairs are not used where that is possible."""
        assign = load("scipy.optimize", extra="grid").linear_sum_assignment
        phi, arrays = torch.zeros_like(scores), as_array(scores)
        for b, (n, m) in enumerate(target.sizes.tolist()):
            rows, columns = assign(lowered(arrays[b, :n, :m], n)[0], maximize=True)
            phi[b, torch.as_tensor(rows), torch.as_tensor(columns)] = 1
        return phi

    def labels(self, phi: Tensor, target: Parts) -> Tensor:
        return phi.argmax(2)

    def polytope(self, scores: Tensor, target: Parts) -> Birkhoff:
        return Birkhoff(scores, target.sizes)


@dataclass(frozen=True)
class Birkhoff(Marginals):
    """μ ≥ 0 whose rows sum to 1 and whose columns sum to at most 1: the hull of all matchings (Birkhoff, 1946)."""

    scores: Tensor
    sizes: Tensor

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        cp, (B, n, m) = load("cvxpy", extra="qp"), self.scores.shape
        mu = cp.Variable((B, n * m), nonneg=True)
        row, column = (before(k, self.sizes[:, i]).cpu().numpy() for i, k in enumerate((n, m)))
        allowed = (row[:, :, None] & column[:, None] & (self.scores > FORBIDDEN / 2).cpu().numpy()).reshape(B, -1)
        rows, columns = np.kron(np.eye(n), np.ones((m, 1))), np.kron(np.ones((n, 1)), np.eye(m))
        return (mu,), [mu @ rows == row.astype(float), mu @ columns <= 1, cp.multiply(~allowed, mu) == 0], None
