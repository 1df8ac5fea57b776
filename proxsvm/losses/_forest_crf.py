"""The likelihood of labellings of forests: what the conditional random fields over chains and trees share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm.losses._forest import Forest, ForestScores, add_features, allowed, features, silenced, true_scores
from proxsvm.losses._hulls import Flow, Hull, entropy
from proxsvm.losses._max_sum import sum_product
from proxsvm.losses.base import Atom, ConvexLoss, Origin, detached, without_autocast


class _Tangent(torch.autograd.Function):
    """The values ``[B]`` of atoms with their gradients s, computed already: no graph of the recursion is needed."""

    @staticmethod
    def forward(value: Tensor, *_: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:3])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        node, edge = ctx.saved_tensors
        return None, None, None, grad[:, None, None] * node, grad[:, None, None, None] * edge


class ForestCRF(ConvexLoss):
    """−log p(y) over forests; a subclass writes ``_arrange`` and its public ``decode`` and ``marginals``.

    Prepared scores are (unary ``[B, V, K]``, pairwise ``[B, V - 1, K, K]``), a prepared target is a :class:`Forest`.
    """

    @abstractmethod
    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        """Scores and target in the standard form, checked."""

    def prepare(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        """Check everything, and bring it to the standard form."""
        return (scores, target) if isinstance(target, Forest) else self._arrange(scores, target)

    def oracle(self, scores: ForestScores, target: Forest) -> Atom:
        """s = marginals − φ(y), c = the entropy of p, and the value log Z − score(y).

        Where the scores are taken relative to those of y, the value is log Z, and nothing cancels.
        """
        unary, pairwise = silenced(scores, target)
        at_node, at_edge = true_scores((unary, pairwise), target)
        shift = torch.where(at_node == -torch.inf, 0.0, at_node)
        log_z, node, edge = sum_product(unary - shift - at_edge, pairwise, target.links)
        s = add_features((node * target.nodes[..., None], edge * target.edges[..., None, None]), target, -1)
        c = entropy(node, edge, target.nodes, target.edges, target.parents)
        return Atom(s, c, log_z - (at_node - shift).sum((1, 2)))

    def evaluate(self, scores: ForestScores, target: Forest, sample_weight: Tensor | None = None) -> Tensor:
        """Σ_i p_i (log Z_i − score_i(y_i))."""
        p = self.coefficients(scores, target, sample_weight)
        with without_autocast(scores[0]):
            with torch.no_grad():
                atom = self.oracle(detached(scores), target)
            each: Tensor = _Tangent.apply(atom.value, *atom.s, *scores)  # type: ignore[no-untyped-call, unused-ignore]
            if self.reduction == "none":
                return p * each
            value = torch.dot(p, each) if isinstance(p, Tensor) else p * each.sum()
        return self._recorded(value, Origin(self, scores, target, p, atom))

    def hull(self, scores: ForestScores, target: Forest) -> Hull:
        """The flow polytope under the entropy, which on forests is Bethe's."""
        return Flow(target.nodes, target.edges, target.parents, features(target, scores), allowed(scores))

    def _marginals(self, scores: ForestScores, forest: Forest) -> tuple[Tensor, Tensor]:
        """p of every node's label and of every edge's pair, in the order of the input; an edge stands at its child."""
        with torch.no_grad():
            _, node, edge = sum_product(*silenced(scores, forest), forest.links)
            edge = edge * forest.edges[..., None, None]
            return forest.in_input_order(node), forest.in_input_order(F.pad(edge, (0, 0, 0, 0, 1, 0)))
