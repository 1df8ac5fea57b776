"""The input of the losses over trees, converted to the standard form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm.losses._forest import Forest, ForestScores, check_labels, check_scores, real_nodes, standard_form
from proxsvm.losses.base import require

_CYCLE = "{} got parents with a cycle: no root is reached from some node"


def trees(name: str, scores: Any, labels: Any, parents: Any, sizes: Any) -> tuple[ForestScores, Forest]:
    """The scores of B forests, (unary ``[B, V, K]``, pairwise ``[B, V - 1, K, K]``), and their labelling.

    The nodes are sorted by depth, so that parents precede their children. Labels may be None where there are none.
    """
    unary, pairwise, more = check_scores(name, scores)
    B, V, K = unary.shape
    if more:
        raise ValueError(f"{name} got {len(more) + 2} scores; expected (unary, pairwise)")
    if pairwise.shape not in ((K, K), (V, K, K), (B, V, K, K)):
        raise ValueError(
            f"{name} got pairwise scores of shape {tuple(pairwise.shape)}; expected [K, K] = ({K}, {K}), "
            f"[V, K, K] = ({V}, {K}, {K}) or [B, V, K, K] = ({B}, {V}, {K}, {K})"
        )
    given, labelled = check_labels(name, labels, unary), labels is not None
    nodes, is_mask = real_nodes(name, sizes, given)
    parents = _check_parents(name, parents, nodes, is_mask)
    order = _by_depth(name, parents, nodes)
    rows = torch.arange(B, device=order.device)[:, None]
    child = order[:, 1:]
    edges = nodes[rows, child] & (parents[rows, child] >= 0)
    at = torch.where(edges, order.argsort(1).gather(1, parents[rows, child].clamp(min=0)), 0)
    nodes = nodes[rows, order]
    forest = Forest(given[rows, order], nodes, edges, at, order, nodes.to(unary), is_chain=False)
    pairwise = pairwise.expand(B, V, K, K)[rows, child]
    return standard_form(name, unary[rows, order], pairwise, forest, labelled=labelled)


def tree_target(name: str, target: Any) -> tuple[Any, Any, Any]:
    """``(labels, parents)`` or ``(labels, parents, sizes)`` as labels, parents, and sizes or None."""
    if not isinstance(target, (tuple, list)) or len(target) not in (2, 3) or target[0] is None:
        raise TypeError(f"{name} got a target that is not (labels, parents) or (labels, parents, sizes)")
    return target[0], target[1], target[2] if len(target) == 3 else None


def _check_parents(name: str, parents: Any, nodes: Tensor, is_mask: bool) -> Tensor:
    """The parents ``[B, V]``, −1 at roots and on padding; where a mask leaves a node out, its children move up."""
    B, V = nodes.shape
    if parents is None:
        raise TypeError(f"{name} needs the trees: decode(scores, parents=parents)")
    parents = torch.as_tensor(parents, device=nodes.device)
    if parents.is_floating_point() or parents.shape != (B, V):
        raise ValueError(f"{name} got parents of shape {tuple(parents.shape)}; expected ({B}, {V}) integers")
    size = V if is_mask else nodes.sum(1, keepdim=True)
    parents = parents.long()
    valid = (parents >= -1) & (parents < size)
    require(valid | ~nodes, f"{name} got a parent that is not a node: expected -1 (a root) or the index of a node")
    parents = torch.where(valid, parents, -1)
    if is_mask:
        for _ in range(V.bit_length()):  # every pass doubles the number of masked ancestors that are skipped
            above = parents.clamp(min=0)
            parents = torch.where((parents >= 0) & ~nodes.gather(1, above), parents.gather(1, above), parents)
        reached = (parents < 0) | nodes.gather(1, parents.clamp(min=0))
        require(reached | ~nodes, _CYCLE.format(name))
    return torch.where(nodes, parents, -1)


def _by_depth(name: str, parents: Tensor, nodes: Tensor) -> Tensor:
    """The indices of the nodes sorted by depth with padding last, ``[B, V]``."""
    V = parents.shape[1]
    depth, above = torch.zeros_like(parents), parents
    for _ in range(V):
        below = above >= 0
        depth = depth + below
        above = torch.where(below, parents.gather(1, above.clamp(min=0)), -1)
    require(above < 0, _CYCLE.format(name))
    return torch.where(nodes, depth, V + 1).argsort(dim=1, stable=True)
