"""The structured hinge: the base for a structure of your own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses._hulls import Hull, Listed
from proxsvm.losses.base import Atom, PiecewiseLinearLoss, Scores, like, parts


class StructuredHinge(PiecewiseLinearLoss):
    """ℓ(u; y) = max over labellings ȳ of ⟨φ(ȳ) − φ(y), u⟩ + Δ(ȳ, y).

    A subclass defines its labellings in three methods: :meth:`features` is φ, :meth:`cost` is Δ and
    :meth:`decode` finds the best ȳ. A fourth, :meth:`labellings`, may list them all if there are few: then the
    loss can be checked and verified by enumeration. A labelling is a tensor (or any object) for the whole batch; the
    target is one of them. ``docs/extend.md`` shows a complete example.

    >>> class TwoBits(StructuredHinge):
    ...     '''Two bits and a reward for their agreement: scores [n, 3], labellings [n, 2].'''
    ...     def features(self, labels, scores):
    ...         return torch.cat([labels, (labels[:, :1] == labels[:, 1:])], 1).to(scores)
    ...     def cost(self, labels, target):
    ...         return (labels != target).sum(1)
    ...     def labellings(self, scores, target):
    ...         return [torch.tensor(bits).expand(len(scores), 2) for bits in ([0, 0], [0, 1], [1, 0], [1, 1])]
    >>> TwoBits()(torch.tensor([[1.0, -1.0, 0.5]]), torch.tensor([[1, 0]]))  # the best is [1, 1]: -1 + 0.5 + 1
    tensor(0.5000)
    >>> TwoBits().decode(torch.tensor([[1.0, -1.0, 0.5]]))                  # a prediction: no target, no Δ
    tensor([[1, 0]])
    """

    exact: bool = True
    """Whether :meth:`decode` always finds the best labelling.

    A loss with an approximate decoder sets it to False. Every atom is still a piece of the loss, and y itself is used
    where the decoder finds nothing better, so a step is still a feasible ascent step of the dual, with γ = 0 where it
    does not help. But the value and the gap are then lower bounds, not certificates.
    """

    @abstractmethod
    def features(self, labelling: Any, scores: Any) -> Scores:
        """φ(ȳ) for each sample, with the structure and shapes of the scores."""
        raise NotImplementedError(f"{type(self).__name__} must define features(labelling, scores)")

    @abstractmethod
    def cost(self, labelling: Any, target: Any) -> Tensor:
        """Δ(ȳ, y) ≥ 0 for each sample, ``[n]``, with Δ(y, y) = 0."""
        raise NotImplementedError(f"{type(self).__name__} must define cost(labelling, target)")

    def decode(self, scores: Any, target: Any = None) -> Any:
        """The labelling with the largest ⟨φ(ȳ), u⟩ + Δ(ȳ, y) for each sample: loss-augmented inference.

        Without a target it is the prediction, the labelling with the largest ⟨φ(ȳ), u⟩. Training never needs that.
        The default tries every labelling that :meth:`labellings` lists.
        """
        listed = self.labellings(scores, target)
        if listed is None:
            raise NotImplementedError(f"{type(self).__name__} must define decode(scores, target) or labellings(...)")
        all_labels = torch.stack(list(listed))
        value = torch.stack([self._augmented_score(labels, scores, target) for labels in all_labels])
        best = value.argmax(0)
        return all_labels[best, torch.arange(len(best), device=best.device)]

    def labellings(self, scores: Any, target: Any) -> Iterable[Any] | None:
        """Every labelling, each for the whole batch; only for structures that are small enough to be listed."""
        return None

    def _augmented_score(self, labelling: Any, scores: Any, target: Any) -> Tensor:
        """⟨φ(ȳ), u⟩ + Δ(ȳ, y), ``[n]``; without a target Δ is left out."""
        first = parts(scores)[0]
        zero = first.new_zeros(len(first))
        c = zero if target is None else self.cost(labelling, target).to(first)
        return Atom(self.features(labelling, scores), c).b(scores)

    def _best(self, scores: Any, target: Any) -> Any:
        """The ȳ of the oracle, for prepared scores and target, in the form of a prepared target."""
        return self.decode(scores, target)

    def _atom(self, labelling: Any, scores: Any, target: Any) -> Atom:
        phi, truth = self.features(labelling, scores), self.features(target, scores)
        s = tuple(a - b for a, b in zip(parts(phi), parts(truth), strict=True))
        return Atom(like(scores, s), self.cost(labelling, target).to(parts(scores)[0]))

    def oracle(self, scores: Any, target: Any) -> Atom:
        """s = φ(ȳ) − φ(y), c = Δ(ȳ, y) at the decoded ȳ; an approximate ȳ that is worse than y is not used."""
        found = self._atom(self._best(scores, target), scores, target)
        return found if self.exact else found.where(found.b(scores) > 0, self._atom(target, scores, target))

    def hull(self, scores: Any, target: Any) -> Hull | None:
        """An atom for each listed labelling."""
        listed = self.labellings(scores, target)
        return None if listed is None else Listed([self._atom(labels, scores, target) for labels in listed])

    def extra_repr(self) -> str:
        """With a note where the decoder is approximate."""
        return super().extra_repr() + ("" if self.exact else ", exact=False")
