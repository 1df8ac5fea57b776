"""Some rows of a linear model whose other rows are elsewhere: on other ranks, or in other blocks on disk."""

from __future__ import annotations

import math

from proxsvm.problem import ProxProblem
from proxsvm.solvers._block.base import BlockState
from proxsvm.solvers._block.rows import RowBlocks


class ShardBlocks(RowBlocks):
    """Block steps on some rows, against a W of all rows that the caller keeps in :attr:`W`.

    ``state``: that of an earlier visit to these rows.
    """

    def __init__(self, problem: ProxProblem, inner: int, state: BlockState | None) -> None:
        features = problem.linearization.features
        assert features is not None
        super().__init__(problem, features, inner)
        self.newton_work = math.inf  # Newton's method needs all rows
        self.state = state or self.state

    def _refresh(self) -> None:
        """W does not follow from the s of these rows alone."""
