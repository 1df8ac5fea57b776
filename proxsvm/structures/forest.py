"""What chains and trees share: labelled nodes, scores of labels and of pairs of labels, padding, and their polytope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._extras import load
from proxsvm._scores import FORBIDDEN, known, require, widened
from proxsvm.structures.base import Structure, gradient, maximum


class Labelling(NamedTuple):
    """The labels of B forests of V nodes, in which every parent precedes its children and node 0 is a root.

    Edge e leads from node ``parents[:, e]`` to node e + 1; where it is False in ``edges``, that node is a root or
    padding. ``nodes`` and ``edges`` are None where nothing is padding.
    """

    labels: Tensor  # [B, V]
    nodes: Tensor | None  # [B, V], bool
    edges: Tensor | None  # [B, V - 1], bool
    parents: Tensor  # [B, V - 1]
    order: Tensor | None  # [B, V]: the index of each node in the input; None for the same order
    size: int  # how many nodes the input has; a lone node was given a second one

    def real(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """``x`` ``[B, V or V - 1, ...]`` with 0 on padding."""
        return x if mask is None else torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - 2)), x, 0)

    def in_input_order(self, x: Tensor) -> Tensor:
        """``x`` ``[B, V, ...]`` with every node at its index in the input, and 0 on padding."""
        x = self.real(x, self.nodes)
        if self.order is None:
            return x[:, : self.size]
        at = self.order.reshape(*self.order.shape, *[1] * (x.dim() - 2)).expand_as(x)
        return torch.zeros_like(x).scatter(1, at, x)


class Forest(Structure):
    """Prepared scores: (unary ``[B, V, K]``, pairwise ``[K, K]`` or ``[B, V - 1, K, K]``), indexed (parent, child)."""

    def expand(self, scores: Any, target: Labelling) -> tuple[Tensor, Tensor]:
        """Pairwise scores that are shared, once for every edge."""
        unary, pairwise = scores
        if pairwise.dim() == 4:
            return unary, pairwise
        B, V, K = unary.shape
        return unary, target.real(pairwise.expand(B, V - 1, K, K), target.edges)

    def features(self, target: Labelling, scores: Any) -> tuple[Tensor, Tensor]:
        """φ: indicators of each node's label and of each edge's pair of labels, zero on padding."""
        unary, _ = scores
        B, V, K = unary.shape
        ones = torch.ones_like(unary[..., :1])
        node = torch.zeros_like(unary).scatter(2, target.labels[..., None], target.real(ones, target.nodes))
        edge = unary.new_zeros(B, V - 1, K * K).scatter(
            2, self._pairs(target, K), target.real(ones[:, 1:], target.edges)
        )
        return node, edge.reshape(B, V - 1, K, K)

    def _pairs(self, target: Labelling, K: int) -> Tensor:
        """The index of each edge's pair of labels in its K² pairwise scores, ``[B, V - 1, 1]``."""
        return (target.labels.gather(1, target.parents) * K + target.labels[:, 1:])[..., None]

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
        return target.real(torch.ones_like(scores[0][..., 0]), target.nodes).sum(1)

    def relative(self, scores: Any, target: Labelling) -> tuple[Any, Tensor]:
        """At every node the scores of the true label and of the edge into it are subtracted, so that large ones do not
        cancel, and from the pairwise scores what all of them have in common: every labelling has as many edges.
        """
        unary, pairwise = scores
        at_node, pairs = unary.gather(2, target.labels[..., None]), self._pairs(target, unary.shape[2])
        common = pairwise.detach().amax()
        pairwise = pairwise - torch.where(common > FORBIDDEN / 2, common, 0.0)  # where nothing is allowed
        of_edge = pairwise.flatten()[pairs] if pairwise.dim() == 2 else pairwise.flatten(2).gather(2, pairs)
        at_edge = F.pad(target.real(of_edge, target.edges), (0, 0, 1, 0))
        if pairwise.dim() == 4:
            pairwise = target.real(pairwise, target.edges)
        forbidden = ((at_node <= FORBIDDEN / 2) | (at_edge <= FORBIDDEN / 2)).flatten(1).any(1)
        return (unary - at_node - at_edge, pairwise), torch.where(forbidden, -torch.inf, at_node.new_zeros(()))

    def moved(self, scores: Any, toward: Any, step: Tensor) -> tuple[Tensor, Tensor]:
        """As for every structure; pairwise scores that samples share become ``[B, K, K]``."""
        (unary, pairwise), (d, e) = scores, toward
        size = step.reshape(-1, *[1] * max(2, pairwise.dim() - 1))
        return unary + step[:, None, None] * d, pairwise + size * e

    def decode(self, scores: Any, target: Labelling) -> Tensor:
        """From the gradient in the unary scores alone."""
        unary, pairwise = scores
        return self.labels((gradient(lambda u: self.total((u, pairwise.detach()), target, maximum), unary),), target)

    def labels(self, phi: Any, target: Labelling) -> Tensor:
        """The labels ``[B, V]``, 0 on padding."""
        return target.in_input_order(phi[0].argmax(2))

    def polytope(self, scores: Any, target: Labelling) -> FlowPolytope:
        """The flow polytope, which is the hull of all labellings."""
        unary, pairwise = self.expand(scores, target)
        B, V, _ = unary.shape
        nodes, edges = (
            torch.ones(B, n, dtype=torch.bool, device=unary.device) if mask is None else mask
            for mask, n in ((target.nodes, V), (target.edges, V - 1))
        )
        return FlowPolytope(nodes, edges, target.parents, (unary > FORBIDDEN / 2, pairwise > FORBIDDEN / 2))


