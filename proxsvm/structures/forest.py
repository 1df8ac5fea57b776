"""What chains and trees share: labelled nodes, scores of labels and of pairs of labels, padding, and their polytope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._extras import load
from proxsvm._scores import FORBIDDEN, one_hot, require
from proxsvm.structures._checks import label_costs
from proxsvm.structures.base import Marginals, Structure


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
        return target.real(label_costs(target.labels, scores[0], table), target.nodes), None

    def size(self, target: Labelling, scores: Any) -> Tensor:
        return target.nodes.sum(1).to(scores[0])

    def relative(self, scores: Any, target: Labelling) -> tuple[Any, Tensor]:
        """At every node the scores of the true label and of the edge into it are subtracted, so that large ones do not
        cancel, and from the pairwise scores what all of them have in common: every labelling has as many edges.
        """
        unary, pairwise = scores
        if pairwise.numel():
            common = pairwise.detach()
            if pairwise.dim() == 4 and not target.full:  # the padding has none
                common = common.masked_fill(~target.edges[..., None, None], -torch.inf)
            common = common.amax()
            pairwise = pairwise - torch.where(common > FORBIDDEN / 2, common, 0.0)  # where nothing is allowed
        of_node, of_edge = self.scores_of((unary, pairwise), target)
        if pairwise.dim() == 4:
            pairwise = target.real(pairwise, target.edges)
        of_edge = F.pad(of_edge, (1, 0))
        forbidden = torch.minimum(of_node, of_edge).amin(1) <= FORBIDDEN / 2
        unary = unary - of_node[..., None] - of_edge[..., None]  # in this order: the first difference is exact
        return (unary, pairwise), torch.where(forbidden, -torch.inf, of_node.new_zeros(()))

    def tables(self, scores: Any) -> Sequence[Tensor]:
        """The pairwise scores of each edge, ``[K, K]`` or ``[B, K, K]``."""
        unary, pairwise = scores
        return pairwise.unbind(1) if pairwise.dim() == 4 else [pairwise] * (unary.shape[1] - 1)

    def scores_of(self, scores: Any, target: Labelling) -> tuple[Tensor, Tensor]:
        """The score of each node's label, ``[B, V]``, and of each edge's pair, ``[B, V - 1]``; 0 on padding."""
        unary, pairwise = scores
        pairs = self._pairs(target, unary.shape[2])
        of_edge = pairwise.flatten()[pairs] if pairwise.dim() == 2 else pairwise.flatten(2).gather(2, pairs[..., None])
        of_node = unary.gather(2, target.labels[..., None]).squeeze(2)
        return target.real(of_node, target.nodes), target.real(of_edge.reshape(pairs.shape), target.edges)

    def labels(self, phi: Any, target: Labelling) -> Tensor:
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


@dataclass(frozen=True)
class FlowPolytope(Marginals):
    """Node marginals μ and edge marginals ν that agree: on forests, the hull of all labellings.

        μ, ν ≥ 0,  Σ_k μ_root(k) = 1,  Σ_child's label ν_e = μ_parent,  Σ_parent's label ν_e = μ_child

    ``nodes``, ``edges`` and ``parents`` are a ``Labelling``'s; ``allowed`` is False where μ and ν are 0.
    The entropy of a forest is Bethe's, H(μ_root) + Σ_e H(child | parent).
    """

    nodes: Tensor
    edges: Tensor
    parents: Tensor
    allowed: tuple[Tensor, ...]

    def entropy(self, mu: tuple[Tensor, ...]) -> Tensor:
        """H(μ, ν), ``[B]``: a root adds H(μ), every other node H(child | parent) = H(ν) − H(μ_parent)."""
        node, edge = (x.clamp(min=0) for x in mu)
        of_node: Tensor = torch.special.entr(node).sum(2) * self.nodes
        of_edge: Tensor = torch.special.entr(edge).sum((2, 3)) - of_node.gather(1, self.parents)
        return of_node[:, 0] + torch.where(self.edges, of_edge, of_node[:, 1:]).sum(1)

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        """μ ``[B, V K]`` and ν ``[B, (V - 1) K²]``."""
        cp, sparse = load("cvxpy", extra="qp"), load("scipy.sparse", extra="qp")
        (B, V, K), E = self.allowed[0].shape, self.edges.shape[1]
        mu, nu = cp.Variable((B, V * K), nonneg=True), cp.Variable((B, E * K * K), nonneg=True)
        over_child = sparse.kron(sparse.eye(E * K), np.ones((K, 1)))
        over_parent = sparse.kron(sparse.eye(E), sparse.kron(np.ones((K, 1)), sparse.eye(K)))
        picks = [
            sparse.kron(sparse.csr_matrix((np.ones(E), (parents, range(E))), shape=(V, E)), sparse.eye(K))
            for parents in self.parents.tolist()
        ]
        may = [x.flatten(1).cpu().numpy() for x in self.allowed]
        constraints = [cp.sum(mu[:, :K], axis=1) == 1, nu @ over_parent == mu[:, K:]]
        constraints += [nu[i] @ over_child == mu[i] @ pick for i, pick in enumerate(picks)]
        constraints += [cp.multiply(~ok, x) == 0 for ok, x in zip(may, (mu, nu), strict=True) if not ok.all()]
        masks = (self.nodes, K), (self.edges, K * K)
        real = [np.repeat(x.cpu().numpy(), n, axis=1) for x, n in masks]
        both = tuple(cp.multiply(m * ok, x) for m, ok, x in zip(real, may, (mu, nu), strict=True))
        if not with_entropy:
            return both, constraints, None
        above = [mu[i] @ (pick @ over_child.T) for i, pick in enumerate(picks)]
        return both, constraints, cp.hstack([self._entropy(i, mu[i], nu[i], above[i]) for i in range(B)])

    def _entropy(self, i: int, mu: Any, nu: Any, above: Any) -> Any:
        """H of sample i; ``above``: μ_parent for every entry of ν. Entries that must be zero are left out."""
        cp, K = load("cvxpy", extra="qp"), self.allowed[0].shape[2]
        label, pair = (x[i].cpu().numpy() for x in self.allowed)
        parent, child = label[self.parents[i].cpu().numpy()], label[1:]
        may = pair & parent[:, :, None] & child[:, None, :] & self.nodes[i, 1:].cpu().numpy()[:, None, None]
        at, root = np.flatnonzero(may), np.flatnonzero(label[0])
        return cp.sum(cp.entr(mu[:K][root])) - cp.sum(cp.rel_entr(nu[at], above[at]))
