"""The structured hinge over chains: sequences with scores for labels and for transitions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm.losses._chains import chain_target, chains
from proxsvm.losses._forest import Forest, ForestScores
from proxsvm.losses._forest_hinge import ForestHinge


class ChainHinge(ForestHinge):
    """ℓ(u; y) = max over sequences ȳ of score(ȳ) − score(y) + Δ(ȳ, y), by a loss-augmented Viterbi pass.

        score(y) = Σ_t unary[t, y_t] + Σ_t pairwise[t, y_t, y_{t+1}] + start[y_1] + end[y_T]

    Scores: ``(unary, pairwise)`` or ``(unary, pairwise, start, end)`` with unary ``[B, T, K]``, pairwise ``[K, K]`` or
    ``[B, T - 1, K, K]`` indexed (from, to), start and end ``[K]``, ``[B, K]`` or None.
    Target: labels ``[B, T]``; for unequal lengths ``(labels, lengths)`` with lengths ``[B]``, or ``(labels, mask)``.
    Scores and labels on padding are ignored.

    A mask may leave out any positions: the loss is that of the remaining chain, so a transition leads from one
    unmasked position to the next. Of pairwise scores with one entry per transition, it uses the entry that leads
    into the later of the two.

    A score of −inf forbids a label or a transition (``transitions.masked_fill(illegal, -torch.inf)``): no prediction
    uses it and no gradient reaches it. Where the true labels are forbidden the loss is +inf; NaN or +inf among the
    scores make it NaN. In both cases the optimizer skips the step, or raises with ``nonfinite="raise"``.

    Args:
        cost: the Δ of one position as a ``[K, K]`` matrix indexed (predicted, true), summed over positions; the
            number of wrong labels if None.
        normalize: divide Δ by the length of the sequence.
        smooth: train with the marginals of the chain, s = p − φ(y) with the expected Δ, for every sequence where that
            can raise the dual, and with the hinge's own atom for the others.
        reduction: as in torch, see :class:`~proxsvm.losses.PiecewiseLinearLoss`.

    >>> import torch
    >>> unary = torch.tensor([[[2.0, 0.0], [0.0, 0.5]]])
    >>> agree = torch.eye(2)
    >>> ChainHinge()((unary, agree), torch.tensor([[0, 0]]))     # the best is [0, 1]: 2 + 0.5 + Δ = 1 against 3
    tensor(0.5000)
    >>> ChainHinge().decode((unary, agree))
    tensor([[0, 0]])
    """

    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        return chains(type(self).__name__, scores, *chain_target(type(self).__name__, target))

    def decode(self, scores: Any, target: Any = None, *, lengths: Any = None) -> Tensor:
        """The best labels ``[B, T]``, 0 on padding: a prediction, or with a target the loss-augmented one."""
        if target is None:
            prepared, forest = chains(type(self).__name__, scores, None, lengths)
        else:
            prepared, forest = self.prepare(scores, target)
        return self._labels(prepared, forest, augmented=target is not None)[:, : scores[0].shape[1]]
