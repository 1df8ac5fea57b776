"""The input of the losses over chains, converted to the standard form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.tensors import number, readable
from proxsvm.losses._forest import (
    Forest,
    ForestScores,
    check_labels,
    check_scores,
    forbid,
    real_nodes,
    standard_form,
)


def chains(name: str, scores: Any, labels: Any, lengths: Any) -> tuple[ForestScores, Forest]:
    """The scores of B chains, (unary ``[B, T, K]``, pairwise ``[B, T - 1, K, K]``), and their labelling.

    Start and end scores are added to the unary ones. Positions that the mask leaves out are moved to the end, so that
    the others form a chain. Labels may be None where there are none.
    """
    unary, pairwise, ends = check_scores(name, scores)
    if len(ends) > 2:
        raise ValueError(
            f"{name} got {len(ends) + 2} scores; expected (unary, pairwise) or (unary, pairwise, start, end)"
        )
    B, T, K = unary.shape
    if pairwise.shape not in ((K, K), (B, T - 1, K, K)):
        raise ValueError(
            f"{name} got pairwise scores of shape {tuple(pairwise.shape)}; expected [K, K] = ({K}, {K}) or "
            f"[B, T - 1, K, K] = ({B}, {T - 1}, {K}, {K})"
        )
    given, labelled = check_labels(name, labels, unary), labels is not None
    nodes, is_mask = real_nodes(name, lengths, given)
    order = torch.arange(T, device=given.device).expand(B, -1)
    parents = order[:, :-1]
    if is_mask and not (readable(nodes) and number((nodes[:, :-1] | ~nodes[:, 1:]).all())):  # there may be holes
        order = (~nodes).to(torch.uint8).argsort(dim=1, stable=True)
        rows = torch.arange(B, device=order.device)[:, None]
        unary, given, nodes = unary[rows, order], given[rows, order], nodes[rows, order]
        if pairwise.dim() == 4:
            pairwise = pairwise[rows, (order[:, 1:] - 1).clamp(min=0)]  # the entry of the edge into each position
    unary = _with_ends(name, unary, nodes, ends)
    forest = Forest(given, nodes, nodes[:, 1:], parents, order, nodes.to(unary), is_chain=True)
    return standard_form(name, unary, pairwise.expand(B, T - 1, K, K), forest, labelled=labelled)


def chain_target(name: str, target: Any) -> tuple[Any, Any]:
    """``labels`` or ``(labels, lengths)`` as labels, and lengths or None."""
    labels, lengths = target if isinstance(target, (tuple, list)) and len(target) == 2 else (target, None)
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} got a target that is not labels, (labels, lengths) or (labels, mask)")
    return labels, lengths


def _with_ends(name: str, unary: Tensor, nodes: Tensor, ends: tuple[Any, ...]) -> Tensor:
    """The unary scores with start added at each chain's first position, and end at its last."""
    B, _, K = unary.shape
    first, last = torch.zeros_like(nodes[:, 0], dtype=torch.long), nodes.sum(1) - 1
    for what, extra, at in zip(("start", "end"), ends, (first, last), strict=False):
        if extra is None:
            continue
        if extra.shape not in ((K,), (B, K)):
            raise ValueError(f"{name} got {what} scores of shape {tuple(extra.shape)}; expected ({K},) or ({B}, {K})")
        rows = torch.arange(B, device=at.device)
        unary = unary.index_put((rows, at), forbid(extra.to(unary)).expand(B, K), accumulate=True)
    return unary
