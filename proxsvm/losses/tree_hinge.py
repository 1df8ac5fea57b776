"""The structured hinge over trees: each sample brings its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.base import require
from proxsvm.losses.forest_hinge import Forest, ForestHinge, check_labels, check_scores, real_nodes


class TreeHinge(ForestHinge):
    """ℓ(u; y) = max over labellings ȳ of score(ȳ) − score(y) + Δ(ȳ, y), for a tree given with each sample.

        score(y) = Σ_v unary[v, y_v] + Σ_v pairwise[v, y_parent(v), y_v]

    Scores: ``(unary, pairwise)`` with unary ``[B, V, K]`` and pairwise ``[K, K]`` or ``[B, V, K, K]``, indexed
    (parent's label, child's label): entry v is the edge from v's parent to v, and a root's entry is not used.
    Target: ``(labels, parents)`` or, for trees of unequal size, ``(labels, parents, sizes)``, with labels ``[B, V]``,
    parents ``[B, V]`` (−1 at a root; several roots make a forest) and sizes ``[B]``, or a mask. Nodes may stand in any
    order.

    Args: as :class:`~proxsvm.losses.ChainHinge`; a chain is the tree with parents −1, 0, 1, …

    >>> unary = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]]])
    >>> star = torch.tensor([[-1, 0, 0]])                         # node 0 is the parent of both others
    >>> TreeHinge().decode((unary, torch.eye(2)), parents=star)   # either root agrees with one child
    tensor([[0, 0, 1]])
    >>> TreeHinge()((unary, torch.eye(2)), (torch.tensor([[0, 0, 0]]), star))   # [1, 0, 1]: 3 + 2 + 1 + Δ = 2, y: 5
    tensor(3.)
    """

    def prepare(self, scores: Any, target: Any) -> tuple[tuple[Tensor, Tensor], Forest]:
        """Check everything, and put the nodes of each tree in an order where parents stand before children."""
        if isinstance(target, Forest):
            return scores, target  # it is prepared
        name = type(self).__name__
        (unary, pairwise), _ = super().prepare(check_scores(name, scores), None)
        B, V, K = unary.shape
        if pairwise.shape not in ((K, K), (B, V, K, K)):
            raise ValueError(
                f"{name} got pairwise scores of shape {tuple(pairwise.shape)}; expected [K, K] = ({K}, {K}) or "
                f"[B, V, K, K] = ({B}, {V}, {K}, {K})"
            )
        if not isinstance(target, (tuple, list)) or len(target) not in (2, 3):
            raise TypeError(f"{name} got a target that is not (labels, parents) or (labels, parents, sizes)")
        labels = check_labels(name, target[0], unary)
        nodes = real_nodes(name, target[2] if len(target) == 3 else None, labels)
        parents, order = self._order(target[1], nodes)
        rows = torch.arange(B, device=order.device)[:, None]
        child = order[:, 1:]
        edges = nodes[rows, child] & (parents[rows, child] >= 0)
        rank = order.argsort(1)
        at = torch.where(edges, rank.gather(1, parents[rows, child].clamp(min=0)), 0)
        forest = Forest(labels[rows, order], nodes[rows, order], edges, at, order)
        return self._standard(unary[rows, order], pairwise.expand(B, V, K, K)[rows, child], forest)

    def _order(self, parents: Any, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The parents, checked, and the nodes sorted by depth with padding last, both ``[B, V]``."""
        name, (B, V) = type(self).__name__, nodes.shape
        parents = torch.as_tensor(parents, device=nodes.device)
        if parents.is_floating_point() or parents.shape != (B, V):
            raise ValueError(f"{name} got parents of shape {tuple(parents.shape)}; expected ({B}, {V}) integers")
        parents = torch.where(nodes, parents.long(), -1)
        size = nodes.sum(1, keepdim=True)
        require(
            (parents >= -1) & (parents < size), f"{name} got a parent that is no node: expected -1 (a root) or an index"
        )
        depth, above = torch.zeros_like(parents), parents
        for _ in range(V):
            below = above >= 0
            depth = depth + below
            above = torch.where(below, parents.gather(1, above.clamp(min=0)), -1)
        require(above < 0, f"{name} got parents with a cycle: no root is reached from some node")
        return parents, torch.where(nodes, depth, V + 1).argsort(dim=1, stable=True)

    def decode(self, scores: Any, target: Any = None, *, parents: Any = None, sizes: Any = None) -> Tensor:
        """The best labels ``[B, V]``, 0 on padding: a prediction for ``parents``, or augmented with a target."""
        unary = check_scores(type(self).__name__, scores)[0]
        if target is None:
            if parents is None:
                raise TypeError(f"{type(self).__name__}.decode needs the trees: decode(scores, parents=parents)")
            blank = torch.zeros(unary.shape[:2], dtype=torch.long, device=unary.device)
            given: tuple[Any, ...] = (blank, parents, sizes)
        else:
            given = target
        prepared, forest = self.prepare(scores, given)
        return self._labels(prepared, forest, augmented=target is not None)[:, : unary.shape[1]]