# The input.


def check_scores(name: str, scores: Any) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """The unary scores ``[B, V, K]``, the pairwise ones in the same dtype, and any other input.

    −inf becomes :data:`FORBIDDEN`, which no gradient reaches; NaN and +inf stay, and make the loss NaN or infinite.
    """
    if not isinstance(scores, (tuple, list)) or len(scores) < 2:
        raise TypeError(f"{name} got a {type(scores).__name__} as scores; expected a tuple (unary, pairwise)")
    unary, pairwise, *more = scores
    if not isinstance(unary, Tensor) or unary.dim() != 3 or unary.numel() == 0:
        given = tuple(unary.shape) if isinstance(unary, Tensor) else type(unary).__name__
        raise ValueError(f"{name} got unary scores of {given}; expected [B, T, K]: samples, positions, labels")
    if not isinstance(pairwise, Tensor):
        raise TypeError(f"{name} got pairwise scores that are a {type(pairwise).__name__}; expected a tensor")
    unary = widened(unary)
    return unary.clamp(min=FORBIDDEN), pairwise.to(unary.dtype).clamp(min=FORBIDDEN), tuple(more)


def check_labels(name: str, labels: Any, unary: Tensor, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """Labels ``[B, V]`` as integers, all 0 if None, and which of them are not to be ignored; None for all."""
    if labels is None:
        return torch.zeros(unary.shape[:2], dtype=torch.long, device=unary.device), None
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"{name} got labels of {given}; expected a tensor of label indices (torch.long)")
    if labels.shape != unary.shape[:2]:
        raise ValueError(
            f"{name} got labels of shape {tuple(labels.shape)}; expected {tuple(unary.shape[:2])}, the first two "
            "dimensions of the unary scores"
        )
    kept = labels != ignore_index
    return labels.long(), None if known(kept.all()) else kept


def real_nodes(name: str, given: Any, labels: Tensor, kept: Tensor | None) -> tuple[Tensor | None, bool]:
    """Which nodes exist, ``[B, V]``, from lengths ``[B]`` or a mask; None for all. And whether any may be left out."""
    B, V = labels.shape
    nodes, is_mask = kept, kept is not None
    if given is not None:
        lengths: Tensor = torch.as_tensor(given, device=labels.device)
        if lengths.dtype in (torch.bool, torch.uint8) and lengths.dim() == 2:
            if lengths.shape != (B, V):
                raise ValueError(
                    f"{name} got a mask of shape {tuple(lengths.shape)}; expected that of the labels, ({B}, {V})"
                )
            nodes, is_mask = lengths.bool(), True
        elif lengths.is_floating_point() or lengths.dtype == torch.bool or lengths.shape != (B,):
            raise ValueError(
                f"{name} got lengths of shape {tuple(lengths.shape)} and {lengths.dtype}; expected B = {B} integers, "
                f"or a bool mask of the labels' shape"
            )
        else:
            require((lengths >= 1) & (lengths <= V), f"{name} got a length outside [1, {V}]: leave out empty samples")
            nodes, is_mask = torch.arange(V, device=labels.device) < lengths[:, None], False
        if kept is not None and not known((kept | ~nodes).all()):  # some positions inside are to be ignored
            nodes, is_mask = nodes & kept, True
    if nodes is not None and is_mask:
        require(nodes.any(1), f"{name} got an empty sample: leave out samples whose mask is False everywhere")
    return nodes, is_mask


def standard_form(
    name: str, unary: Tensor, pairwise: Tensor, target: Labelling
) -> tuple[tuple[Tensor, Tensor], Labelling]:
    """Check the labels, and set the scores on padding to zero; a lone node gets a second one, which is padding."""
    K = unary.shape[2]
    labels, nodes, edges, parents, order, size = target
    if nodes is not None:
        labels = torch.where(nodes, labels, 0)
    require((labels >= 0) & (labels < K), f"{name} got a label outside [0, {K}), the K of the scores")
    unary = target.real(unary, nodes)
    if pairwise.dim() == 4:
        pairwise = target.real(pairwise, edges)
    if unary.shape[1] == 1:
        B = len(unary)
        nodes = torch.tensor([True, False], device=unary.device).expand(B, 2)
        unary, labels, edges = F.pad(unary, (0, 0, 0, 1)), F.pad(labels, (0, 1)), nodes[:, 1:]
        parents, order = torch.zeros_like(labels[:, :1]), None
        pairwise = pairwise if pairwise.dim() == 2 else F.pad(pairwise, (0, 0, 0, 0, 0, 1))
    return (unary, pairwise), Labelling(labels, nodes, edges, parents, order, size)


# For ExactQP.


@dataclass(frozen=True)
class FlowPolytope:
    """Node marginals μ and edge marginals ν that agree: on forests, the hull of all labellings.

        μ, ν ≥ 0,  Σ_k μ_root(k) = 1,  Σ_child's label ν_e = μ_parent,  Σ_parent's label ν_e = μ_child

    ``nodes`` ``[B, V]`` and ``edges`` ``[B, V - 1]`` are False on padding; ``allowed`` is False where μ and ν are 0.
    The entropy of a forest is Bethe's, H(μ, ν) = H(μ_root) + Σ_e H(child | parent).
    """

    nodes: Tensor
    edges: Tensor
    parents: Tensor
    allowed: tuple[Tensor, Tensor]

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
        real = [np.repeat(x.cpu().numpy(), n, axis=1) for x, n in ((self.nodes, K), (self.edges, K * K))]
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
