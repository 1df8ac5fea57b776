"""The exact block step of the simplex under the entropy: multinomial logistic regression."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from proxsvm._kernels import entropy_loops, jit, row_loops
from proxsvm._kernels.tensors import Array
from proxsvm.losses.hulls import EntropySimplex
from proxsvm.solvers._block.base import FlatAtom, to_numpy
from proxsvm.solvers._block.row_step import LinearModel, RowStep


@functools.cache
def _kernels(compiled: bool) -> Any:
    return jit.compiled(entropy_loops, row_loops) if compiled else entropy_loops


class EntropyStep(RowStep):
    """α of each sample, with s = m α − q and the tight offset c = m · entropy(α)."""

    needs = EntropySimplex

    def __init__(self, hull: EntropySimplex) -> None:
        self.q = to_numpy(hull.q)
        self.mass = self.q.sum(1)
        self.alpha = self._alpha(np.zeros_like(self.q))

    def _alpha(self, s: Array) -> Array:
        alpha = np.maximum(s + self.q, 0.0)
        total = alpha.sum(1, keepdims=True)
        even = np.full_like(alpha, 1 / alpha.shape[1])  # for a sample without weight
        shares: Array = np.divide(alpha, total, out=even, where=total > 0)
        return shares

    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible s, without its rounding errors."""
        self.alpha = self._alpha(atom.s)

    def combination(self) -> FlatAtom:
        """s and c."""
        return FlatAtom(self.mass[:, None] * self.alpha - self.q, -self.mass * (self.alpha * self._logs()).sum(1))

    def _logs(self) -> Array:
        """log α, and 0 where α = 0."""
        logs: Array = np.log(self.alpha, out=np.zeros_like(self.alpha), where=self.alpha > 0)
        return logs

    def evaluate(self, compiled: bool, v: Array) -> tuple[Array, Array]:
        """See :meth:`RowStep.evaluate`."""
        logs = self._logs()
        largest = v.max(1, keepdims=True)
        softmax = v - largest
        softmax -= np.log(np.exp(softmax).sum(1, keepdims=True))
        gain = self.mass * (self.alpha * (logs - softmax)).sum(1)
        worth = ((self.mass[:, None] * self.alpha - self.q) * v).sum(1) / 2 - self.mass * (self.alpha * logs).sum(1)
        return gain, worth

    def sweep(self, compiled: bool, model: LinearModel, order: Array, least: float) -> tuple[int, float]:
        """Visit ``order``."""
        state = self.mass, self.alpha
        front, total = _kernels(compiled).entropy_sweep(order, least, model.step, model.h, *state, model.W, *model.rows)
        return int(front), float(total)
