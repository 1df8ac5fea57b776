"""Matchings: every row is assigned a column of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._scores import FORBIDDEN, detached, inner, require
from proxsvm.structures._parts import Parts, PartStructure, check_integers, check_parts, check_sizes, one_hot
from proxsvm.structures.base import Reduce


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

    def prepare(  # type: ignore[override]
        self, name: str, scores: Any, target: Any, *, sizes: Any = None
    ) -> tuple[Tensor, Parts]:
        """Columns become indicators."""
        u = check_parts(name, scores, "[B, n, m]")
        B, n, m = u.shape
        if isinstance(target, (tuple, list)) and len(target) == 2:
            target, sizes = target
        size = check_sizes(name, sizes, (n, m), u)
        require(
            size[:, 0] <= size[:, 1], f"{name} got more rows than columns; expected n ≤ m, or the scores transposed"
        )
        row, column = (torch.arange(k, device=u.device) < size[:, i, None] for i, k in enumerate((n, m)))
        inside = row[:, :, None] & column[:, None]
        phi = torch.zeros_like(u)
        if target is not None:
            y = torch.where(row, check_integers(name, "columns", target, (B, n)), 0)
            require((y >= 0) & (y < size[:, 1:]), f"{name} got a column outside [0, m), those of the scores")
            phi = one_hot(u, y, m) * inside
            require(phi.sum(1) <= 1, f"{name} got a column that two rows share")
        return torch.where(inside, u, 0.0), Parts(phi, size)

    def best(self, scores: Tensor, target: Parts) -> Tensor:
        """By scipy, on the CPU."""
        assign = load("scipy.optimize", extra="grid").linear_sum_assignment
        phi = torch.zeros_like(scores)
        for b, (u, (n, m)) in enumerate(
            zip(scores.detach().double().cpu().numpy(), target.sizes.tolist(), strict=True)
        ):
            u = np.nan_to_num(u[:n, :m])
            usual = u[u > FORBIDDEN / 2]
            if len(usual) < u.size:  # forbidden pairs are so low that they are not used where that is possible
                low, high = (usual.min(), usual.max()) if len(usual) else (0.0, 0.0)
                u = np.where(u > FORBIDDEN / 2, u, low - (n + 1) * (high - low + 1))
            rows, columns = assign(u, maximize=True)
            phi[b, torch.as_tensor(rows), torch.as_tensor(columns)] = 1
        return phi

    def total(self, scores: Tensor, target: Parts, reduce: Reduce) -> Tensor:
        """The score of the best matching; there is no sum over all of them."""
        return inner(self.best(detached(scores), target), scores)

    def labels(self, phi: Tensor, target: Parts) -> Tensor:
        """The column of every row, 0 on padding."""
        return phi.argmax(2)

    def polytope(self, scores: Tensor, target: Parts) -> Birkhoff:
        """Doubly stochastic matrices."""
        return Birkhoff(scores, target.sizes)


@dataclass(frozen=True)
class Birkhoff:
    """μ ≥ 0 whose rows sum to 1 and whose columns sum to at most 1: the hull of all matchings (Birkhoff, 1946)."""

    scores: Tensor
    sizes: Tensor

    def entropy(self, mu: tuple[Tensor, ...]) -> None:
        """There is no formula."""

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        """μ ``[B, n m]``."""
        cp, (B, n, m) = load("cvxpy", extra="qp"), self.scores.shape
        mu = cp.Variable((B, n * m), nonneg=True)
        row, column = (np.arange(k) < self.sizes[:, i, None].cpu().numpy() for i, k in enumerate((n, m)))
        allowed = (row[:, :, None] & column[:, None] & (self.scores > FORBIDDEN / 2).cpu().numpy()).reshape(B, -1)
        rows, columns = np.kron(np.eye(n), np.ones((m, 1))), np.kron(np.ones((n, 1)), np.eye(m))
        return (mu,), [mu @ rows == row.astype(float), mu @ columns <= 1, cp.multiply(~allowed, mu) == 0], None
