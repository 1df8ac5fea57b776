"""The block step of one kind of hull on the rows of a linear model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from proxsvm._kernels.tensors import Array
from proxsvm.solvers._block.base import Evaluation, FlatAtom


class LinearModel(NamedTuple):
    """What a block step moves, W = w_t + d, and what it reads: a step of s_i by ds moves W by −step_i ds x_iᵀ.

    ``W``: [M, F]; ``rows``: data, indices and row starts, see :mod:`proxsvm._kernels.row_loops`; ``step``: p_i
    times the scalar of H⁻¹, and ``h``: step_i ‖x_i‖², the curvature of each block, ``[n]``.
    """

    W: Array
    rows: tuple[Array, Array, Array]
    step: Array
    h: Array

    @property
    def sparse(self) -> bool:
        """Whether the rows are CSR."""
        return self.rows[0].ndim == 1


class RowStep(ABC):
    """Each sample's own part of the dual point, and its block step."""

    @abstractmethod
    def begin(self, atom: FlatAtom) -> None:
        """Start from a feasible atom for each sample."""

    @abstractmethod
    def combination(self) -> FlatAtom:
        """The current s and c."""

    def evaluate(self, compiled: bool, v: Array) -> tuple[Array, Array] | None:
        """By how much the best atom at v exceeds the current one, and c + ½⟨s, v⟩ of the current one, ``[n]``
        both; None where the hull has no formula for them."""
        return None

    def prepare(self, now: Evaluation) -> None:
        """Use what the evaluation has found, before the sweeps of a pass."""
        return None

    @abstractmethod
    def sweep(self, compiled: bool, model: LinearModel, order: Array, least: float) -> tuple[int, float]:
        """Iterate over the samples in ``order``; returns what :mod:`proxsvm._kernels.block_loops` defines."""
