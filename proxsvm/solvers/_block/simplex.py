"""The exact block step of the simplex."""

from __future__ import annotations

import numpy as np

from proxsvm._kernels.tensors import Array
from proxsvm.losses.hulls import Simplex
from proxsvm.solvers._block.base import FlatAtom, kernels, to_numpy
from proxsvm.solvers._block.row_step import LinearModel, RowStep


class SimplexStep(RowStep):
    """s = α − e_y of each sample; the classes that are not ``live`` cannot gain weight before the next evaluation."""

    needs = Simplex

    def __init__(self, hull: Simplex) -> None:
        self.cost, self.target = to_numpy(hull.cost), hull.target.cpu().numpy()
        n, K = self.cost.shape
        self.s = np.zeros((n, K))
        self.live, self.lives = np.zeros((n, K), np.int32), np.zeros(n, np.int32)
        self.gain, self.worth = np.zeros(n), np.zeros(n)

    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible s, without its rounding errors."""
        rest = np.maximum(atom.s, 0.0)
        rows = np.arange(len(rest))
        rest[rows, self.target] = 0.0
        moved = rest.sum(1)
        self.s = rest / np.maximum(moved, 1.0)[:, None]
        self.s[rows, self.target] = -np.minimum(moved, 1.0)

    def combination(self) -> FlatAtom:
        """s and c = ⟨cost, s + e_y⟩."""
        of_target: Array = self.cost[np.arange(len(self.target)), self.target]
        return FlatAtom(self.s, (self.s * self.cost).sum(1) + of_target)

    def evaluate(self, compiled: bool, v: Array) -> tuple[Array, Array]:
        """See :meth:`RowStep.evaluate`; also finds which classes are live."""
        state = self.target, self.cost, self.s, self.live, self.lives
        kernels(compiled).simplex_gains(v, *state, self.gain, self.worth)
        return self.gain, self.worth

    def sweep(self, compiled: bool, model: LinearModel, order: Array, least: float) -> tuple[int, float]:
        """Iterate over ``order``; three classes on sparse rows have a loop of their own."""
        loops, state = kernels(compiled), (self.target, self.cost, self.s)
        if model.sparse and len(model.W) == 3:
            front, total = loops.three_sweep(order, least, model.step, model.h, *state, model.W, *model.rows)
        else:
            live = self.live, self.lives
            front, total = loops.simplex_sweep(order, least, model.step, model.h, *state, *live, model.W, *model.rows)
        return int(front), float(total)
