"""The likelihood of a structure: the conditional random field."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm.losses.base import Atom, Reduction
from proxsvm.losses.hulls import Hull, MarginalHull
from proxsvm.losses.smooth_loss import SmoothLoss
from proxsvm.structures import Structure, log_sum_exp
from proxsvm.structures.base import as_structure, gradient


class CRF(SmoothLoss):
    """ℓ(u; y) = −log p(y) = log Σ_ȳ exp(score(ȳ)) − score(y) over the labellings ȳ of a structure.

    Atom: s = the marginals of the structure − φ(y), c = the entropy of p. Scores and targets are the structure's.

    Args:
        structure: any :class:`~proxsvm.structures.Structure` that can sum over its labellings.
        reduction: as in torch, over the samples; see :class:`~proxsvm.losses.ConvexLoss`.

    >>> import torch
    >>> from proxsvm.structures import Chain
    >>> value = CRF(Chain())((torch.zeros(1, 3, 2), torch.zeros(2, 2)), torch.tensor([[0, 0, 1]]))
    >>> torch.exp(-value)                                         # one of eight
    tensor(0.1250)
    """

    def __init__(self, structure: Structure, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.structure = as_structure(structure)
        if not structure.likelihood:
            name = type(structure).__name__
            raise ValueError(f"{name} has no sum over all labellings, only a best one: use StructuredHinge")

    def prepare(self, scores: Any, target: Any) -> tuple[Any, Any]:
        return self.structure.labelled(type(self).__name__, scores, target)

    def expand(self, scores: Any, target: Any) -> Any:
        return self.structure.expand(scores, target)

    def values(self, scores: Any, target: Any) -> tuple[Tensor, Atom | None]:
        return self.formula(scores, target), None

    def formula(self, scores: Any, target: Any) -> Tensor:
        return self.structure.excess(scores, target, log_sum_exp)

    def hull(self, scores: Any, target: Any) -> Hull | None:
        return MarginalHull.of(self.structure, scores, target, None)

    def decode(self, scores: Any, **given: Any) -> Any:
        """The most likely labelling; ``given`` is what the structure needs to know (``lengths``, ``parents``, ...)."""
        u, y = self.structure.prepare(type(self).__name__, scores, None, **given)
        return self.structure.decode(u, y)

    def marginals(self, scores: Any, **given: Any) -> Any:
        """The probability of every part, in the form of the scores; ``given`` as in :meth:`decode`."""
        u, y = self.structure.prepare(type(self).__name__, scores, None, **given)
        mu = gradient(lambda u: self.structure.total(u, y, log_sum_exp), self.expand(u, y))
        return self.structure.marginals(mu, y)

    def extra_repr(self) -> str:
        name = f"{type(self.structure).__name__}(), " if type(self) is CRF else ""
        return name + super().extra_repr()
