"""The structured hinge over binary images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from proxsvm.losses.base import Reduction
from proxsvm.losses.hulls import Array
from proxsvm.losses.structured_hinge import StructuredHinge
from proxsvm.structures import Grid, scipy_cut


class GridHinge(StructuredHinge):
    """ℓ(u; y) = max over binary images ȳ of score(ȳ) − score(y) + Δ(ȳ, y), by a minimum cut.

        score(y) = Σ_i unary_i y_i + Σ_(i,j) w_ij [y_i = y_j]          over 4-neighbours, w ≥ 0

    ``StructuredHinge(Grid())``. Scores, targets, masks, ``negative`` and ``cut``: see
    :class:`~proxsvm.structures.Grid`. Δ is the number of wrong pixels; ``normalize`` divides it by their number.

    >>> import torch
    >>> unary = torch.tensor([[[2.0, -1.0], [2.0, 2.0]]])
    >>> GridHinge().decode((unary, torch.tensor(1.0), torch.tensor(1.0)))    # two agreements outweigh the -1
    tensor([[[1, 1],
             [1, 1]]])
    >>> GridHinge()((unary, torch.tensor(0.0), torch.tensor(0.0)), torch.tensor([[[1, 1], [1, 1]]]))
    tensor(2.)
    """

    shown = ("negative",)

    def __init__(
        self,
        *,
        negative: Literal["refuse", "project"] = "refuse",
        cut: Callable[[Array, Array, Array], Array] = scipy_cut,
        normalize: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(Grid(negative=negative, cut=cut), normalize=normalize, reduction=reduction)
        self.negative = negative
