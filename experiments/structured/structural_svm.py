"""A linear chain SVM solved as one problem, to a certificate.

    min over w of  λ/2 ‖w‖² + (1/n) Σ_i ℓ(u_i(w); y_i)          u = (x W, A)

is the proximal problem at w_t = 0 with η = 1/λ on the whole training set. Block-coordinate Frank-Wolfe
(Lacoste-Julien et al., ICML 2013) with a working set of labellings for each word and pairwise steps on it: a block is
a mini-batch of words, each word moves from its worst active labelling to its best one, and the steps of a block are
found together, as a small quadratic program over a box.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from proxsvm.losses import ChainHinge


class Progress(NamedTuple):
    """A certified state: P ≥ optimum ≥ D."""

    passes: int
    seconds: float
    primal: float
    dual: float

    @property
    def relative_gap(self) -> float:
        return (self.primal - self.dual) / self.primal


class ChainSVM:
    """x ``[N, T, D]``, labels ``[N, T]``, lengths ``[N]``; the weights are ``W`` ``[D, K]`` and ``A`` ``[K, K]``."""

    def __init__(self, x: Tensor, labels: Tensor, lengths: Tensor, K: int, decay: float, memory: int = 30) -> None:
        self.x, self.labels, self.lengths, self.decay = x.double(), labels, lengths, decay
        N, T, D = x.shape
        self.loss = ChainHinge()
        self.real = torch.arange(T) < lengths[:, None]
        self.W, self.A = torch.zeros(D, K, dtype=torch.double), torch.zeros(K, K, dtype=torch.double)
        self.atoms = labels[:, None].repeat(1, memory, 1)  # [N, memory, T]; the first is y itself
        self.alpha = torch.zeros(N, memory, dtype=torch.double)
        self.alpha[:, 0] = 1
        self.lam = 0.0

    def scores(self, block: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[block] @ self.W, self.A

    def value(self, block: Tensor, labelling: Tensor) -> Tensor:
        """⟨φ(ȳ), u⟩ + Δ(ȳ, y) of labellings ``[m, M, T]``, as ``[m, M]``."""
        unary, A = self.scores(block)
        real = self.real[block][:, None]
        node = unary.gather(2, labelling.transpose(1, 2)).transpose(1, 2) + (labelling != self.labels[block][:, None])
        edge = A[labelling[..., :-1], labelling[..., 1:]]
        return (node * real).sum(-1) + (edge * real[..., 1:]).sum(-1)

    def features(self, block: Tensor, labelling: Tensor) -> Tensor:
        """Jᵀφ(ȳ) of one labelling ``[m, T]`` per word, as ``[m, P]``."""
        return self.mean_features(block, labelling[:, None], torch.ones(len(block), 1, dtype=torch.double))

    def mean_features(self, block: Tensor, labelling: Tensor, alpha: Tensor) -> Tensor:
        """Σ_a alpha_a Jᵀφ(ȳ_a) of labellings ``[m, M, T]``, as ``[m, P]``."""
        K, (m, _, T) = self.W.shape[1], labelling.shape
        weight = alpha[..., None] * self.real[block][:, None]
        at = torch.arange(T) * K + labelling
        node = torch.zeros(m, T * K, dtype=torch.double).scatter_add_(1, at.flatten(1), weight.flatten(1))
        pair = labelling[..., :-1] * K + labelling[..., 1:]
        edge = torch.zeros(m, K * K, dtype=torch.double)
        edge.scatter_add_(1, pair.flatten(1), weight[..., 1:].flatten(1))
        return torch.cat([(self.x[block].transpose(1, 2) @ node.view(m, T, K)).flatten(1), edge], 1)

    def ask_oracle(self, block: Tensor) -> None:
        """Put each word's loss-augmented labelling into its working set, replacing an unused one."""
        found = self.loss.decode(self.scores(block), (self.labels[block], self.lengths[block]))
        value = self.value(block, self.atoms[block])
        place = torch.where(self.alpha[block] > 0, torch.inf, value).argmin(1)
        weight = self.alpha[block].gather(1, place[:, None])[:, 0]
        use = weight == 0  # a full set keeps what it has
        self.atoms[block[use], place[use]] = found[use]

    def step(self, block: Tensor) -> None:
        """Move every word of the block from its worst active labelling to its best one, by the best amounts."""
        atoms, alpha = self.atoms[block], self.alpha[block]
        value = self.value(block, atoms)
        best, worst = value.argmax(1), torch.where(alpha > 0, value, torch.inf).argmin(1)
        rows, n = torch.arange(len(block)), len(self.x)
        up, down = atoms[rows, best], atoms[rows, worst]
        direction = (self.features(block, up) - self.features(block, down)) / n
        ascent = (value[rows, best] - value[rows, worst]) / n
        gamma = torch.as_tensor(
            _box_qp(ascent.numpy(), (direction @ direction.T / self.decay).numpy(), alpha[rows, worst].numpy())
        )
        alpha[rows, best] += gamma
        alpha[rows, worst] -= gamma
        self.alpha[block] = alpha.clamp(min=0)
        self._set(torch.cat([self.W.flatten(), self.A.flatten()]) - gamma @ direction / self.decay)

    def _set(self, w: Tensor) -> None:
        self.W, self.A = w[: self.W.numel()].view_as(self.W), w[self.W.numel() :].view_as(self.A)

    def certify(self) -> tuple[float, float]:
        """P and D, with the weights and lam computed afresh from the working sets."""
        n, lam = len(self.x), 0.0
        w = torch.zeros(self.W.numel() + self.A.numel(), dtype=torch.double)
        for block in torch.arange(n).split(256):
            alpha, atoms = self.alpha[block], self.atoms[block]
            alpha = alpha / alpha.sum(1, keepdim=True)
            self.alpha[block] = alpha
            real = self.real[block][:, None]
            wrong = ((atoms != self.labels[block][:, None]) & real).sum(-1)
            lam += float((alpha * wrong).sum()) / n
            phi = self.mean_features(block, atoms, alpha) - self.features(block, self.labels[block])
            w -= phi.sum(0) / (n * self.decay)
        self._set(w)
        risk = 0.0
        for block in torch.arange(n).split(256):
            value = self.loss(self.scores(block), (self.labels[block], self.lengths[block]))
            risk += float(value) * len(block) / n
        norm = self.decay / 2 * float(w.square().sum())
        return risk + norm, lam - norm

    def solve(
        self, *, tol: float, max_passes: int, block: int = 32, inner: int = 6, seed: int = 0
    ) -> Iterator[Progress]:
        """Pass over the words until the certified relative gap (P − D)/P is at most ``tol``; yields after each pass."""
        draw = torch.Generator().manual_seed(seed)
        began = time.perf_counter()
        for passes in range(1, max_passes + 1):
            for words in torch.randperm(len(self.x), generator=draw).split(block):
                self.ask_oracle(words)
                for _ in range(inner):
                    self.step(words)
            primal, dual = self.certify()
            now = Progress(passes, time.perf_counter() - began, primal, dual)
            yield now
            if now.relative_gap <= tol:
                return


def _box_qp(ascent: np.ndarray, gram: np.ndarray, upper: np.ndarray, sweeps: int = 4) -> np.ndarray:
    """argmax of ⟨a, γ⟩ − ½ γᵀ G γ over 0 ≤ γ ≤ upper, by coordinate ascent."""
    gamma, gradient = np.zeros_like(ascent), ascent.copy()
    for _ in range(sweeps):
        for j in np.flatnonzero(upper * np.diag(gram) > 0):
            after = min(upper[j], max(0.0, gamma[j] + gradient[j] / gram[j, j]))
            if after != gamma[j]:
                gradient -= (after - gamma[j]) * gram[j]
                gamma[j] = after
    return gamma
