"""The structured hinge over trees: every sample has its own tree."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxsvm.losses._forest import Forest, ForestScores
from proxsvm.losses._forest_hinge import ForestHinge
from proxsvm.losses._trees import tree_target, trees


class TreeHinge(ForestHinge):
    """ℓ(u; y) = max over labellings ȳ of score(ȳ) − score(y) + Δ(ȳ, y), for a tree given with each sample.

        score(y) = Σ_v unary[v, y_v] + Σ_v pairwise[v, y_parent(v), y_v]

    Scores: ``(unary, pairwise)`` with unary ``[B, V, K]`` and pairwise ``[K, K]``, ``[V, K, K]`` or ``[B, V, K, K]``,
    indexed (parent's label, child's label): entry v is the edge from v's parent to v, and a root's entry is not used.
    Target: ``(labels, parents)`` or, for trees of unequal size, ``(labels, parents, sizes)``, with labels ``[B, V]``,
    parents ``[B, V]`` (−1 at a root; several roots make a forest) and sizes ``[B]``, or a mask. Nodes may be in any
    order. A mask may leave out any nodes: the children of such a node become children of its nearest unmasked
    ancestor.

    Scores of −inf, +inf and NaN: as in :class:`~proxsvm.losses.ChainHinge`.

    Args: as in :class:`~proxsvm.losses.ChainHinge`; a chain is the tree with parents −1, 0, 1, …

    >>> import torch
    >>> unary = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]]])
    >>> star = torch.tensor([[-1, 0, 0]])                         # node 0 is the parent of both others
    >>> TreeHinge().decode((unary, torch.eye(2)), parents=star)   # either root agrees with one child
    tensor([[0, 0, 1]])
    >>> TreeHinge()((unary, torch.eye(2)), (torch.tensor([[0, 0, 0]]), star))   # [1, 0, 1]: 3 + 2 + 1 + Δ = 2, y: 5
    tensor(3.)
    """

    def _arrange(self, scores: Any, target: Any) -> tuple[ForestScores, Forest]:
        return trees(type(self).__name__, scores, *tree_target(type(self).__name__, target))

    def decode(self, scores: Any, target: Any = None, *, parents: Any = None, sizes: Any = None) -> Tensor:
        """The best labels ``[B, V]``, 0 on padding: a prediction for ``parents``, or augmented with a target."""
        if target is None:
            prepared, forest = trees(type(self).__name__, scores, None, parents, sizes)
        else:
            prepared, forest = self.prepare(scores, target)
        return self._labels(prepared, forest, augmented=target is not None)[:, : scores[0].shape[1]]
