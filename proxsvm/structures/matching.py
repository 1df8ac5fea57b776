"""Matchings: every row is assigned a column of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._scores import integer_target, one_hot, require
from proxsvm.structures._checks import before, check_parts, check_sizes, unpack
from proxsvm.structures._parts import Parts, PartStructure
from proxsvm.structures.combinatorial import as_array, lowered
from proxsvm.structures.polytopes import Birkhoff


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
        """Columns become indicators."""
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
        """The column of every row, 0 on padding."""
        return phi.argmax(2)

    def polytope(self, scores: Tensor, target: Parts) -> Birkhoff:
        """Doubly stochastic matrices."""
        return Birkhoff(scores, target.sizes)
