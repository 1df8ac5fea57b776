"""The exact block step of the box."""

from __future__ import annotations

import numpy as np

from proxsvm._kernels.tensors import Array
from proxsvm.losses.hulls import Box
from proxsvm.solvers._block.base import FlatAtom, flat, kernels
from proxsvm.solvers._block.row_step import LinearModel, RowStep


class BoxStep(RowStep):
    """s of each sample, low ≤ s ≤ high."""

    needs = Box

    def __init__(self, hull: Box) -> None:
        self.low, self.high, self.center = (flat(x) for x in (hull.low, hull.high, hull.center))
        self.band = float(hull.band)
        self.s = np.zeros_like(self.center)

    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible s, without its rounding errors."""
        self.s = np.clip(atom.s, self.low, self.high)

    def combination(self) -> FlatAtom:
        """s and c = −⟨s, center⟩ − band ‖s‖₁."""
        return FlatAtom(self.s, -(self.s * self.center + self.band * np.abs(self.s)).sum(1))

    def evaluate(self, compiled: bool, v: Array) -> tuple[Array, Array]:
        """See :meth:`RowStep.evaluate`."""
        residual = v - self.center
        at_low, at_high, now = (end * residual - self.band * np.abs(end) for end in (self.low, self.high, self.s))
        gain = (np.maximum(np.maximum(at_low, at_high), 0.0) - now).sum(1)
        return gain, (now - self.s * v / 2).sum(1)

    def sweep(self, compiled: bool, model: LinearModel, order: Array, least: float) -> tuple[int, float]:
        """Visit ``order``."""
        box = self.low, self.high, self.center, self.band, self.s
        sweep = kernels(compiled).box_sweep
        front, total = sweep(order, least, model.step, model.h, *box, model.W, *model.rows)
        return int(front), float(total)
