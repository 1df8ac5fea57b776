"""Trees: every sample has its own tree, with scores for labels and for pairs of a parent's and a child's label."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import integer_target, require
from proxsvm.structures._checks import check_nodes, check_pairwise, check_scores
from proxsvm.structures.forest import Forest, Labelling, standard_form
from proxsvm.structures.semirings import Reduce

CYCLE = "{} got parents with a cycle: no root is reached from some node"


class Tree(Forest):
    """score(y) = Σ_v unary[v, y_v] + Σ_v pairwise[v, y_parent(v), y_v].

    Scores: ``(unary, pairwise)`` with unary ``[B, V, K]`` and pairwise ``[K, K]``, ``[V, K, K]`` or ``[B, V, K, K]``,
    indexed (parent's label, child's label): entry v is the edge from v's parent to v, and a root's entry is not used.
    Target: ``(labels, parents)`` or, for trees of unequal size, ``(labels, parents, sizes)``, with labels ``[B, V]``,
    parents ``[B, V]`` (−1 at a root; several roots make a forest) and sizes ``[B]``, or a mask. Nodes may be in any
    order. A mask may leave out any nodes: the children of such a node become children of its nearest unmasked
    ancestor. Scores of −inf, +inf and NaN: as in :class:`~proxsvm.structures.Chain`.

    >>> from proxsvm.losses import StructuredHinge
    >>> unary = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]]])
    >>> star = torch.tensor([[-1, 0, 0]])                         # node 0 is the parent of both others
    >>> StructuredHinge(Tree()).decode((unary, torch.eye(2)), parents=star)   # either root agrees with one child
    tensor([[0, 0, 1]])
    """

    def prepare(
        self, name: str, scores: Any, target: Any, *, parents: Any = None, sizes: Any = None
    ) -> tuple[Any, Labelling]:
        """The nodes are sorted by depth, so that parents precede their children."""
        if target is None:
            target = None, parents, sizes
        elif not isinstance(target, (tuple, list)) or len(target) not in (2, 3) or target[0] is None:
            raise TypeError(f"{name} got a target that is not (labels, parents) or (labels, parents, sizes)")
        labels, parents, sizes = (*target, None)[:3]
        unary, pairwise = check_scores(name, scores, "(unary, pairwise)")
        B, V, K = unary.shape
        check_pairwise(name, pairwise, (K, K), (V, K, K), (B, V, K, K))
        y, nodes, _, holes = check_nodes(name, labels, sizes, unary, self.ignore_index)
        order, parents = _by_depth(name, _checked(name, parents, nodes, holes), nodes)
        rows = torch.arange(B, device=order.device)[:, None]
        if pairwise.dim() > 2:
            pairwise = pairwise.expand(B, V, K, K)[rows, order[:, 1:]]
        edges = parents[:, 1:] >= 0
        labelling = Labelling(y[rows, order], nodes[rows, order], edges, parents[:, 1:].clamp(min=0), order)
        return standard_form(name, unary[rows, order], pairwise, labelling)

    def total(self, scores: Any, target: Labelling, reduce: Reduce) -> Tensor:
        """β_v[k] = unary[v, k] + Σ over children c of ⊕_j (pairwise[c, k, j] + β_c[j]); Σ over roots of ⊕ β."""
        belief = scores[0]
        node = torch.arange(belief.shape[1], device=belief.device)
        for e, table in reversed(list(enumerate(self.tables(scores)))):  # children come after their parents
            message = reduce(table + belief[:, e + 1, None], 2)
            above = target.edges[:, e, None] & (node == target.parents[:, e, None])
            belief = belief + torch.where(above[..., None], message[:, None], 0.0)
        of_node = reduce(belief, 2)
        return torch.where(target.nodes & ~F.pad(target.edges, (1, 0)), of_node, 0.0).sum(1)


def _checked(name: str, parents: Any, nodes: Tensor, holes: bool) -> Tensor:
    """The parents ``[B, V]``, −1 at roots and on padding; where a mask leaves a node out, its children move up."""
    if parents is None:
        raise TypeError(f"{name} needs the trees: decode(scores, parents=parents)")
    V = nodes.shape[1]
    parents = integer_target(name, torch.as_tensor(parents, device=nodes.device), nodes.shape, "parents")
    valid = (parents >= -1) & (parents < (V if holes else nodes.sum(1, keepdim=True)))
    require(valid | ~nodes, f"{name} got a parent that is not a node: expected -1 (a root) or the index of a node")
    parents = torch.where(valid, parents, -1)
    if holes:
        for _ in range(V.bit_length()):  # every pass doubles the number of masked ancestors that are skipped
            above = parents.clamp(min=0)
            parents = torch.where((parents >= 0) & ~nodes.gather(1, above), parents.gather(1, above), parents)
        require((parents < 0) | nodes.gather(1, parents.clamp(min=0)) | ~nodes, CYCLE.format(name))
    return torch.where(nodes, parents, -1)


def _by_depth(name: str, parents: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the nodes sorted by depth with padding last, ``[B, V]``, and their parents in that order."""
    V = parents.shape[1]
    depth, above = (parents >= 0).long(), parents
    for _ in range(V.bit_length()):  # every pass doubles the number of ancestors that are counted
        up = above.clamp(min=0)
        depth = depth + torch.where(above >= 0, depth.gather(1, up), 0)
        above = torch.where(above >= 0, above.gather(1, up), -1)
    require(above < 0, CYCLE.format(name))
    order = torch.where(nodes, depth, V + 1).argsort(dim=1, stable=True)
    at = torch.where(parents >= 0, order.argsort(1).gather(1, parents.clamp(min=0)), -1)
    return order, at.gather(1, order)
