"""The structured hinge over chains: sequences with scores for labels and for transitions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proxsvm.losses.forest_hinge import Forest, ForestHinge, check_labels, check_scores, real_nodes


class ChainHinge(ForestHinge):
    """ℓ(u; y) = max over sequences ȳ of score(ȳ) − score(y) + Δ(ȳ, y), by a loss-augmented Viterbi pass.

        score(y) = Σ_t unary[t, y_t] + Σ_t pairwise[t, y_t, y_{t+1}] + start[y_1] + end[y_T]

    Scores: ``(unary, pairwise)`` or ``(unary, pairwise, start, end)`` with unary ``[B, T, K]``, pairwise ``[K, K]`` or
    ``[B, T - 1, K, K]`` indexed (from, to), start and end ``[K]``, ``[B, K]`` or None.
    Target: labels ``[B, T]``; for unequal lengths ``(labels, lengths)`` with lengths ``[B]``, or ``(labels, mask)``.
    What stands on padding never matters.

    Args:
        cost: the Δ of one position as a ``[K, K]`` matrix indexed (predicted, true), summed over positions; the
            number of wrong labels if None.
        normalize: divide Δ by the length of the sequence.
        smooth: train with the marginals of the chain, s = p − φ(y) with the expected Δ, for every sequence where that
            can raise the dual, and with the hinge's own atom for the others.
        reduction: as in torch, see :class:`~proxsvm.losses.PiecewiseLinearLoss`.

    >>> unary = torch.tensor([[[2.0, 0.0], [0.0, 0.5]]])
    >>> agree = torch.eye(2)
    >>> ChainHinge()((unary, agree), torch.tensor([[0, 0]]))     # the best is [0, 1]: 2 + 0.5 + Δ = 1 against 3
    tensor(0.5000)
    >>> ChainHinge().decode((unary, agree))
    tensor([[0, 0]])
    """

    is_chain = True

    def prepare(self, scores: Any, target: Any) -> tuple[tuple[Tensor, Tensor], Forest]:
        """Check everything; give each sequence its own pairwise scores, and add start and end to the unary ones."""
        if isinstance(target, Forest):
            return scores, target  # it is prepared
        name = type(self).__name__
        given = check_scores(name, scores)
        if len(given) > 4:
            raise ValueError(
                f"{name} got {len(given)} scores; expected (unary, pairwise) or (unary, pairwise, start, end)"
            )
        (unary, pairwise), _ = super().prepare(given[:2], None)
        start, end = (*given[2:], None, None)[:2]
        B, T, K = unary.shape
        if pairwise.shape not in ((K, K), (B, T - 1, K, K)):
            raise ValueError(
                f"{name} got pairwise scores of shape {tuple(pairwise.shape)}; expected [K, K] = ({K}, {K}) or "
                f"[B, T - 1, K, K] = ({B}, {T - 1}, {K}, {K})"
            )
        labels, lengths = target if isinstance(target, (tuple, list)) else (target, None)
        labels = check_labels(name, labels, unary)
        nodes = real_nodes(name, lengths, labels)
        for what, extra, at in (("start", start, torch.zeros_like(labels[:, 0])), ("end", end, nodes.sum(1) - 1)):
            if extra is None:
                continue
            if extra.shape not in ((K,), (B, K)):
                raise ValueError(
                    f"{name} got {what} scores of shape {tuple(extra.shape)}; expected ({K},) or ({B}, {K})"
                )
            unary = unary.index_put((torch.arange(B, device=at.device), at), extra.to(unary), accumulate=True)
        order = torch.arange(T, device=labels.device).expand(B, -1)
        return self._standard(
            unary, pairwise.expand(B, T - 1, K, K), Forest(labels, nodes, nodes[:, 1:], order[:, :-1], order)
        )

    def decode(self, scores: Any, target: Any = None, *, lengths: Any = None) -> Tensor:
        """The best labels ``[B, T]``, 0 on padding: a prediction, or with a target the loss-augmented one."""
        unary = check_scores(type(self).__name__, scores)[0]
        if target is None:
            blank = torch.zeros(unary.shape[:2], dtype=torch.long, device=unary.device)
            prepared, forest = self.prepare(scores, (blank, lengths))
        else:
            prepared, forest = self.prepare(scores, target)
        return self._labels(prepared, forest, augmented=target is not None)[:, : unary.shape[1]]
