"""What the losses over chains and trees share: everything but the form of their input."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm.extras import load
from proxsvm.losses.base import Atom, Polytope, Reduction, require
from proxsvm.losses.classes import as_cost
from proxsvm.losses.max_sum import best_labelling, marginals
from proxsvm.losses.structured_hinge import StructuredHinge, finite


class Forest(NamedTuple):
    """A labelling of B forests in the standard form of :mod:`proxsvm.losses.max_sum`, with one root in front.

    ``nodes`` and ``edges`` are False on padding, where scores, features and costs are all zero.
    """

    labels: Tensor  # [B, V]
    nodes: Tensor  # [B, V], bool
    edges: Tensor  # [B, V - 1], bool
    parents: Tensor  # [B, V - 1]
    order: Tensor  # [B, V]: where each node stands in the input


class ForestHinge(StructuredHinge):
    """The structured hinge over forests; a subclass writes ``prepare`` and ``decode``.

    Prepared scores are (unary ``[B, V, K]``, pairwise ``[B, V - 1, K, K]``), a prepared target is a :class:`Forest`.
    """

    node_cost: Tensor | None
    is_chain: bool = False

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

    def _standard(self, unary: Tensor, pairwise: Tensor, forest: Forest) -> tuple[tuple[Tensor, Tensor], Forest]:
        """Check labels and values, and set everything on padding to zero; a lone node gets one of padding beside it."""
        name, K = type(self).__name__, unary.shape[2]
        if self.node_cost is not None and len(self.node_cost) != K:
            raise ValueError(f"cost is for {len(self.node_cost)} labels, but the scores have {K}")
        labels, nodes, edges, parents, order = forest
        labels = torch.where(nodes, labels, 0)
        require((labels >= 0) & (labels < K), f"{name} got a label outside [0, {K}), the K of the scores")
        shared = _once(pairwise)
        unary, pairwise = _masked((unary, pairwise.to(unary.dtype)), forest)
        values = shared if shared.numel() < pairwise.numel() else pairwise
        require(
            finite(unary) & finite(values),
            f"{name} got scores that are NaN or infinite; forbid a transition by a large negative score, such as -1e4",
        )
        if unary.shape[1] == 1:
            unary, labels, nodes = F.pad(unary, (0, 0, 0, 1)), F.pad(labels, (0, 1)), F.pad(nodes, (0, 1))
            pairwise = F.pad(pairwise, (0, 0, 0, 0, 0, 1))
            edges, parents, order = F.pad(edges, (0, 1)), F.pad(parents, (0, 1)), F.pad(order, (0, 1), value=1)
        return (unary, pairwise), Forest(labels, nodes, edges, parents, order)

    def _parents(self, target: Forest) -> Tensor | None:
        return None if self.is_chain else target.parents

    # φ, Δ and the best labelling.

    def features(self, labelling: Forest, scores: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """φ: indicators of each node's label and of each edge's pair of labels, zero on padding."""
        phi = torch.zeros_like(scores[0]), torch.zeros_like(scores[1])
        return _add_features(phi, labelling, 1)

    def _atom(self, labelling: Forest, scores: tuple[Tensor, Tensor], target: Forest) -> Atom:
        s = _add_features(self.features(labelling, scores), target, -1)
        return Atom(s, self.cost(labelling, target).to(scores[0]))

    def _task_loss(self, unary: Tensor, target: Forest) -> Tensor:
        """What each label would cost at each node, ``[B, V, K]``."""
        if self.node_cost is not None:
            delta = self.node_cost.to(unary).T[target.labels]
        else:
            delta = torch.ones_like(unary).scatter_(2, target.labels[..., None], 0)
        return delta * self._weight(target).to(unary)[..., None]

    def _weight(self, target: Forest) -> Tensor:
        """How much each node counts in Δ, ``[B, V]``: 1 or 1/length, and 0 on padding."""
        return target.nodes / target.nodes.sum(1, keepdim=True) if self.normalize else target.nodes

    def cost(self, labelling: Forest, target: Forest) -> Tensor:
        """Δ: the sum of the nodes' costs, by default the number of wrong labels."""
        wrong = labelling.labels != target.labels
        at_node = wrong if self.node_cost is None else self.node_cost[labelling.labels, target.labels]
        return (at_node * self._weight(target)).sum(1)

    def oracle(self, scores: tuple[Tensor, Tensor], target: Forest) -> Atom:
        """The best labelling of the scores with Δ added to the nodes'."""
        unary, pairwise = _masked(scores, target)
        labels = best_labelling(unary + self._task_loss(unary, target), pairwise, self._parents(target))
        return self._atom(target._replace(labels=labels), scores, target)

    def _labels(self, scores: tuple[Tensor, Tensor], target: Forest, *, augmented: bool) -> Tensor:
        """The best labels in the order of the input, 0 on padding; ``augmented`` with the target's Δ, or not."""
        with torch.no_grad():
            unary = scores[0] + self._task_loss(scores[0], target) if augmented else scores[0]
            best = best_labelling(unary, scores[1], self._parents(target))
        return torch.zeros_like(best).scatter_(1, target.order, best * target.nodes)

    def smoothed(self, scores: tuple[Tensor, Tensor], target: Forest) -> Atom:
        """s = marginals − φ(y), with the expected Δ: the gradient of the conditional random field's likelihood."""
        unary, pairwise = _masked(scores, target)
        node, edge = marginals(unary, pairwise, self._parents(target))
        truth = self.features(target, scores)
        s = (node * target.nodes[..., None] - truth[0], edge * target.edges[..., None, None] - truth[1])
        return Atom(s, (node * self._task_loss(unary, target)).sum((1, 2)))

    def polytope(self, scores: tuple[Tensor, Tensor], target: Forest) -> Polytope:
        """The flow polytope: node and edge marginals that agree, which on forests is the hull of the labellings.

        μ, ν ≥ 0,  Σ_k μ_root(k) = 1,  Σ_child's label ν_e = μ_parent,  Σ_parent's label ν_e = μ_child
        """
        cp, sparse = load("cvxpy", extra="qp"), load("scipy.sparse", extra="qp")
        unary, pairwise = scores
        (B, V, K), E = unary.shape, pairwise.shape[1]
        mu, nu = cp.Variable((B, V * K), nonneg=True), cp.Variable((B, E * K * K), nonneg=True)
        over_child = sparse.kron(sparse.eye(E * K), np.ones((K, 1)))
        over_parent = sparse.kron(sparse.eye(E), sparse.kron(np.ones((K, 1)), sparse.eye(K)))
        constraints = [cp.sum(mu[:, :K], axis=1) == 1, nu @ over_parent == mu[:, K:]]
        for i, parents in enumerate(target.parents.tolist()):
            pick = sparse.kron(sparse.csr_matrix((np.ones(E), (parents, range(E))), shape=(V, E)), sparse.eye(K))
            constraints.append(nu[i] @ over_child == mu[i] @ pick)
        truth = [x.cpu().double().numpy().reshape(B, -1) for x in self.features(target, scores)]
        real = [x.cpu().double().numpy() for x in (target.nodes, target.edges)]
        s = (
            cp.multiply(np.repeat(real[0], K, axis=1), mu) - truth[0],
            cp.multiply(np.repeat(real[1], K * K, axis=1), nu) - truth[1],
        )
        delta = self._task_loss(unary, target).cpu().double().numpy().reshape(B, -1)
        return Polytope(s, cp.sum(cp.multiply(delta, mu), axis=1), constraints)

    def extra_repr(self) -> str:
        """With the options of Δ."""
        cost = "" if self.node_cost is None else f"cost={tuple(self.node_cost.shape)}, "
        return cost + ("normalize=True, " if self.normalize else "") + super().extra_repr()


