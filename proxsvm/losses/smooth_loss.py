"""Any smooth convex loss, from its formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from proxsvm._scores import inner, per_sample
from proxsvm.losses.base import Atom, ConvexLoss, Reduction, detached, parts
from proxsvm.structures.base import gradients


class SmoothLoss(ConvexLoss):
    """ℓ(u; y) = f(u, y) for a convex, differentiable f ≥ 0 of the scores.

    Atoms: s = ∇f(u), c = f(u) − ⟨s, u⟩, for every u. Pass ``f``, which returns one value per sample, ``[n]``, or define
    :meth:`formula` in a subclass. A subclass that knows −ℓ*(s) may give it as a :meth:`hull`, for ``ExactQP``.

    The gradient is f's own, and may be differentiated again.

    >>> import torch
    >>> log_cosh = SmoothLoss(lambda u, y: (u - y).cosh().log())
    >>> log_cosh(torch.tensor([0.0, 1.0]), torch.zeros(2))
    tensor(0.2169)
    """

    def __init__(self, f: Callable[[Any, Any], Tensor] | None = None, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.f = f

    def formula(self, scores: Any, target: Any) -> Tensor:
        """ℓ(u; y) of each sample, ``[n]``."""
        if self.f is None:
            raise NotImplementedError(f"{type(self).__name__} must define formula(scores, target) -> Tensor [n]")
        return self.f(scores, target)

    def oracle(self, scores: Any, target: Any) -> Atom:
        """The tangent plane at u, by autograd; c is −ℓ*(s) where the hull knows it, because f(u) − ⟨s, u⟩ cancels."""
        scores = detached(scores)
        (value,), (s,) = gradients(lambda u: self._values(u, target)[None], scores)
        hull = self.hull(scores, target)
        offset = None if hull is None else hull.lift(s)
        return Atom(s, value - inner(s, scores) if offset is None else offset, value)

    def values(self, scores: Any, target: Any) -> tuple[Tensor, Atom | None]:
        return self._values(self.expand(scores, target), target), None

    def _values(self, scores: Any, target: Any) -> Tensor:
        each = per_sample(self.formula(scores, target), scores, f"{type(self).__name__} computed values of")
        return each.to(parts(scores)[0].dtype)
