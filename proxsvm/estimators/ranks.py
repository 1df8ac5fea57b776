"""Rows that one process does not hold: on several ranks, or memory-mapped on disk.

A round of CoCoA+ (adding, with σ′ the number R of ranks that have rows). Rank k improves its own dual variables s_i
against the W of the round's start, as if each change of W would be made by all ranks at once,

    max over s_i of  Σ_{i in k} ω_i C (⟨s_i, W x_i⟩ + c_i) − (σ′/2) ‖ΔW_k‖²,       ΔW_k = −C Σ_{i in k} ω_i Δs_i x_iᵀ

by block steps whose step-size is σ′ times as large. Then W ← W + Σ_k ΔW_k, the one vector that is summed over the
ranks. The same visit of the rows yields their share of P and D at the W of the start, so the gap is certified with one
read of the data. Rows on disk are visited block by block.

It is a proximal gradient method on the dual, in the norm σ′ Σ_k ‖ΔW_k‖², so Nesterov's momentum applies: the round
starts around y = s + β (s − the s before), of which only its W is needed; β is 0 again where the dual has fallen.

References: Ma, Smith, Jaggi, Jordan, Richtárik and Takáč, Adding vs. Averaging in Distributed Primal-Dual Optimization,
ICML 2015. Yu, Hsieh, Chang and Lin, Large Linear Classification When Data Cannot Fit in Memory, KDD 2010. O'Donoghue
and Candès, Adaptive Restart for Accelerated Gradient Schemes, Foundations of Computational Mathematics 2015.
"""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from proxsvm._kernels.tensors import Array
from proxsvm._ranks import Ranks, ranks_of
from proxsvm.losses.base import Atom, ConvexLoss
from proxsvm.problem import ProxProblem
from proxsvm.solvers import BlockFW
from proxsvm.solvers._block.base import BlockState, flat_atom
from proxsvm.solvers.base import Progress

BLOCK_BYTES = 2**26  # of memory-mapped features, which are read block by block
REFRESH = 20  # rounds until W is recomputed from s, without the rounding errors of many sums

F = TypeVar("F", bound=Callable[..., Any])


# Errors and agreement.


class RankError(RuntimeError):
    """An error that every rank raises, so that none waits for another."""


def exchange(ranks: Ranks, mine: Any, error: str | None = None) -> list[Any]:
    """What each rank passes. Where one passes an error, all raise it."""
    found = _lost_ranks_explained(ranks.gather, (error, mine))
    errors = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(found) if text is not None]
    if errors:
        raise RankError("; ".join(errors))
    return [x for _, x in found]


def _lost_ranks_explained(act: Callable[..., Any], *args: Any) -> Any:
    try:
        return act(*args)
    except RuntimeError as error:
        raise RankError(
            "a rank has ended, or did not answer within the process group's timeout: see its own output, and start "
            f"all ranks again. (torch said: {str(error).splitlines()[0]})"
        ) from error


