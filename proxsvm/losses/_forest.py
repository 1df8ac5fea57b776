"""Labellings of forests: the standard form that all losses over chains and trees share, and the checks of their input.

A score of −inf forbids a label or a transition. The prepared scores contain :data:`FORBIDDEN` instead, which is lower
than the score of any allowed labelling, and whose product with an indicator of 0 is 0 and not NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._kernels.tensors import number, readable, widened
from proxsvm.losses._max_sum import best_labelling
from proxsvm.losses.base import require

FORBIDDEN = -1e30
ForestScores: TypeAlias = "tuple[Tensor, Tensor]"


class Forest(NamedTuple):
    """A labelling of B forests in the standard form of :mod:`proxsvm.losses._max_sum`, with one root.

    ``nodes`` and ``edges`` are False on padding, where features and costs are zero. The edge into a second root is
    padding.
    """

    labels: Tensor  # [B, V]
    nodes: Tensor  # [B, V], bool
    edges: Tensor  # [B, V - 1], bool
    parents: Tensor  # [B, V - 1]
    order: Tensor  # [B, V]: the index of each node in the input
    weight: Tensor  # [B, V]: how much each node counts in Δ, 0 on padding
    is_chain: bool

    @property
    def links(self) -> Tensor | None:
        """The parents, as :mod:`proxsvm.losses._max_sum` expects them."""
        return None if self.is_chain else self.parents

    def in_input_order(self, x: Tensor) -> Tensor:
        """``x`` ``[B, V, ...]`` with every node at its index in the input, and 0 on padding."""
        ones = [1] * (x.dim() - 2)
        at = self.order.reshape(*self.order.shape, *ones).expand_as(x)
        return torch.zeros_like(x).scatter_(1, at, x * self.nodes.reshape(*self.nodes.shape, *ones))


def standard_form(
    name: str, unary: Tensor, pairwise: Tensor, forest: Forest, *, labelled: bool
) -> tuple[ForestScores, Forest]:
    """Check the labels, and set the scores on padding to zero; a lone node gets a second one, which is padding.

    Where the given labels (``labelled``) are forbidden, their score becomes −inf, so that the loss is +inf.
    """
    K = unary.shape[2]
    labels, nodes, edges, parents, order, weight, is_chain = forest
    labels = torch.where(nodes, labels, 0)
    require((labels >= 0) & (labels < K), f"{name} got a label outside [0, {K}), the K of the scores")
    if _padded(nodes):
        unary = torch.where(nodes[..., None], unary, 0.0)
    if _padded(edges):
        pairwise = torch.where(edges[..., None, None], pairwise, 0.0)
    if unary.shape[1] == 1:
        unary, labels, nodes = F.pad(unary, (0, 0, 0, 1)), F.pad(labels, (0, 1)), F.pad(nodes, (0, 1))
        pairwise, weight = F.pad(pairwise, (0, 0, 0, 0, 0, 1)), F.pad(weight, (0, 1))
        edges, parents, order = F.pad(edges, (0, 1)), F.pad(parents, (0, 1)), F.pad(order, (0, 1), value=1)
    forest = Forest(labels, nodes, edges, parents, order, weight, is_chain)
    return (_ban(unary, pairwise, forest) if labelled else unary, pairwise), forest


def _ban(unary: Tensor, pairwise: Tensor, forest: Forest) -> Tensor:
    """The unary scores with −inf at the true label of every node where it, or the transition to it, is forbidden."""
    at_node, at_edge = true_scores((unary, pairwise.detach()), forest)
    banned = (at_node <= FORBIDDEN / 2) | (at_edge <= FORBIDDEN / 2)
    return unary.scatter(2, forest.labels[..., None], torch.where(banned, -torch.inf, at_node))


def true_scores(scores: ForestScores, forest: Forest) -> tuple[Tensor, Tensor]:
    """The scores of each node's label and of the edge into it (0 at the root), both ``[B, V, 1]``."""
    at_edge = scores[1].flatten(2).gather(2, _pairs(forest, scores[0].shape[2]))
    return scores[0].gather(2, forest.labels[..., None]), F.pad(at_edge, (0, 0, 1, 0))


def allowed(scores: ForestScores) -> tuple[Tensor, Tensor]:
    """Which labels and transitions are not forbidden."""
    return scores[0] > FORBIDDEN / 2, scores[1] > FORBIDDEN / 2


def silenced(scores: ForestScores, forest: Forest) -> ForestScores:
    """The scores with exactly one labelling of the padding, which adds 0: for inference."""
    unary, pairwise = scores
    if _padded(forest.nodes):
        alone = torch.arange(unary.shape[2], device=unary.device).clamp(max=1) * FORBIDDEN  # [0, −1e30, −1e30, …]
        unary = torch.where(forest.nodes[..., None], unary, alone.to(unary))
    if _padded(forest.edges):
        pairwise = torch.where(forest.edges[..., None, None], pairwise, 0.0)
    return unary, pairwise


