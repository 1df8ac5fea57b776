"""What chains and trees share: labelled nodes, scores of labels and of pairs of labels, padding, and their polytope."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, one_hot, require
from proxsvm.structures.base import Structure, gradient
from proxsvm.structures.polytopes import FlowPolytope
from proxsvm.structures.semirings import maximum


class Labelling(NamedTuple):
    """The labels of B forests of V nodes, in which every parent precedes its children and node 0 is a root.

    Edge e leads from node ``parents[:, e]`` to node e + 1; where it is False in ``edges``, that node is a root or
    padding. Where ``full``, everything is True in ``nodes`` and ``edges``.
    """

    labels: Tensor  # [B, V]
    nodes: Tensor  # [B, V], bool
    edges: Tensor  # [B, V - 1], bool
    parents: Tensor  # [B, V - 1]
    order: Tensor | None  # [B, V]: the index of each node in the input; None for the same order
    full: bool = False

    def real(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x`` ``[B, V or V - 1, ...]`` with 0 on padding."""
        return x if self.full else torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - 2)), x, 0)

    def in_input_order(self, x: Tensor) -> Tensor:
        """``x`` ``[B, V, ...]`` with every node at its index in the input, and 0 on padding."""
        x = self.real(x, self.nodes)
        if self.order is None:
            return x
        at = self.order.reshape(*self.order.shape, *[1] * (x.dim() - 2)).expand_as(x)
        return torch.zeros_like(x).scatter(1, at, x)


class Forest(Structure):
    """Prepared scores: (unary ``[B, V, K]``, pairwise ``[K, K]`` or ``[B, V - 1, K, K]``), indexed (parent, child)."""

    ignore_index = -100

    def expand(self, scores: Any, target: Labelling) -> tuple[Tensor, Tensor]:
        """Pairwise scores that are shared, once for every edge."""
        unary, pairwise = scores
        if pairwise.dim() == 4:
            return unary, pairwise
        B, V, K = unary.shape
        return unary, target.real(pairwise.expand(B, V - 1, K, K), target.edges)

    def features(self, target: Labelling, scores: Any) -> tuple[Tensor, Tensor]:
        """φ: indicators of each node's label and of each edge's pair of labels, zero on padding."""
        K = scores[0].shape[2]
        node, edge = one_hot(scores[0], target.labels, K), one_hot(scores[0], self._pairs(target, K), K * K)
        return target.real(node, target.nodes), target.real(edge.reshape(*edge.shape[:2], K, K), target.edges)

    def _pairs(self, target: Labelling, K: int) -> Tensor:
        """The index of each edge's pair of labels in its K² pairwise scores, ``[B, V - 1]``."""
        return target.labels.gather(1, target.parents) * K + target.labels[:, 1:]

    def cost(self, target: Labelling, scores: Any, table: Tensor | None = None) -> tuple[Tensor, None]:
        """Δ: the sum of the nodes' costs, by default the number of wrong labels."""
        unary = scores[0]
        if table is None:
            delta = torch.ones_like(unary).scatter(2, target.labels[..., None], 0.0)
        elif len(table) != unary.shape[2]:
            raise ValueError(f"cost is for {len(table)} labels, but the scores have {unary.shape[2]}")
        else:
            delta = table.to(unary).T[target.labels]
        return target.real(delta, target.nodes), None

    def size(self, target: Labelling, scores: Any) -> Tensor:
        """The number of nodes."""
        return target.nodes.sum(1).to(scores[0])

    def relative(self, scores: Any, target: Labelling) -> tuple[Any, Tensor]:
        """At every node the scores of the true label and of the edge into it are subtracted, so that large ones do not
        cancel, and from the pairwise scores what all of them have in common: every labelling has as many edges.
        """
        unary, pairwise = scores
        if pairwise.numel():
            common = pairwise.detach().amax()
            pairwise = pairwise - torch.where(common > FORBIDDEN / 2, common, 0.0)  # where nothing is allowed
        of_node, of_edge = self.scores_of((unary, pairwise), target)
        if pairwise.dim() == 4:
            pairwise = target.real(pairwise, target.edges)
        both = of_node + F.pad(of_edge, (1, 0))
        forbidden = torch.minimum(of_node, F.pad(of_edge, (1, 0))).amin(1) <= FORBIDDEN / 2
        return (unary - both[..., None], pairwise), torch.where(forbidden, -torch.inf, both.new_zeros(()))

    def scores_of(self, scores: Any, target: Labelling) -> tuple[Tensor, Tensor]:
        """The score of each node's label, ``[B, V]``, and of each edge's pair, ``[B, V - 1]``; 0 on padding."""
        unary, pairwise = scores
        pairs = self._pairs(target, unary.shape[2])
        of_edge = pairwise.flatten()[pairs] if pairwise.dim() == 2 else pairwise.flatten(2).gather(2, pairs[..., None])
        of_node = unary.gather(2, target.labels[..., None]).squeeze(2)
        return target.real(of_node, target.nodes), target.real(of_edge.reshape(pairs.shape), target.edges)

    def decode(self, scores: Any, target: Labelling) -> Tensor:
        """From the gradient in the unary scores alone."""
        unary, pairwise = scores
        return self.labels((gradient(lambda u: self.total((u, pairwise.detach()), target, maximum), unary),), target)

    def labels(self, phi: Any, target: Labelling) -> Tensor:
        """The labels ``[B, V]``, 0 on padding."""
        return target.in_input_order(phi[0].argmax(2))

    def marginals(self, mu: Any, target: Labelling) -> tuple[Tensor, Tensor]:
        """p(y_v) ``[B, V, K]`` and p(y_parent(v), y_v) ``[B, V, K, K]``, 0 on padding and at the edge into a root."""
        node, edge = mu
        return target.in_input_order(node), target.in_input_order(F.pad(edge, (0, 0, 0, 0, 1, 0)))

    def polytope(self, scores: Any, target: Labelling) -> FlowPolytope | None:
        """The flow polytope, which is the hull of all labellings; of a lone node there is no flow."""
        if target.edges.shape[1] == 0:
            return None
        allowed = tuple(u > FORBIDDEN / 2 for u in self.expand(scores, target))
        return FlowPolytope(target.nodes, target.edges, target.parents, allowed)


def standard_form(
    name: str, unary: Tensor, pairwise: Tensor, target: Labelling
) -> tuple[tuple[Tensor, Tensor], Labelling]:
    """Check the labels, and set the labels and scores on padding to zero."""
    K = unary.shape[2]
    labels = target.real(target.labels, target.nodes)
    require((labels >= 0) & (labels < K), f"{name} got a label outside [0, {K}), the K of the scores")
    if pairwise.dim() == 4:
        pairwise = target.real(pairwise, target.edges)
    return (target.real(unary, target.nodes), pairwise), target._replace(labels=labels)
