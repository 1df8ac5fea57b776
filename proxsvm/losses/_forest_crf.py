"""The likelihood of labellings of forests: what the conditional random fields over chains and trees share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm.losses._forest import Forest, ForestScores, add_features, allowed, features, relative_scores, silenced
from proxsvm.losses._hulls import Flow, Hull, entropy
from proxsvm.losses._max_sum import sum_product
from proxsvm.losses.base import Atom, ConvexLoss


class ForestCRF(ConvexLoss):
    """−log p(y) over forests; a subclass defines ``_arrange`` and its public ``decode`` and ``marginals``.

    Prepared scores are (unary ``[B, V, K]``, pairwise ``[B, V - 1, K, K]``), a prepared target is a :class:`Forest`.
    """

    @abstractmethod
    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        """Scores and target in the standard form, checked."""

    def prepare(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        """Check everything, and convert it to the standard form."""
        return (scores, target) if isinstance(target, Forest) else self._arrange(scores, target)

    def oracle(self, scores: ForestScores, target: Forest) -> Atom:
        """s = marginals − φ(y), c = the entropy of p, and the value log Z − score(y)."""
        relative, of_truth = relative_scores(scores, target)
        log_z, node, edge = sum_product(*relative, target.links)
        s = add_features((node * target.nodes[..., None], edge * target.edges[..., None, None]), target, -1)
        c = entropy(node, edge, target.nodes, target.edges, target.parents)
        return Atom(s, c, log_z - of_truth)

    def hull(self, scores: ForestScores, target: Forest) -> Hull:
        """The flow polytope under the entropy, which on forests is Bethe's."""
        return Flow(target.nodes, target.edges, target.parents, features(target, scores), allowed(scores))

    def _marginals(self, scores: ForestScores, forest: Forest) -> tuple[Tensor, Tensor]:
        """p of every node's label and of every edge's pair, in the input's order; an edge has its child's index."""
        with torch.no_grad():
            _, node, edge = sum_product(*silenced(scores, forest), forest.links)
            edge = edge * forest.edges[..., None, None]
            return forest.in_input_order(node), forest.in_input_order(F.pad(edge, (0, 0, 0, 0, 1, 0)))
