"""The structured hinge: of a structure, or with a decoder of your own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from proxsvm._scores import Scores, as_column, inner, like, parts
from proxsvm.losses._classes import as_cost
from proxsvm.losses.base import Atom, PiecewiseLinearLoss, Reduction
from proxsvm.losses.hulls import Hull, Listed, MarginalHull, paid
from proxsvm.structures import Structure, log_sum_exp, maximum
from proxsvm.structures.base import add, as_structure, gradient


class StructuredHinge(PiecewiseLinearLoss):
    """ℓ(u; y) = max over labellings ȳ of ⟨φ(ȳ) − φ(y), u⟩ + Δ(ȳ, y).

    ``StructuredHinge(structure)`` is the hinge of a :class:`~proxsvm.structures.Structure`; scores and targets are the
    structure's. The maximum is found by loss-augmented inference: Δ adds to the scores of the parts.

    A subclass with a decoder of its own defines its labellings in three methods instead: :meth:`features` is φ,
    :meth:`cost` is Δ and :meth:`decode` finds the best ȳ. A fourth, :meth:`labellings`, may list them all if there are
    few: then the loss can be checked and verified by enumeration. A labelling is a tensor (or any object) for the whole
    batch; the target is one of them. ``docs/extend.md`` shows a complete example.

    Args:
        structure: whose labellings these are.
        cost: the Δ of one label as a ``[K, K]`` matrix indexed (predicted, true), summed over the parts that have one;
            if None, the structure's own, such as the number of wrong labels.
        normalize: divide Δ by the number of parts (the length of a sequence).
        smooth: train with the marginals of the structure, s = μ − φ(y) with the expected Δ, for every sample where that
            can raise the dual, and with the hinge's own atom for the others.
        reduction: as in torch, see :class:`~proxsvm.losses.ConvexLoss`.

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

    node_cost: Tensor | None

    def __init__(
        self,
        structure: Structure | None = None,
        *,
        cost: Tensor | None = None,
        normalize: bool = False,
        smooth: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.structure, self.normalize, self.smooth = structure, normalize, smooth
        self.register_buffer("node_cost", None if cost is None else as_cost(cost))
        if structure is not None:
            self.exact = as_structure(structure).exact
            if smooth and not structure.likelihood:
                raise ValueError(f"smooth=True needs marginals, which {type(structure).__name__} does not have")

    # With a structure.

    def prepare(self, scores: Any, target: Any) -> tuple[Any, Any]:
        if self.structure is None:
            return super().prepare(scores, target)
        return self.structure.labelled(type(self).__name__, scores, target)

    def expand(self, scores: Any, target: Any) -> Any:
        return scores if self.structure is None else self.structure.expand(scores, target)

    def _part_costs(self, target: Any, scores: Any) -> Any:
        """Δ as what each part costs: Δ(ȳ, y) = ⟨cost, φ(ȳ) − φ(y)⟩."""
        assert self.structure is not None
        cost = self.structure.cost(target, scores, self.node_cost)
        if not self.normalize:
            return cost
        size = self.structure.size(target, scores)
        return like(cost, tuple(c if c is None else c / as_column(size, c) for c in parts(cost)))

    def values(self, scores: Any, target: Any) -> tuple[Tensor, Atom | None]:
        """The recursion itself, differentiated by autograd; by the atom where there is none."""
        if self.structure is None or self.smooth or not self.exact:
            return super().values(scores, target)
        return self.structure.excess(add(scores, self._part_costs(target, scores)), target, maximum), None

    def smoothed(self, scores: Any, target: Any) -> Atom:
        """s = μ − φ(y), with the expected Δ: the gradient of the likelihood."""
        if self.structure is None:
            return super().smoothed(scores, target)
        structure = self.structure
        return self._along(gradient(lambda u: structure.excess(u, target, log_sum_exp), scores), scores, target)

    def _along(self, s: Any, scores: Any, target: Any) -> Atom:
        """The atom of s, whose value is that of relative scores."""
        assert self.structure is not None
        c = paid(self._part_costs(target, scores), s)
        relative, truth = self.structure.relative(scores, target)
        return Atom(s, c, torch.where(truth == -torch.inf, torch.inf, inner(s, relative) + c))

    def oracle(self, scores: Any, target: Any) -> Atom:
        """s = φ(ȳ) − φ(y), c = Δ(ȳ, y) at the decoded ȳ; an approximate ȳ that is worse than y is not used.

        A loss with an approximate decoder sets ``exact`` to False: steps still ascend the dual.
        """
        if self.structure is None:
            found = self._atom(self.decode(scores, target), scores, target)
        else:
            best = self.structure.best(add(scores, self._part_costs(target, scores)), target)
            found = self._along(add(best, self.structure.features(target, scores), -1), scores, target)
        if self.exact:
            return found
        zero = Atom(like(scores, tuple(torch.zeros_like(x) for x in parts(found.s))), 0 * found.offset)
        return zero.where(found.value_at(scores) <= 0, found)  # a NaN stays in the value

    def hull(self, scores: Any, target: Any) -> Hull | None:
        if self.structure is not None:
            return MarginalHull.of(self.structure, scores, target, self._part_costs(target, scores))
        listed = self.labellings(scores, target)
        return None if listed is None else Listed([self._atom(labels, scores, target) for labels in listed])

    def decode(self, scores: Any, target: Any = None, **given: Any) -> Any:
        """The labelling with the largest ⟨φ(ȳ), u⟩ + Δ(ȳ, y) for each sample: loss-augmented inference.

        Without a target it is the prediction, the labelling with the largest ⟨φ(ȳ), u⟩; ``given`` is then what the
        structure needs to know of the sample (``lengths``, ``parents``, ``sizes``). Training never needs that.
        Without a structure, the default tries every labelling that :meth:`labellings` lists.
        """
        if self.structure is not None:
            u, y = self.structure.prepare(type(self).__name__, scores, target, **given)
            return self.structure.decode(u if target is None else add(u, self._part_costs(y, u)), y)
        listed = self.labellings(scores, target)
        if listed is None:
            raise NotImplementedError(f"{type(self).__name__} must define decode(scores, target) or labellings(...)")
        every = list(listed)
        value = torch.stack([inner(self.features(labels, scores), scores) for labels in every])
        if target is not None:
            value = value + torch.stack([self.cost(labels, target) for labels in every])
        best = value.argmax(0)
        return torch.stack(every)[best, torch.arange(len(best), device=best.device)]

    # With a decoder of your own.

    def features(self, labelling: Any, scores: Any) -> Scores:
        """φ(ȳ) for each sample, with the structure and shapes of the scores."""
        raise NotImplementedError(f"{type(self).__name__} must define features(labelling, scores)")

    def cost(self, labelling: Any, target: Any) -> Tensor:
        """Δ(ȳ, y) ≥ 0 for each sample, ``[n]``, with Δ(y, y) = 0."""
        raise NotImplementedError(f"{type(self).__name__} must define cost(labelling, target)")

    def labellings(self, scores: Any, target: Any) -> Iterable[Any] | None:
        """Every labelling, each for the whole batch; only for structures that are small enough to be listed."""
        return None

    def _atom(self, labelling: Any, scores: Any, target: Any) -> Atom:
        s = add(self.features(labelling, scores), self.features(target, scores), -1)
        return Atom(s, self.cost(labelling, target).to(parts(scores)[0]))

    def extra_repr(self) -> str:
        cost = "" if self.node_cost is None else f"cost={tuple(self.node_cost.shape)}, "
        name = f"{type(self.structure).__name__}(), " if type(self) is StructuredHinge and self.structure else ""
        options = name + cost + ("normalize=True, " if self.normalize else "")
        return options + super().extra_repr() + ("" if self.exact else ", exact=False")
