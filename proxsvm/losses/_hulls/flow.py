"""The flow polytope of forests: node and edge marginals that agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm.losses._hulls.base import Hull, Polytope, cvxpy, flat


@dataclass(frozen=True)
class Flow(Hull):
    """s = (μ, ν) − φ(y) over node marginals μ and edge marginals ν that agree; c = ⟨cost, μ⟩, or their entropy.

        μ, ν ≥ 0,  Σ_k μ_root(k) = 1,  Σ_child's label ν_e = μ_parent,  Σ_parent's label ν_e = μ_child

    On forests that is the hull of all labellings. For B forests of V nodes with K labels, node 0 a root and the parent
    of node e + 1 in ``parents[e]``: ``nodes`` ``[B, V]`` and ``edges`` ``[B, V - 1]`` are False on padding, where s is
    zero; ``truth`` is φ(y), ``[B, V, K]`` and ``[B, V - 1, K, K]``, ``allowed`` of the same shapes is False where μ and
    ν must be zero; ``cost`` is ``[B, V, K]``, and None stands for the entropy, which on forests is Bethe's:

        H(μ, ν) = H(μ_root) + Σ_e H(child | parent),      H(child | parent) = −Σ ν_e log(ν_e / μ_parent)
    """

    nodes: Tensor
    edges: Tensor
    parents: Tensor
    truth: tuple[Tensor, Tensor]
    allowed: tuple[Tensor, Tensor]
    cost: Tensor | None = None

    def lift(self, s: tuple[Tensor, Tensor]) -> Tensor:
        """⟨cost, μ⟩ or H(μ, ν), at (μ, ν) = s + φ(y)."""
        mu, nu = (a + b for a, b in zip(s, self.truth, strict=True))
        if self.cost is not None:
            return (self.cost * mu).sum((1, 2))
        return entropy(mu.clamp(min=0), nu.clamp(min=0), self.nodes, self.edges, self.parents)

    def express(self) -> Polytope:
        """μ and ν as variables."""
        cp, sparse = cvxpy(), load("scipy.sparse", extra="qp")
        (B, V, K), E = self.truth[0].shape, self.edges.shape[1]
        mu, nu = cp.Variable((B, V * K), nonneg=True), cp.Variable((B, E * K * K), nonneg=True)
        over_child = sparse.kron(sparse.eye(E * K), np.ones((K, 1)))
        over_parent = sparse.kron(sparse.eye(E), sparse.kron(np.ones((K, 1)), sparse.eye(K)))
        picks = [
            sparse.kron(sparse.csr_matrix((np.ones(E), (parents, range(E))), shape=(V, E)), sparse.eye(K))
            for parents in self.parents.tolist()
        ]
        may = [flat(x) for x in self.allowed]
        constraints = [cp.sum(mu[:, :K], axis=1) == 1, nu @ over_parent == mu[:, K:]]
        constraints += [nu[i] @ over_child == mu[i] @ pick for i, pick in enumerate(picks)]
        constraints += [cp.multiply(1 - ok, x) == 0 for ok, x in zip(may, (mu, nu), strict=True) if not ok.all()]
        s = tuple(
            cp.multiply(np.repeat(flat(real), size, axis=1) * ok, x) - flat(phi)
            for real, size, ok, x, phi in zip(
                (self.nodes, self.edges), (K, K * K), may, (mu, nu), self.truth, strict=True
            )
        )
        if self.cost is not None:
            return Polytope(s, cp.sum(cp.multiply(flat(self.cost), mu), axis=1), constraints)
        above = [mu[i] @ (pick @ over_child.T) for i, pick in enumerate(picks)]
        return Polytope(s, cp.hstack([self._entropy(i, mu[i], nu[i], above[i]) for i in range(B)]), constraints)

    def _entropy(self, i: int, mu: Any, nu: Any, above: Any) -> Any:
        """H of sample i; ``above``: μ_parent for every entry of ν. Entries that must be zero are left out."""
        cp, K = cvxpy(), self.truth[0].shape[2]
        label, pair = (x[i].cpu().numpy() for x in self.allowed)
        parent, child = label[self.parents[i].cpu().numpy()], label[1:]
        may = pair & parent[:, :, None] & child[:, None, :] & self.nodes[i, 1:].cpu().numpy()[:, None, None]
        at, root = np.flatnonzero(may), np.flatnonzero(label[0])
        return cp.sum(cp.entr(mu[:K][root])) - cp.sum(cp.rel_entr(nu[at], above[at]))


def entropy(mu: Tensor, nu: Tensor, nodes: Tensor, edges: Tensor, parents: Tensor) -> Tensor:
    """H(μ, ν) of every sample, ``[B]``: a root adds H(μ), every other node H(child | parent) = H(ν) − H(μ_parent)."""
    of_node: Tensor = torch.special.entr(mu).sum(2) * nodes
    of_edge: Tensor = torch.special.entr(nu).sum((2, 3)) - of_node.gather(1, parents)
    return of_node[:, 0] + torch.where(edges, of_edge, of_node[:, 1:]).sum(1)
