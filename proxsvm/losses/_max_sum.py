"""Inference on forests: the best labelling and the marginals of a whole batch, with one loop over the nodes.

Standard form, for B forests of V nodes with K labels and E edges:

    unary     [B, V, K]
    pairwise  [B, E, K, K]   indexed (parent's label, child's label)
    parents   [B, E]         edge e leads from node parents[:, e] to node R + e; nodes 0 … R − 1 are roots, R = V − E

and every parent precedes its children. The score of a labelling is the sum of what it picks from both tensors.
``parents=None`` means a chain, 0, 1, 2, …, which is faster. Cost: linear in B and E, quadratic in K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor


def _tables(pairwise: Tensor) -> Tensor:
    """The pairwise scores with the batch innermost, ``[E, K, K, B]``, so that every step is a vector operation.

    Scores that all samples share (expanded, so the batch has a stride of 0) stay one table, ``[E, K, K, 1]``.
    """
    one_for_all = pairwise.stride(0) == 0
    return (pairwise[:1] if one_for_all else pairwise).permute(1, 2, 3, 0).contiguous()


Message: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


def _log_sum_exp(table: Tensor, child: Tensor) -> Tensor:
    """A child's message to its parent: table ``[K, K, B or 1]`` and the child's belief ``[K, B]`` give ``[K, B]``."""
    return (table + child).logsumexp(1)


def _upward(unary: Tensor, tables: Tensor, parents: Tensor | None, message: Message) -> Tensor:
    """Each node's score plus the messages of its children (by max or log-sum-exp), ``[V, K, B]``."""
    belief = unary.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    E = len(tables)
    if parents is None:
        nodes = list(belief.unbind(0))
        for e in reversed(range(E)):
            nodes[e] = nodes[e] + message(tables[e], nodes[e + 1])
        return torch.stack(nodes)
    roots = len(belief) - E
    at = parents.T[:, None, :].expand(-1, unary.shape[2], -1)
    for e in reversed(range(E)):
        belief.scatter_add_(0, at[e : e + 1], message(tables[e], belief[roots + e])[None])
    return belief


@torch.no_grad()
def best_labelling(unary: Tensor, pairwise: Tensor, parents: Tensor | None = None) -> Tensor:
    """The labelling of the largest score (Viterbi's algorithm on a chain), ``[B, V]``.

    >>> unary = torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]])
    >>> best_labelling(unary, torch.eye(2).expand(1, 2, 2, 2))     # 1 + 2 + one agreement
    tensor([[0, 0, 1]])
    """
    tables = _tables(pairwise)
    B, V, K = unary.shape
    buffer = unary.new_empty(K, K, B)  # one for all steps: allocating it takes longer than filling it

    def largest(table: Tensor, child: Tensor) -> Tensor:
        return torch.add(table, child, out=buffer).amax(1)

    belief = _upward(unary, tables, parents, largest).transpose(1, 2).contiguous()  # [V, B, K]
    roots = V - len(tables)
    rows = torch.arange(B, device=unary.device)
    labels = torch.empty(V, B, dtype=torch.long, device=unary.device)
    labels[:roots] = belief[:roots].argmax(2)
    for e, (below, label) in enumerate(zip(belief[roots:], labels[roots:], strict=True)):
        above = labels[e] if parents is None else labels.gather(0, parents[None, :, e])[0]
        shared = tables.shape[3] == 1
        row = tables[e, :, :, 0].index_select(0, above) if shared else pairwise[rows, e, above]
        torch.argmax(row + below, 1, out=label)
    return labels.T


def sum_product(unary: Tensor, pairwise: Tensor, parents: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """log Z = log Σ_ȳ exp(score) ``[B]``, and the marginals of p(ȳ) ∝ exp(score): its gradient.

    The marginals are those of nodes, ``[B, V, K]``, and edges, ``[B, E, K, K]`` (forward-backward on a chain).

    >>> log_z, node, edge = sum_product(torch.zeros(1, 2, 2), torch.eye(2).expand(1, 1, 2, 2).log1p())
    >>> log_z.exp().round(), edge[0, 0]                            # agreement is twice as likely: 2 + 1 + 1 + 2
    (tensor([6.]), tensor([[0.3333, 0.1667],
            [0.1667, 0.3333]]))
    """
    tables = _tables(pairwise)
    belief = _upward(unary, tables, parents, _log_sum_exp)
    roots = len(belief) - len(tables)
    of_child = (tables + belief[roots:, None]).softmax(2)  # p(child's label | parent's label), [E, K, K, B]
    node = torch.empty_like(belief)
    node[:roots] = belief[:roots].softmax(1)
    if parents is None:
        parents = torch.arange(len(tables), device=unary.device).expand(len(unary), -1)
    at = parents.T[:, None, :].expand(-1, unary.shape[2], -1)
    for e in range(len(tables)):
        above = node.gather(0, at[e : e + 1])[0]
        node[roots + e] = (above[:, None] * of_child[e]).sum(0)
    edge = node.gather(0, at)[:, :, None] * of_child
    return belief[:roots].logsumexp(1).sum(0), node.permute(2, 0, 1), edge.permute(3, 0, 1, 2)
