"""The structured hinge over forests: what chains and trees share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from proxsvm.losses._classes import as_cost
from proxsvm.losses._forest import (
    Forest,
    ForestScores,
    add_features,
    allowed,
    best_labels,
    features,
    relative_scores,
    true_scores,
)
from proxsvm.losses._hulls import Flow, Hull
from proxsvm.losses._max_sum import best_labelling, sum_product
from proxsvm.losses.base import Atom, Reduction
from proxsvm.losses.structured_hinge import StructuredHinge


class ForestHinge(StructuredHinge):
    """The structured hinge over forests; a subclass defines ``_arrange`` and ``decode``.

    Prepared scores are (unary ``[B, V, K]``, pairwise ``[B, V - 1, K, K]``), a prepared target is a :class:`Forest`.
    """

    node_cost: Tensor | None

    def __init__(
        self,
        cost: Tensor | None = None,
        *,
        normalize: bool = False,
        smooth: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("node_cost", None if cost is None else as_cost(cost))
        self.normalize, self.smooth = normalize, smooth

    @abstractmethod
    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        """Scores and target in the standard form, checked."""

    def prepare(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        """Check everything, and convert it to the standard form."""
        if isinstance(target, Forest):
            return scores, target  # already prepared
        scores, forest = self._arrange(scores, target)
        K = scores[0].shape[2]
        if self.node_cost is not None and len(self.node_cost) != K:
            raise ValueError(f"cost is for {len(self.node_cost)} labels, but the scores have {K}")
        if self.normalize:
            forest = forest._replace(weight=forest.weight / forest.weight.sum(1, keepdim=True))
        return scores, forest

    # φ, Δ and the best labelling.

    def features(self, labelling: Forest, scores: ForestScores) -> ForestScores:
        """φ: indicators of each node's label and of each edge's pair of labels, zero on padding."""
        return features(labelling, scores)

    def _atom(self, labelling: Forest, scores: ForestScores, target: Forest) -> Atom:
        s = add_features(self.features(labelling, scores), target, -1)
        return self._valued(Atom(s, self.cost(labelling, target).to(scores[0])), scores, target)

    def _valued(self, atom: Atom, scores: ForestScores, target: Forest) -> Atom:
        """The atom with its value, from scores relative to those of y: at every node and edge s sums to 0."""
        at_node, at_edge = true_scores(scores, target)
        return atom.about(scores, (at_node, at_edge[:, 1:, None]))

    def _task_loss(self, unary: Tensor, target: Forest) -> Tensor:
        """What each label would cost at each node, ``[B, V, K]``."""
        if self.node_cost is not None:
            delta = self.node_cost.to(unary).T[target.labels]
        else:
            delta = torch.ones_like(unary).scatter_(2, target.labels[..., None], 0)
        return delta * target.weight[..., None]

    def cost(self, labelling: Forest, target: Forest) -> Tensor:
        """Δ: the sum of the nodes' costs, by default the number of wrong labels."""
        wrong = labelling.labels != target.labels
        at_node = wrong if self.node_cost is None else self.node_cost[labelling.labels, target.labels]
        return (at_node * target.weight).sum(1)

    def _best(self, scores: ForestScores, target: Forest) -> Forest:
        """The best labelling of the scores with Δ added to those of the nodes."""
        (unary, pairwise), _ = relative_scores(scores, target)
        return target._replace(labels=best_labelling(unary + self._task_loss(unary, target), pairwise, target.links))

    def _labels(self, scores: ForestScores, target: Forest, *, augmented: bool) -> Tensor:
        """The best labels in the order of the input, 0 on padding; ``augmented`` with the target's Δ, or not."""
        unary, pairwise = scores
        return best_labels((unary + self._task_loss(unary, target) if augmented else unary, pairwise), target)

    def smoothed(self, scores: ForestScores, target: Forest) -> Atom:
        """s = marginals − φ(y), with the expected Δ: the gradient of the conditional random field's likelihood."""
        relative, _ = relative_scores(scores, target)
        _, node, edge = sum_product(*relative, target.links)
        s = add_features((node * target.nodes[..., None], edge * target.edges[..., None, None]), target, -1)
        expected = (node * self._task_loss(node, target)).sum((1, 2))
        return self._valued(Atom(s, expected), scores, target)

    def hull(self, scores: Any, target: Any) -> Hull | None:
        """The flow polytope."""
        truth, delta = self.features(target, scores), self._task_loss(scores[0], target)
        return Flow(target.nodes, target.edges, target.parents, truth, allowed(scores), delta)

    def extra_repr(self) -> str:
        """With the options of Δ."""
        cost = "" if self.node_cost is None else f"cost={tuple(self.node_cost.shape)}, "
        return cost + ("normalize=True, " if self.normalize else "") + super().extra_repr()