def relative_scores(scores: ForestScores, forest: Forest) -> tuple[ForestScores, Tensor]:
    """The scores for inference, relative to those of y, so that large ones do not cancel; and the score of y, ``[B]``.

    At every node the scores of the true label and of the edge into it are subtracted: y has 0, or −∞ if forbidden.
    """
    unary, pairwise = silenced(scores, forest)
    pairwise = _centred(pairwise, forest)
    at_node, at_edge = true_scores((unary, pairwise), forest)
    finite = torch.where(at_node == -torch.inf, 0.0, at_node)
    return (unary - finite - at_edge, pairwise), (at_node - finite).sum((1, 2))


def _centred(pairwise: Tensor, forest: Forest) -> Tensor:
    """Subtract what all transitions have in common: every labelling has the same number of them."""
    own = pairwise[tuple(slice(None if step else 1) for step in pairwise.stride()[:2])]  # once, where it was expanded
    real = forest.edges[..., None, None] if _padded(forest.edges) else None
    common = (own if real is None else torch.where(real, own, FORBIDDEN)).detach().amax()
    common = torch.where(common > FORBIDDEN / 2, common, 0.0)  # nothing is allowed, or something is NaN
    return (own - common).expand_as(pairwise) if real is None else torch.where(real, pairwise - common, 0.0)


def best_labels(scores: ForestScores, forest: Forest) -> Tensor:
    """The labels of the largest score, ``[B, V]`` in the order of the input, 0 on padding."""
    return forest.in_input_order(best_labelling(scores[0].detach(), scores[1].detach(), forest.links))


def features(labelling: Forest, scores: ForestScores) -> ForestScores:
    """φ: indicators of each node's label and of each edge's pair of labels, zero on padding."""
    return add_features((torch.zeros_like(scores[0]), torch.zeros_like(scores[1])), labelling, 1)


def add_features(s: ForestScores, labelling: Forest, sign: int) -> ForestScores:
    """s + sign · φ(labelling), in place."""
    node, edge = s
    pairs = _pairs(labelling, node.shape[2])
    node.scatter_add_(2, labelling.labels[..., None], sign * labelling.nodes[..., None].to(node))
    edge.flatten(2).scatter_add_(2, pairs, sign * labelling.edges[..., None].to(edge))
    return s


def _pairs(forest: Forest, K: int) -> Tensor:
    """The index of each edge's pair of labels in its K² pairwise scores, ``[B, V - 1, 1]``."""
    return (forest.labels.gather(1, forest.parents) * K + forest.labels[:, 1:])[..., None]


def _padded(mask: Tensor) -> bool:
    """Whether there may be padding: a mask that is a single True, expanded, has none, without reading it."""
    return any(mask.stride())


# The input.


def check_scores(name: str, scores: Any) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """The unary scores ``[B, V, K]``, the pairwise ones in the same dtype, and any other input.

    −inf becomes :data:`FORBIDDEN`; NaN and +inf stay, and make the loss NaN. Half precision becomes float32.
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
    return forbid(unary), forbid(pairwise.to(unary.dtype)), tuple(more)


def forbid(u: Tensor) -> Tensor:
    """``u`` with :data:`FORBIDDEN` for −inf; no gradient reaches those entries."""
    if readable(u) and u.is_floating_point() and (u.numel() == 0 or number(u.detach().amin()) > FORBIDDEN):
        return u
    return u.clamp(min=FORBIDDEN)


def check_labels(name: str, labels: Any, unary: Tensor) -> Tensor:
    """Labels ``[B, V]`` as integers, where the unary scores are ``[B, V, K]``; all 0 if None."""
    if labels is None:
        return torch.zeros(unary.shape[:2], dtype=torch.long, device=unary.device)
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        given = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"{name} got labels of {given}; expected a tensor of label indices (torch.long)")
    if labels.shape != unary.shape[:2]:
        raise ValueError(
            f"{name} got labels of shape {tuple(labels.shape)}; expected {tuple(unary.shape[:2])}, the first two "
            "dimensions of the unary scores"
        )
    return labels.long()


def real_nodes(name: str, given: Any, labels: Tensor) -> tuple[Tensor, bool]:
    """Which nodes exist, ``[B, V]``, from lengths ``[B]`` or a mask, or all of them; and whether it is a mask."""
    B, V = labels.shape
    if given is None:
        return torch.ones((), dtype=torch.bool, device=labels.device).expand(B, V), False
    lengths: Tensor = torch.as_tensor(given, device=labels.device)
    if lengths.dtype == torch.bool:
        if lengths.shape != (B, V):
            raise ValueError(
                f"{name} got a mask of shape {tuple(lengths.shape)}; expected that of the labels, ({B}, {V})"
            )
        require(lengths.any(1), f"{name} got an empty sample: leave out samples whose mask is False everywhere")
        return lengths, True
    if lengths.is_floating_point() or lengths.shape != (B,):
        raise ValueError(
            f"{name} got lengths of shape {tuple(lengths.shape)} and {lengths.dtype}; expected B = {B} integers, "
            f"or a bool mask of the labels' shape"
        )
    require((lengths >= 1) & (lengths <= V), f"{name} got a length outside [1, {V}]: leave out empty samples")
    return torch.arange(V, device=labels.device) < lengths[:, None], False
