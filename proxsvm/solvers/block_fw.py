"""Block-coordinate Frank-Wolfe with exact block steps: the solver to reach 1e-6 with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from proxsvm.features import FeatureLinearization
from proxsvm.losses.base import Atom
from proxsvm.problem import DualPoint, ProxProblem
from proxsvm.solvers import kernels
from proxsvm.solvers.base import Callback, Clock, DualSolver, check_options
from proxsvm.solvers.blocks import Blocks, GramBlocks
from proxsvm.solvers.rows import RowBlocks

WORK = 1_000_000  # multiplications of a pass times passes: what an interpreter does in about the time of compiling


@dataclass(frozen=True)
class BlockFW(DualSolver):
    """One sample at a time, in random order, each solved over its own hull with the others held.

    A block step is exact for a simplex or a box on linear models; else it is a run of pairwise Frank-Wolfe steps over
    the atoms that the sample has seen, a new one from the oracle every pass. Both converge linearly.

    On a linear model (:meth:`ProxProblem.from_features`) it works on the rows of the features, dense or sparse, and
    memory stays linear. On a network it works on the Gram matrix J diag(η) Jᵀ of the m score entries: m backward
    passes in batches, and m·P + m² numbers of memory for P parameters. Its loops run on the CPU, compiled by numba
    where that is installed (``pip install 'proxsvm[fast]'``).

    Args:
        tol: stop once the certified relative gap (P − D)/(P − D₀) is at most this.
        max_passes: the most passes over all the samples.
        inner: on features, how many further rounds a pass makes, at most, over the samples that still gain and the
            classes that still matter (shrinking).
        max_entries: the limit of m·P + m², above which a network is refused.
        seed: of the random order.
        compiled: use numba; None means where it is installed, once the work repays compiling, which takes a second or
            more in every process.
        callback: called with a :class:`~proxsvm.solvers.Trace` before each pass.

    Reference: Lacoste-Julien, Jaggi, Schmidt and Pletscher, Block-Coordinate Frank-Wolfe Optimization for Structural
    SVMs, ICML 2013.

    >>> import torch
    >>> from proxsvm.losses import MultiClassHinge
    >>> X, y = torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])
    >>> problem = ProxProblem.from_features(MultiClassHinge(), X, y, lr=2.0)
    >>> point = BlockFW(compiled=False).solve(problem)
    >>> problem.displacement(point)               # the SVM through (1, 0) and (-1, 1): w_0 - w_1 = 1
    [tensor([[ 0.5000],
            [-0.5000]])]
    """

    tol: float = 1e-6
    max_passes: int = 1000
    inner: int = 25
    max_entries: int = 200_000_000
    seed: int = 0
    compiled: bool | None = None
    callback: Callback | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(tol=self.tol, max_passes=self.max_passes, max_entries=self.max_entries)
        if self.inner < 0:
            raise ValueError(f"inner is {self.inner}; expected 0 or more rounds")

    def solve(self, problem: ProxProblem, start: Atom | None = None) -> DualPoint:
        """Pass over the blocks until the certified gap is small.

        ``start``: the ``atom`` of an earlier point with the same samples and targets (at another η, say), as a warm
        start. The returned point carries its own.
        """
        clock, rng = Clock(self.callback), np.random.default_rng(self.seed)
        blocks = self._blocks(problem)
        if start is not None:
            blocks.begin(start)
        passes = 0
        while True:
            blocks.compiled = blocks.compiled or self._compiled(blocks)
            dual, gap = blocks.look()
            clock(passes, dual, gap)
            aim = self.tol * (gap + dual - blocks.dual_of_start)
            if not gap > aim or passes == self.max_passes:
                break
            blocks.sweep(rng, aim / 2)
            passes += 1
        return replace(blocks.point(), steps=max(passes, 1))  # 0 steps would mean: the start itself

    def _blocks(self, problem: ProxProblem) -> Blocks:
        if isinstance(problem.linearization, FeatureLinearization):
            return RowBlocks(problem, problem.linearization.features, self.inner)
        return GramBlocks(problem, self.max_entries)

    def _compiled(self, blocks: Blocks) -> bool:
        if self.compiled is None:
            return blocks.work > WORK and kernels.available()
        return self.compiled
