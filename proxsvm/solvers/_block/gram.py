"""BlockFW on a network, in the space of its scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import parts
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._block.atoms import AtomWeights
from proxsvm.solvers._block.base import ROUNDS, Blocks, Evaluation, FlatAtom, flat, kernels, to_numpy


class GramBlocks(Blocks):
    """v = v₀ − G x with x = p·s and the Gram matrix G = J H⁻¹ Jᵀ."""

    def __init__(self, problem: ProxProblem, max_entries: int) -> None:
        super().__init__(problem)
        n, M = len(self.p), sum(u[0].numel() for u in parts(self.like))
        P = sum(w.numel() for w in problem.params)
        if n * M * (P + n * M) > max_entries:
            raise ValueError(
                f"BlockFW on a network of {P:,} parameters with {n * M:,} score entries needs a Jacobian and a Gram "
                f"matrix of {n * M * (P + n * M):,} entries, more than max_entries={max_entries:,}: use fewer "
                "samples, raise max_entries, or use CorrectiveFW, which needs neither"
            )
        self.G = self._gram(n)
        self.v0 = flat(problem.linearised_scores(problem.start()))
        self.weights = AtomWeights(self.bounds, M)
        self.work = (n * M) ** 2

    def _gram(self, n: int) -> Array:
        J = self.problem.geometry.root(self.problem.linearization.jacobian().detach())
        indices = torch.split(torch.arange(len(J), device=J.device), [u.numel() for u in parts(self.like)])
        J = J[torch.cat([index.reshape(n, -1) for index in indices], 1).reshape(-1)]  # sample-major
        return to_numpy(J @ J.t())

    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible atom for each sample."""
        self.weights.begin(atom)

    def combination(self) -> FlatAtom:
        """The current s and c."""
        return self.weights.combination()

    def evaluate(self, compiled: bool) -> Evaluation:
        """D, the gap, and the oracle's atom."""
        now = self.combination()
        x = self.p[:, None] * now.s
        gx = (self.G @ x.reshape(-1)).reshape(x.shape)
        v = self.v0 - gx
        dual = self.dual_of_zero + float((x * self.v0).sum() + self.p @ now.offset - (x * gx).sum() / 2)
        best = self.oracle(v)
        return Evaluation(dual, self.certified(float(self.p @ (best.b(v) - now.b(v))), v), best=best)

    def sweep(self, compiled: bool, rng: np.random.Generator, now: Evaluation, enough: float) -> None:
        """Improve every block once."""
        assert now.best is not None
        self.weights.add(now.best)
        x = self.p[:, None] * self.combination().s
        v = self.v0.reshape(-1) - self.G @ x.reshape(-1)
        self.work += (len(self.p) + 100) * v.size
        order = rng.permutation(len(self.p))
        kernels(compiled).gram_sweep(order, ROUNDS, self.G, self.p, *self.weights.arrays, v)

    def point(self, now: Evaluation) -> DualPoint:
        """The current point, with the problem's own formulas."""
        point = self.problem.vertex(self.atom())
        return replace(point, dual=self.problem.dual(point), gap=self.problem.gap(point))