def shares_errors(fit: F) -> F:
    """Let the error of one rank be raised on all of them."""

    @functools.wraps(fit)
    def on_rank(self: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
        try:
            return fit(self, X, y, sample_weight)
        except RankError:
            raise
        except Exception as error:
            ranks = ranks_of(self.process_group)
            if ranks is not None:
                with suppress(RankError):  # the others raise it; here its cause is better
                    exchange(ranks, None, f"{type(error).__name__}: {error}")
            raise

    return cast(F, on_rank)


def agree(ranks: Ranks, mine: dict[str, Any]) -> None:
    """Raise the same error on every rank, unless all pass the same values; a rank that cannot know passes None."""
    found = exchange(ranks, mine)
    for name in mine:
        known = {rank: x[name] for rank, x in enumerate(found) if x[name] is not None}
        first = next(iter(known), 0)
        odd = next((rank for rank, value in known.items() if value != known[first]), None)
        if odd is not None:
            raise RankError(
                f"the ranks disagree on {name}: it is {known[first]} on rank {first} and {known[odd]} on rank "
                f"{odd}. Call fit() on every rank with the same options, the same columns and targets of one kind"
            )


def unique(y: Array, ranks: Ranks | None) -> tuple[Array, Array, Array]:
    """The classes on all ranks, the index of each target, and the count of each class on all ranks."""
    if ranks is None:
        return np.unique(y, return_inverse=True, return_counts=True)
    agree(ranks, {"the kind of the classes": y.dtype.kind if len(y) else None})
    found = [pair for pair in exchange(ranks, np.unique(y, return_counts=True)) if len(pair[0])]
    if not found:
        raise RankError("no rank has a sample: expected at least one row on some rank")
    names, counts = (np.concatenate(each) for each in zip(*found, strict=True))
    classes, at = np.unique(names, return_inverse=True)
    indices = np.searchsorted(classes, y) if len(y) else np.zeros(0, np.int64)
    return classes, indices, np.bincount(at, counts).astype(np.int64)


# Rows on disk.


def is_mapped(X: Any) -> bool:
    """Whether an array, or the entries of a CSR matrix, are memory-mapped and larger than a block."""
    x = getattr(X, "data", None) if hasattr(X, "indptr") else X
    large = isinstance(x, np.ndarray) and x.nbytes > BLOCK_BYTES
    while isinstance(x, np.ndarray):
        x = x.base
    return large and isinstance(x, mmap.mmap)


def blocks_of(X: Any) -> list[slice]:
    """The rows of each block: of all of them where X is in memory."""
    n = X.shape[0]
    if not is_mapped(X):
        return [slice(0, n)] if n else []
    size, starts = X.data.nbytes, getattr(X, "indptr", np.arange(n + 1))
    at = np.linspace(0, starts[-1], min(-(-size // BLOCK_BYTES), n) + 1)  # about as many entries in each block
    edges = np.unique(np.r_[0, np.searchsorted(starts, at[1:-1]), n])
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


# The solver.


@dataclass
class Shard:
    """This rank's rows, in blocks that are read one at a time, and its part of the dual point.

    ``read``: the features of a slice of the rows, with the column of the intercept; ``weight``: zeros in the shape of
    the weights; ``start``: a dual point of a block, if one is known.
    """

    loss: ConvexLoss
    read: Callable[[slice], Any]
    blocks: list[slice]
    target: Array
    omega: Array
    weight: Tensor
    C: float
    inner: int
    start: Callable[[ProxProblem, slice], Atom | None] | None

    def __post_init__(self) -> None:
        self.blocks = [rows for rows in self.blocks if self.omega[rows].sum() > 0]
        self.states: list[BlockState | None] = [None] * len(self.blocks)
        self._only: Any = None
        for rows in self.blocks[:1]:
            first = torch.as_tensor(self.target[rows][:1])
            scores, target = self.loss.prepare(self.weight.new_zeros(1, *self.weight.shape[:-1]), first)
            if self.loss.weights(scores, target) is not None:
                raise ValueError(
                    f"{self.loss!r} has class weights of its own, whose mean over all rows no rank and no block knows: "
                    "give class_weight to the estimator instead"
                )

    def load(self, k: int, sigma: float) -> Any:
        """Block k, read from disk, or the only one, which stays in memory."""
        from proxsvm.solvers._block.rows import ShardBlocks  # it imports numba, which takes half a second

        if self._only is not None:
            return self._only
        rows = self.blocks[k]
        problem = ProxProblem.from_features(
            self.loss,
            self.read(rows),
            torch.as_tensor(self.target[rows]),
            lr=sigma * self.share(k),
            weight=self.weight,
            sample_weight=torch.as_tensor(self.omega[rows]),
        )
        block = ShardBlocks(problem, self.inner, self.states[k])
        if self.states[k] is None and self.start and (atom := self.start(problem, rows)) is not None:
            block.begin(flat_atom(atom))
        self.states[k] = block.state
        self._only = block if len(self.blocks) == 1 else None
        return block

    def share(self, k: int) -> float:
        """C Σω of block k."""
        return self.C * float(self.omega[self.blocks[k]].sum())

    def atom(self) -> Atom:
        """The dual point of all rows; (0, 0) for those without weight."""
        n, out = len(self.target), self.weight.shape[:-1]
        s, c = self.weight.new_zeros(n, *out), self.weight.new_zeros(n)
        for rows, state in zip(self.blocks, self.states, strict=True):
            assert state is not None
            found = state.combination()
            s[rows], c[rows] = (torch.as_tensor(x).to(s) for x in (found.s.reshape(-1, *out), found.offset))
        return Atom(s, c)


class Found(NamedTuple):
    """The best weights, their P and a certified P − D, both over η; rounds, and this rank's dual point, if known."""

    weight: Tensor
    primal: float
    gap: float
    relative: float
    rounds: int
    atom: Atom | None


def solve_in_rounds(shard: Shard, ranks: Ranks | None, eta: float, sigma: int, solver: BlockFW) -> Found:
    """Rounds until the gap is small; ``eta`` is C Σω over all ranks, ``sigma`` the number of ranks with rows."""
    try:
        return _rounds(shard, ranks, eta, sigma, solver)
    except Exception as error:
        if ranks is None or isinstance(error, RankError):
            raise
        raise RankError(f"{type(error).__name__} in a round, which ends the other ranks, too: {error}") from error


def _rounds(shard: Shard, ranks: Ranks | None, eta: float, sigma: int, solver: BlockFW) -> Found:
    def total(x: Array) -> Array:
        if ranks is not None:
            _lost_ranks_explained(ranks.sum, torch.as_tensor(x))  # in place
        return x

    def own(block: Any) -> Array:
        """What a block contributes to W, from its s."""
        moved: Array = block.problem.displacement(block.problem.vertex(block.atom()))[0].numpy()
        return moved.reshape(W.shape) / sigma

    rng = np.random.default_rng(solver.seed)
    weight = shard.weight
    W = np.zeros((weight[..., 0].numel(), weight.shape[-1]), weight.numpy().dtype)
    for k in range(len(shard.blocks) if shard.start else 0):
        W += own(shard.load(k, sigma))
    total(W)
    best, primal, dual, progress = W, math.inf, -math.inf, None
    change, mine, before = np.zeros_like(W), np.zeros_like(W), -math.inf  # ΣΔW_k, ΔW_k and D of the last round
    t, beta = 1.0, 0.0
    for rounds in range(solver.max_passes):
        refresh = rounds % REFRESH == REFRESH - 1
        first = W + beta * (change - sigma * mine)  # the W of the local problem around y, at its own s
        moved, fresh, numbers = first.copy(), np.zeros_like(W), np.zeros(3)
        for at, k in enumerate(rng.permutation(len(shard.blocks))):
            block = shard.load(k, sigma)
            block.W[:] = W
            now = block.evaluate()
            numbers += shard.share(k) / eta * np.array([now.dual, now.dual + now.gap, block.dual_of_start])
            if at > 0 or beta:
                block.W[:] = moved
                now = block.evaluate()
            block.sweep(rng, now, 0.0)
            moved[:] = block.W
            if refresh:
                fresh += own(block)
        mine = (moved - first) / sigma
        new = total(fresh) if refresh else W + total(mine.copy())
        D, P, D0 = (float(x) for x in total(numbers))
        progress = progress or Progress(D0, tol=solver.tol, callback=solver.callback)
        if primal > P:
            best, primal = W, P
        dual = max(dual, D)
        if progress.stop(rounds, dual, primal - dual):
            break
        after = (1 + math.sqrt(1 + 4 * t**2)) / 2
        t, beta = (after, (t - 1) / after) if before <= D else (1.0, 0.0)
        change, before, W = new - W, D, new
    gap = max(primal - dual, 0.0)
    relative = gap / (primal - D0) if gap else 0.0
    return Found(torch.as_tensor(best).reshape(weight.shape), primal, gap, relative, rounds + 1, shard.atom())
