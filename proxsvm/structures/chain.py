"""Chains: sequences with scores for labels and for transitions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from proxsvm._scores import FORBIDDEN, detached, known
from proxsvm.structures._checks import check_nodes, check_pairwise, check_scores, unpack
from proxsvm.structures.forest import Forest, Labelling, standard_form
from proxsvm.structures.semirings import Reduce, maximum


class Chain(Forest):
    """score(y) = Σ_t unary[t, y_t] + Σ_t pairwise[t, y_t, y_{t+1}] + start[y_1] + end[y_T].

    Scores: ``(unary, pairwise)`` or ``(unary, pairwise, start, end)`` with unary ``[B, T, K]``, pairwise ``[K, K]`` or
    ``[B, T - 1, K, K]`` indexed (from, to), start and end ``[K]``, ``[B, K]`` or None.
    Target: labels ``[B, T]``; for unequal lengths ``(labels, lengths)`` with lengths ``[B]``, or ``(labels, mask)``, a
    mask of bool or uint8. Positions labelled −100 are padding, too. Scores on padding are ignored, even NaN.

    A mask may leave out any positions: the score is that of the remaining chain, so a transition leads from one
    unmasked position to the next. Of pairwise scores with one entry per transition, it uses the entry that leads
    into the later of the two.

    A score of −inf forbids a label or a transition (``transitions.masked_fill(illegal, -torch.inf)``): no prediction
    uses it and no gradient reaches it. Where the true labels are forbidden the loss is +inf; NaN or +inf among the
    scores make it NaN or infinite. In both cases the optimizer skips the step, or raises with ``nonfinite="raise"``.

    >>> from proxsvm.losses import StructuredHinge
    >>> unary = torch.tensor([[[2.0, 0.0], [0.0, 0.5]]])
    >>> StructuredHinge(Chain())((unary, torch.eye(2)), torch.tensor([[0, 0]]))   # [0, 1]: 2 + 0.5 + Δ = 1 against 3
    tensor(0.5000)
    """

    def prepare(self, name: str, scores: Any, target: Any, *, lengths: Any = None) -> tuple[Any, Labelling]:
        """Start and end scores join the unary ones; positions that the mask leaves out are moved to the end."""
        if target is not None:
            target, lengths = unpack(target, None)
        unary, pairwise, *ends = check_scores(name, scores, "(unary, pairwise, start, end)")
        B, T, K = unary.shape
        check_pairwise(name, pairwise, (K, K), (B, T - 1, K, K))
        y, nodes, full, holes = check_nodes(name, target, lengths, unary, self.ignore_index)
        order = None
        if holes and not known((nodes[:, :-1] | ~nodes[:, 1:]).all()):
            order = (~nodes).to(torch.uint8).argsort(dim=1, stable=True)
            rows = torch.arange(B, device=order.device)[:, None]
            unary, y, nodes = unary[rows, order], y[rows, order], nodes[rows, order]
            if pairwise.dim() == 4:
                pairwise = pairwise[rows, (order[:, 1:] - 1).clamp(min=0)]  # the entry of the edge into each position
        for what, extra in zip(("start", "end"), ends, strict=False):
            if extra is None:
                continue
            at = torch.zeros_like(y[:, 0]) if what == "start" else nodes.sum(1) - 1
            if extra.shape not in ((K,), (B, K)):
                raise ValueError(f"{name} got {what} scores of shape {tuple(extra.shape)}; expected {(K,)} or {(B, K)}")
            added = extra.to(unary).clamp(min=FORBIDDEN).expand(B, K)
            unary = unary.index_put((torch.arange(B, device=at.device), at), added, accumulate=True)
        parents = torch.arange(T - 1, device=y.device).expand(B, -1)
        return standard_form(name, unary, pairwise, Labelling(y, nodes, nodes[:, 1:], parents, order, full))

    def total(self, scores: Any, target: Labelling, reduce: Reduce) -> Tensor:
        """α_t[k] = unary[t, k] + ⊕_j (α_{t−1}[j] + pairwise[t − 1, j, k]); the largest is the best labels' score."""
        if reduce is maximum:
            of_node, of_edge = self.scores_of(scores, target._replace(labels=self._best_labels(scores, target)))
            return (of_node + F.pad(of_edge, (1, 0))).sum(1)  # node by node, so that large scores cancel
        return reduce(self._forward(scores, target, reduce)[-1], 1)

    def _forward(self, scores: Any, target: Labelling, reduce: Reduce) -> list[Any]:
        """α_1 … α_T; on padding that of the last position."""
        alpha = [scores[0][:, 0]]
        for t, (u, table) in enumerate(zip(scores[0].unbind(1)[1:], self.tables(scores), strict=True), start=1):
            moved = reduce(alpha[-1].unsqueeze(2) + table, 1) + u  # indexing by None takes longer
            alpha.append(moved if target.full else torch.where(target.nodes[:, t, None], moved, alpha[-1]))
        return alpha

    def _best_labels(self, scores: Any, target: Labelling) -> Tensor:
        """Viterbi's, ``[B, T]``: from the last position back, the label from which the maximum of the next one came."""
        scores = detached(scores)
        *alpha, last = self._forward(scores, target, torch.amax)
        labels, rows = [last.argmax(1)], torch.arange(len(last), device=last.device)
        for t, (before, table) in reversed(list(enumerate(zip(alpha, self.tables(scores), strict=True), start=1))):
            into = table.index_select(1, labels[-1]).T if table.dim() == 2 else table[rows, :, labels[-1]]
            found = (before + into).argmax(1)
            labels.append(found if target.full else torch.where(target.nodes[:, t], found, labels[-1]))
        return torch.stack(labels[::-1], 1)

    def decode(self, scores: Any, target: Labelling) -> Tensor:
        return target.in_input_order(self._best_labels(scores, target))

    def marginals(self, mu: Any, target: Labelling) -> tuple[Tensor, Tensor]:
        """p(y_t) ``[B, T, K]`` and p(y_t, y_{t+1}) ``[B, T - 1, K, K]``, 0 on padding."""
        node, edge = super().marginals(mu, target)
        return node, edge[:, 1:]
