"""The conditional random field over trees: the likelihood of a labelled tree."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm.losses._forest import Forest, ForestScores, best_labels
from proxsvm.losses._forest_crf import ForestCRF
from proxsvm.losses._trees import tree_target, trees


class TreeCRF(ForestCRF):
    """ℓ(u; y) = −log p(y) = log Σ_ȳ exp(score(ȳ)) − score(y), for a tree given with each sample.

        score(y) = Σ_v unary[v, y_v] + Σ_v pairwise[v, y_parent(v), y_v]

    Atom: s = the marginals of the tree − φ(y), c = its entropy. Scores, targets, sizes, masks and scores of −inf are
    as for :class:`~proxsvm.losses.TreeHinge`: unary ``[B, V, K]``, pairwise ``[K, K]``, ``[V, K, K]`` or
    ``[B, V, K, K]``, target ``(labels, parents)`` or ``(labels, parents, sizes)``.

    Args:
        reduction: as in torch, over the trees; see :class:`~proxsvm.losses.ConvexLoss`.

    >>> import torch
    >>> star = torch.tensor([[-1, 0, 0]])                         # node 0 is the parent of both others
    >>> scores = torch.zeros(1, 3, 2), torch.zeros(2, 2)
    >>> value = TreeCRF()(scores, (torch.tensor([[0, 0, 1]]), star))        # one of eight
    >>> torch.exp(-value)
    tensor(0.1250)
    """

    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        return trees(type(self).__name__, scores, *tree_target(type(self).__name__, target))

    def decode(self, scores: Any, *, parents: Any, sizes: Any = None) -> Tensor:
        """The most likely labels ``[B, V]``, 0 on padding; ``sizes`` ``[B]``, or a mask."""
        return best_labels(*trees(type(self).__name__, scores, None, parents, sizes))[:, : scores[0].shape[1]]

    def marginals(self, scores: Any, *, parents: Any, sizes: Any = None) -> tuple[Tensor, Tensor]:
        """p(y_v) ``[B, V, K]`` and p(y_parent(v), y_v) ``[B, V, K, K]``, 0 on padding and at the edge into a root."""
        node, edge = self._marginals(*trees(type(self).__name__, scores, None, parents, sizes))
        V = scores[0].shape[1]
        return node[:, :V], edge[:, :V]
