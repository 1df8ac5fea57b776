"""Inference on forests: the best labelling and the marginals of a whole batch, with one loop over the nodes.

Standard form, for B forests of V nodes with K labels and E edges:

    unary     [B, V, K]
    pairwise  [B, E, K, K]   indexed (parent's label, child's label)
    parents   [B, E]         edge e leads from node parents[:, e] to node R + e, with R = V − E roots in front

and every parent stands before its child. The score of a labelling is the sum of what it picks from both tensors. A
chain is the forest with parents 0, 1, 2, …  Cost: linear in B and E, quadratic in K.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _upward(unary: Tensor, pairwise: Tensor, parents: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """Each node's score with all that hangs below it reduced (max or log-sum-exp), ``[B, V, K]``."""
    belief = unary.clone()
    E = pairwise.shape[1]
    roots = unary.shape[1] - E
    at = parents[:, :, None].expand(-1, -1, unary.shape[2])
    for e in reversed(range(E)):
        message = reduce(pairwise[:, e] + belief[:, roots + e, None, :], -1)
        belief.scatter_add_(1, at[:, e : e + 1], message[:, None])
    return belief


def best_labelling(unary: Tensor, pairwise: Tensor, parents: Tensor) -> Tensor:
    """The labelling of the largest score (Viterbi's algorithm on a chain), ``[B, V]``.

    >>> unary = torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]])
    >>> agree = torch.eye(2).expand(1, 2, 2, 2)
    >>> best_labelling(unary, agree, torch.tensor([[0, 1]]))       # 1 + 2 + one agreement
    tensor([[0, 0, 1]])
    """
    belief = _upward(unary, pairwise, parents, torch.amax)
    B, V, _ = unary.shape
    roots = V - pairwise.shape[1]
    rows = torch.arange(B, device=unary.device)
    labels = torch.empty(B, V, dtype=torch.long, device=unary.device)
    labels[:, :roots] = belief[:, :roots].argmax(-1)
    for e, above in enumerate(parents.unbind(1)):
        labels[:, roots + e] = (pairwise[rows, e, labels[rows, above]] + belief[:, roots + e]).argmax(-1)
    return labels


def marginals(unary: Tensor, pairwise: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """The marginals of p(ȳ) ∝ exp(score) for nodes ``[B, V, K]`` and edges ``[B, E, K, K]`` (forward-backward).

    >>> node, edge = marginals(torch.zeros(1, 2, 2), torch.eye(2).expand(1, 1, 2, 2).log1p(), torch.tensor([[0]]))
    >>> edge[0, 0]                                                 # agreement is twice as likely
    tensor([[0.3333, 0.1667],
            [0.1667, 0.3333]])
    """
    belief = _upward(unary, pairwise, parents, torch.logsumexp)
    roots = unary.shape[1] - pairwise.shape[1]
    at = parents[:, :, None].expand(-1, -1, unary.shape[2])
    of_child = (pairwise + belief[:, roots:, None, :]).softmax(-1)  # p(child's label | parent's label)
    node = torch.empty_like(belief)
    node[:, :roots] = belief[:, :roots].softmax(-1)
    for e in range(pairwise.shape[1]):
        node[:, roots + e] = (node.gather(1, at[:, e : e + 1]) @ of_child[:, e])[:, 0]
    return node, node.gather(1, at)[..., None] * of_child


def log_partition(unary: Tensor, pairwise: Tensor, parents: Tensor) -> Tensor:
    """log Σ_ȳ exp(score), ``[B]``; its gradient is what :func:`marginals` returns.

    >>> log_partition(torch.zeros(1, 2, 2), torch.zeros(1, 1, 2, 2), torch.tensor([[0]])).exp().round()
    tensor([4.])
    """
    belief = _upward(unary, pairwise, parents, torch.logsumexp)
    return belief[:, : unary.shape[1] - pairwise.shape[1]].logsumexp(-1).sum(1)
