"""A model around w_t as a linear map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from proxsvm.losses.base import Scores


class LinearMap(ABC):
    """d ↦ J d, from displacements of the parameters to changes of the scores, around ``scores`` at ``params``.

    ``features``: for a linear model ``[n, F]``, which are its J; None for a network. A solver that can work on them
    uses them.
    """

    features: Tensor | None = None

    def __init__(self, scores: Scores, params: Sequence[Tensor]) -> None:
        self.scores, self.params = scores, list(params)

    @abstractmethod
    def vjp(self, s: Scores, reuse: bool = False) -> list[Tensor]:
        """Jᵀ s, one tensor per parameter; ``reuse``: keep what a later :meth:`jvp` can use."""

    @abstractmethod
    def jvp(self, d: Sequence[Tensor]) -> Scores:
        """J d, with the structure of the scores."""

    @abstractmethod
    def jacobian(self, chunk: int = 64) -> Tensor:
        """J as a dense ``[m, P]`` matrix, evaluated ``chunk`` rows at a time. For small problems."""
