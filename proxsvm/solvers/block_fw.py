"""Block-coordinate Frank-Wolfe with exact block steps: the solver for gaps of 1e-6."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from numbers import Integral

import numpy as np

from proxsvm.losses.base import Atom
from proxsvm.point import DualPoint
from proxsvm.problem import ProxProblem
from proxsvm.solvers._block.base import Blocks, flat_atom, is_feasible
from proxsvm.solvers.base import Callback, DualSolver, Progress, check_options


@dataclass(frozen=True)
class BlockFW(DualSolver):
    """One sample at a time, in random order, each solved over its own hull with the others fixed.

    On linear models a block step is exact for the hinges of Crammer and Singer and of Weston and Watkins, for boxes
    (ℓ1 and quantile regression) and the cross-entropy; else it is some pairwise Frank-Wolfe steps over the atoms that
    the oracle has found for the sample, a new one every pass. Both converge linearly.

    On a linear model (:meth:`ProxProblem.from_features`) it works on the rows of the features, dense or sparse, and
    memory stays linear. On a network it works on the Gram matrix J H⁻¹ Jᵀ of the m score entries (of all ranks, on each
    of them): m backward passes in batches, and memory for m·P + m² entries with P parameters. Its loops run on the CPU
    and are compiled by numba (the extra ``fast``) at their first use, which takes some seconds; later processes load
    them from numba's cache. Without numba they run interpreted, about a hundred times slower.

    Args:
        tol: stop once the certified relative gap (P − D)/(P − D₀) is at most this.
        max_passes: at most this many passes over all the samples.
        inner: on features, at most this many further rounds per pass over the samples that still gain and the classes
            that still matter (shrinking).
        max_entries: the limit of m·P + m², above which an error is raised.
        seed: of the random order.
        callback: called with a :class:`~proxsvm.solvers.Trace` before each pass.

    Reference: Lacoste-Julien, Jaggi, Schmidt and Pletscher, Block-Coordinate Frank-Wolfe Optimization for Structural
    SVMs, ICML 2013.

    >>> import torch
    >>> from proxsvm.losses import MultiClassHinge
    >>> X, y = torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])
    >>> problem = ProxProblem.from_features(MultiClassHinge(), X, y, lr=2.0)
    >>> point = BlockFW().solve(problem)
    >>> problem.displacement(point)               # the SVM through (1, 0) and (-1, 1): w_0 - w_1 = 1
    [tensor([[ 0.5000],
            [-0.5000]])]
    """

    on_ranks = True

    tol: float = 1e-6
    max_passes: int = 1000
    inner: int = 25
    max_entries: int = 200_000_000
    seed: int = 0
    callback: Callback | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(tol=self.tol, max_passes=self.max_passes, max_entries=self.max_entries)
        if not (isinstance(self.inner, Integral) and self.inner >= 0):
            raise ValueError(f"inner is {self.inner!r}; expected a whole number of rounds, 0 or more")

    def solve(self, problem: ProxProblem, start: Atom | None = None) -> DualPoint:
        """Pass over the blocks until the certified gap is small.

        ``start``: the ``atom`` of an earlier point with the same samples and targets (perhaps at another η), as a warm
        start. It must be a point of this loss's hull. The returned point carries its own.
        """
        if start is not None and is_feasible(problem, start) is False:
            raise ValueError(
                f"the start is not a dual point of this {type(problem.origin.loss).__name__}: expected the atom of a "
                "point with the same samples, targets and loss; leave start out for a cold start"
            )
        # Imported here, because the loops import numba, which takes half a second.
        from proxsvm.solvers._block.gram import GramBlocks
        from proxsvm.solvers._block.rows import RowBlocks

        blocks: Blocks
        if problem.linearization.features is None:
            blocks = GramBlocks(problem, self.max_entries)
        else:
            blocks = RowBlocks(problem, self.inner, self.max_passes)
        rng = np.random.default_rng(self.seed)
        if start is not None:
            blocks.begin(flat_atom(start))
        progress = Progress(blocks.dual_of_start, tol=self.tol, callback=self.callback)
        passes, now = 0, blocks.evaluate()
        best, least = None, math.inf  # the gap may rise between passes
        while not progress.stop(passes, now.dual, now.gap) and passes < self.max_passes and not blocks.exhausted:
            if now.gap < least:
                best, least = blocks.snapshot(), now.gap
            blocks.sweep(rng, now, float(progress.enough(now.dual, now.gap)) / 2)
            passes, now = passes + 1, blocks.evaluate()
        if best is not None and now.gap > least:
            blocks.begin(best)
            now = blocks.evaluate()
        return replace(blocks.point(now), steps=max(passes, 1))  # 0 steps would mean: the start itself