def _add_features(s: tuple[Tensor, Tensor], labelling: Forest, sign: int) -> tuple[Tensor, Tensor]:
    """s + sign · φ(labelling), in place."""
    labels, nodes, edges, parents, _ = labelling
    node, edge = s
    pair = labels.gather(1, parents) * node.shape[2] + labels[:, 1:]
    node.scatter_add_(2, labels[..., None], sign * nodes[..., None].to(node))
    edge.flatten(2).scatter_add_(2, pair[..., None], sign * edges[..., None].to(edge))
    return s


def _masked(scores: tuple[Tensor, Tensor], target: Forest) -> tuple[Tensor, Tensor]:
    """Scores that are zero on padding, so that it adds the same to every labelling."""
    unary, pairwise = scores
    if _padded(target.nodes):
        unary = torch.where(target.nodes[..., None], unary, 0.0)
    if _padded(target.edges):
        pairwise = torch.where(target.edges[..., None, None], pairwise, 0.0)
    return unary, pairwise


def _padded(mask: Tensor) -> bool:
    """Whether there may be padding. One True expanded to a mask says that there is none, and nothing need be copied."""
    return any(mask.stride())


def _once(x: Tensor) -> Tensor:
    """``x`` without the repetitions that expanding made."""
    for dim in range(x.dim()):
        if x.stride(dim) == 0 and x.shape[dim] > 1:
            x = x.narrow(dim, 0, 1)
    return x


