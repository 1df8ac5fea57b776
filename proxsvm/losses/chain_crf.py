"""The conditional random field over chains: the likelihood of a sequence of labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm.losses._chains import chain_target, chains
from proxsvm.losses._forest import Forest, ForestScores, best_labels
from proxsvm.losses._forest_crf import ForestCRF


class ChainCRF(ForestCRF):
    """ℓ(u; y) = −log p(y) = log Σ_ȳ exp(score(ȳ)) − score(y), by a forward-backward pass over the whole batch.

        score(y) = Σ_t unary[t, y_t] + Σ_t pairwise[t, y_t, y_{t+1}] + start[y_1] + end[y_T]

    Atom: s = the marginals of the chain − φ(y), c = its entropy. Scores, targets, lengths, masks and scores of −inf
    are as for :class:`~proxsvm.losses.ChainHinge`: unary ``[B, T, K]``, pairwise ``[K, K]`` or ``[B, T - 1, K, K]``,
    labels ``[B, T]``.

    Args:
        reduction: as in torch, over the sequences; see :class:`~proxsvm.losses.ConvexLoss`.

    >>> import torch
    >>> unary, agree = torch.zeros(1, 2, 2), torch.eye(2) * 2.0**0.5
    >>> value = ChainCRF()((unary, agree), torch.tensor([[0, 0]]))          # p = e^√2 / (2 e^√2 + 2) = 0.402
    >>> torch.exp(-value)
    tensor(0.4022)
    >>> node, edge = ChainCRF().marginals((unary, agree))
    >>> edge[0, 0]
    tensor([[0.4022, 0.0978],
            [0.0978, 0.4022]])
    """

    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        return chains(type(self).__name__, scores, *chain_target(type(self).__name__, target))

    def decode(self, scores: Any, *, lengths: Any = None) -> Tensor:
        """The most likely labels ``[B, T]``, 0 on padding; ``lengths`` ``[B]``, or a mask."""
        return best_labels(*chains(type(self).__name__, scores, None, lengths))[:, : scores[0].shape[1]]

    def marginals(self, scores: Any, *, lengths: Any = None) -> tuple[Tensor, Tensor]:
        """p(y_t) ``[B, T, K]`` and p(y_t, y_{t+1}) ``[B, T - 1, K, K]``, 0 on padding."""
        node, edge = self._marginals(*chains(type(self).__name__, scores, None, lengths))
        T = scores[0].shape[1]
        return node[:, :T], edge[:, 1:T]
