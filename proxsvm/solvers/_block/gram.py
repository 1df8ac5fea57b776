"""BlockFW on a network, in the space of its scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from proxsvm._kernels import block_loops as loops
from proxsvm._kernels.tensors import Array
from proxsvm.losses.base import parts
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._arrays import flatten, to_numpy
from proxsvm.solvers._block.base import Blocks, Evaluation, FlatAtom
from proxsvm.solvers._block.states import ROUNDS, AtomState


class GramBlocks(Blocks):
    """v = v₀ − G x with x = p·s and the Gram matrix G = J H⁻¹ Jᵀ. On several ranks each has all of it."""

    def __init__(self, problem: ProxProblem, max_entries: int) -> None:
        super().__init__(problem)
        of_rank, M = len(self.p), sum(u[0].numel() for u in parts(self.like))
        ranks = len(problem.gather(torch.zeros(1))[0])  # the problem is the average over them
        everyone, self.mine = problem.gather(torch.as_tensor(np.stack([self.p / ranks, self.bounds], 1)))
        self.p, self.bounds = (np.ascontiguousarray(x) for x in everyone.numpy().T)
        n, P = len(self.p), sum(w.numel() for w in problem.params)
        if n * M * (P + n * M) > max_entries:
            raise ValueError(
                f"BlockFW on a network of {P:,} parameters with {n * M:,} score entries needs a Jacobian and a Gram "
                f"matrix of {n * M * (P + n * M):,} entries, more than max_entries={max_entries:,}: use fewer "
                "samples, raise max_entries, or use CorrectiveFW, which needs neither"
            )
        J = problem.geometry.root(problem.linearization.jacobian().detach())
        indices = torch.split(torch.arange(len(J), device=J.device), [u.numel() for u in parts(self.like)])
        J = J[torch.cat([index.reshape(of_rank, -1) for index in indices], 1).reshape(-1)]  # sample-major
        J, _ = problem.gather(J)
        self.G = to_numpy(J @ J.t())
        self.v = self.v0 = to_numpy(problem.gather(flatten(problem.linearised_scores(problem.start())))[0])
        self.state: AtomState = AtomState(self.bounds, M, self.oracle)

    def oracle(self, v: Array) -> FlatAtom:
        """The best atom at the scores v, of all ranks."""
        s, c = super().oracle(v[self.mine])
        found = self.problem.gather(torch.as_tensor(np.column_stack([s, c])))[0].numpy()
        return FlatAtom(found[:, :-1], found[:, -1])

    def scores(self) -> Array:
        assert self.v0 is not None
        x = self.p[:, None] * self.state.combination().s
        self.v = self.v0 - (self.G @ x.reshape(-1)).reshape(x.shape)
        return self.v

    def sweep(self, rng: np.random.Generator, now: Evaluation, enough: float) -> None:
        order = rng.permutation(len(self.p))
        loops.gram_sweep(order, ROUNDS, self.G, self.p, *self.state.arrays, self.v.reshape(-1))

    def point(self, now: Evaluation) -> DualPoint:
        """The current point, with the problem's own formulas."""
        point = self.problem.vertex(self.atom())
        return replace(point, dual=self.problem.dual(point), gap=self.problem.gap(point))