def real_nodes(name: str, given: Any, labels: Tensor) -> Tensor:
    """The mask of the nodes that are not padding, ``[B, V]``, from lengths ``[B]`` or a mask, or all of them."""
    B, V = labels.shape
    if given is None:
        return torch.ones((), dtype=torch.bool, device=labels.device).expand(B, V)
    lengths: Tensor = torch.as_tensor(given, device=labels.device)
    if lengths.dtype == torch.bool:
        if lengths.shape != (B, V):
            raise ValueError(
                f"{name} got a mask of shape {tuple(lengths.shape)}; expected that of the labels, ({B}, {V})"
            )
        require(lengths[:, 0], f"{name} got an empty sample: the first entry of every row of the mask must be True")
        require(lengths[:, :-1] | ~lengths[:, 1:], f"{name} got a mask with holes: padding must be at the end")
        return lengths
    if lengths.is_floating_point() or lengths.shape != (B,):
        raise ValueError(
            f"{name} got lengths of shape {tuple(lengths.shape)} and {lengths.dtype}; expected B = {B} integers, "
            f"or a bool mask of the labels' shape"
        )
    require((lengths >= 1) & (lengths <= V), f"{name} got a length outside [1, {V}]: leave out empty samples")
    return torch.arange(V, device=labels.device) < lengths[:, None]


def check_labels(name: str, labels: Any, unary: Tensor) -> Tensor:
    """Labels ``[B, V]`` as integers, where the unary scores are ``[B, V, K]``."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"{name} got labels of {given}; expected a tensor of label indices (torch.long)")
    if labels.shape != unary.shape[:2]:
        raise ValueError(
            f"{name} got labels of shape {tuple(labels.shape)}; expected {tuple(unary.shape[:2])}, the first two "
            "dimensions of the unary scores"
        )
    return labels.long()


def check_scores(name: str, scores: Any) -> tuple[Tensor, ...]:
    """A tuple of tensors, the first of them ``[B, V, K]``."""
    if not isinstance(scores, (tuple, list)) or len(scores) < 2:
        raise TypeError(f"{name} got a {type(scores).__name__} as scores; expected a tuple (unary, pairwise)")
    if not isinstance(scores[0], Tensor) or scores[0].dim() != 3:
        given = tuple(scores[0].shape) if isinstance(scores[0], Tensor) else type(scores[0]).__name__
        raise ValueError(f"{name} got unary scores of {given}; expected [B, T, K]: samples, positions, labels")
    return tuple(scores)
