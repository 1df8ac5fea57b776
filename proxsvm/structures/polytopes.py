"""The marginals of structures in cvxpy, for ``ExactQP``: flows, and doubly stochastic matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxsvm._extras import load
from proxsvm._scores import FORBIDDEN
from proxsvm.structures._checks import before


class Marginals:
    """The marginals of a batch."""

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        """Variables ``[n, size]`` for each score tensor, their constraints, and the entropy ``[n]``, or None."""
        raise NotImplementedError(f"{type(self).__name__} must define express(with_entropy)")

    def entropy(self, mu: tuple[Tensor, ...]) -> Tensor | None:
        """The entropy of marginals, ``[n]``; None where it has no formula."""
        return None


@dataclass(frozen=True)
class FlowPolytope(Marginals):
    """Node marginals μ and edge marginals ν that agree: on forests, the hull of all labellings.

        μ, ν ≥ 0,  Σ_k μ_root(k) = 1,  Σ_child's label ν_e = μ_parent,  Σ_parent's label ν_e = μ_child

    ``nodes``, ``edges`` and ``parents`` are a ``Labelling``'s; ``allowed`` is False where μ and ν are 0.
    The entropy of a forest is Bethe's, H(μ_root) + Σ_e H(child | parent).
    """

    nodes: Tensor
    edges: Tensor
    parents: Tensor
    allowed: tuple[Tensor, ...]

    def entropy(self, mu: tuple[Tensor, ...]) -> Tensor:
        """H(μ, ν), ``[B]``: a root adds H(μ), every other node H(child | parent) = H(ν) − H(μ_parent)."""
        node, edge = (x.clamp(min=0) for x in mu)
        of_node: Tensor = torch.special.entr(node).sum(2) * self.nodes
        of_edge: Tensor = torch.special.entr(edge).sum((2, 3)) - of_node.gather(1, self.parents)
        return of_node[:, 0] + torch.where(self.edges, of_edge, of_node[:, 1:]).sum(1)

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        """μ ``[B, V K]`` and ν ``[B, (V - 1) K²]``."""
        cp, sparse = load("cvxpy", extra="qp"), load("scipy.sparse", extra="qp")
        (B, V, K), E = self.allowed[0].shape, self.edges.shape[1]
        mu, nu = cp.Variable((B, V * K), nonneg=True), cp.Variable((B, E * K * K), nonneg=True)
        over_child = sparse.kron(sparse.eye(E * K), np.ones((K, 1)))
        over_parent = sparse.kron(sparse.eye(E), sparse.kron(np.ones((K, 1)), sparse.eye(K)))
        picks = [
            sparse.kron(sparse.csr_matrix((np.ones(E), (parents, range(E))), shape=(V, E)), sparse.eye(K))
            for parents in self.parents.tolist()
        ]
        may = [x.flatten(1).cpu().numpy() for x in self.allowed]
        constraints = [cp.sum(mu[:, :K], axis=1) == 1, nu @ over_parent == mu[:, K:]]
        constraints += [nu[i] @ over_child == mu[i] @ pick for i, pick in enumerate(picks)]
        constraints += [cp.multiply(~ok, x) == 0 for ok, x in zip(may, (mu, nu), strict=True) if not ok.all()]
        masks = (self.nodes, K), (self.edges, K * K)
        real = [np.repeat(x.cpu().numpy(), n, axis=1) for x, n in masks]
        both = tuple(cp.multiply(m * ok, x) for m, ok, x in zip(real, may, (mu, nu), strict=True))
        if not with_entropy:
            return both, constraints, None
        above = [mu[i] @ (pick @ over_child.T) for i, pick in enumerate(picks)]
        return both, constraints, cp.hstack([self._entropy(i, mu[i], nu[i], above[i]) for i in range(B)])

    def _entropy(self, i: int, mu: Any, nu: Any, above: Any) -> Any:
        """H of sample i; ``above``: μ_parent for every entry of ν. Entries that must be zero are left out."""
        cp, K = load("cvxpy", extra="qp"), self.allowed[0].shape[2]
        label, pair = (x[i].cpu().numpy() for x in self.allowed)
        parent, child = label[self.parents[i].cpu().numpy()], label[1:]
        may = pair & parent[:, :, None] & child[:, None, :] & self.nodes[i, 1:].cpu().numpy()[:, None, None]
        at, root = np.flatnonzero(may), np.flatnonzero(label[0])
        return cp.sum(cp.entr(mu[:K][root])) - cp.sum(cp.rel_entr(nu[at], above[at]))


@dataclass(frozen=True)
class Birkhoff(Marginals):
    """μ ≥ 0 whose rows sum to 1 and whose columns sum to at most 1: the hull of all matchings (Birkhoff, 1946)."""

    scores: Tensor
    sizes: Tensor

    def express(self, with_entropy: bool) -> tuple[tuple[Any, ...], list[Any], Any]:
        """μ ``[B, n m]``."""
        cp, (B, n, m) = load("cvxpy", extra="qp"), self.scores.shape
        mu = cp.Variable((B, n * m), nonneg=True)
        row, column = (before(k, self.sizes[:, i]).cpu().numpy() for i, k in enumerate((n, m)))
        allowed = (row[:, :, None] & column[:, None] & (self.scores > FORBIDDEN / 2).cpu().numpy()).reshape(B, -1)
        rows, columns = np.kron(np.eye(n), np.ones((m, 1))), np.kron(np.ones((n, 1)), np.eye(m))
        return (mu,), [mu @ rows == row.astype(float), mu @ columns <= 1, cp.multiply(~allowed, mu) == 0], None
