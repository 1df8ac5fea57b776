"""The structures of the suite, each with random scores, a target, and every labelling that could be the target."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from proxsvm._scores import inner
from proxsvm.structures import (
    Alignment,
    Chain,
    Grid,
    LabelTree,
    Matching,
    ProjectiveTree,
    Segments,
    SpanningTree,
    Spans,
    Structure,
    Tree,
)
from proxsvm.structures.label_tree import Labels

B, T, K = 3, 4, 3


@dataclass(frozen=True)
class StructureCase:
    """``draw`` returns scores, a target, and all targets of its shape; ``known`` are lengths, or where they are."""

    name: str
    structure: Callable[[], Structure]
    draw: Callable[[], tuple[Any, Any, list[Any]]]
    known: dict[str, Any] = field(default_factory=dict)

    def given(self, target: Any) -> dict[str, Any]:
        """What decoders need to know of a target: its lengths, its tree."""
        return {name: target[at] if isinstance(at, int) else at for name, at in self.known.items()}

    def __repr__(self) -> str:
        return self.name


def words(size: int, labels: int) -> Tensor:
    return torch.tensor(list(itertools.product(range(labels), repeat=size)))


def chain(own: bool = False, ends: bool = False, lengths: Any = None) -> tuple[Any, Any, list[Any]]:
    scores = [torch.randn(B, T, K), torch.randn(B, T - 1, K, K) if own else torch.randn(K, K)]
    scores += [torch.randn(K), torch.randn(B, K)] if ends else []

    def target(labels: Tensor) -> Any:
        return labels if lengths is None else (labels, torch.as_tensor(lengths))

    return tuple(scores), target(torch.randint(K, (B, T))), [target(w.expand(B, T)) for w in words(T, K)]


def tree(own: bool = False, sizes: Any = None) -> tuple[Any, Any, list[Any]]:
    parents = torch.tensor([[-1, 0, 0, 1], [2, -1, 1, 2], [-1, 0, -1, 2]])
    scores = torch.randn(B, T, K), torch.randn(B, T, K, K) if own else torch.randn(K, K)

    def target(labels: Tensor) -> Any:
        return (labels, parents) if sizes is None else (labels, parents, torch.as_tensor(sizes))

    return scores, target(torch.randint(K, (B, T))), [target(w.expand(B, T)) for w in words(T, K)]


def labels(tree: bool) -> tuple[Any, Any, list[Any]]:
    scores = (torch.randn(B, 4), torch.randn(4, 2, 2)) if tree else (torch.randn(B, 4),)
    return scores, torch.randint(2, (B, 4)), [w.expand(B, 4) for w in words(4, 2)]


def grid() -> tuple[Any, Any, list[Any]]:
    scores = 2 * torch.randn(B, 2, 3), torch.rand(B, 2, 2), torch.rand(B, 1, 3)
    return scores, torch.randint(2, (B, 2, 3)), [w.view(2, 3).expand(B, 2, 3) for w in words(6, 2)]


# Structures whose samples have their own sizes: every labelling of each sample, padded to one shape, the last repeated.


def batched(per_sample: list[list[Tensor]], shape: tuple[int, ...], sizes: Tensor | None, fill: int = 0) -> list[Any]:
    def padded(x: Tensor) -> Tensor:
        full = torch.full(shape, fill)
        full[tuple(slice(n) for n in x.shape)] = x
        return full

    N = max(map(len, per_sample))
    every = [torch.stack([padded(options[min(k, len(options) - 1)]) for options in per_sample]) for k in range(N)]
    return [labels if sizes is None else (labels, sizes) for labels in every]


def draw_one(every: list[Any]) -> Any:
    return every[int(torch.randint(len(every), ()))]


def heads_of(n: int, projective: bool) -> list[Tensor]:
    """All trees over n words with one child of the root, by the definition."""
    found = []
    for heads in itertools.product(range(n + 1), repeat=n):
        reached, before = {0}, -1
        while len(reached) != before:
            before = len(reached)
            reached |= {m for m, h in enumerate(heads, 1) if h in reached}
        arcs = [(min(h, m), max(h, m)) for m, h in enumerate(heads, 1)]
        crossing = any(a < c < b < d for a, b in arcs for c, d in arcs)
        if len(reached) == n + 1 and heads.count(0) == 1 and not (projective and crossing):
            found.append(torch.tensor(heads))
    return found


def dependencies(projective: bool, lengths: list[int] | None = None, R: int = 0) -> tuple[Any, Any, list[Any]]:
    sizes = None if lengths is None else torch.tensor(lengths)
    every = batched([heads_of(n, projective) for n in lengths or [4] * B], (4,), None)
    if R:
        every = [(heads, kinds.expand(B, 4)) for heads in every for kinds in words(4, R)]
    if sizes is not None:
        every = [(*(x if isinstance(x, tuple) else (x,)), sizes) for x in every]
    return (torch.randn(B, 5, 5, *([R] if R else [])),), draw_one(every), every


def binary_trees(i: int, j: int) -> list[list[tuple[int, int]]]:
    if i == j:
        return [[(i, i)]]
    return [[(i, j), *a, *b] for k in range(i, j) for a in binary_trees(i, k) for b in binary_trees(k + 1, j)]


def spans(lengths: list[int] | None = None, labels: int = 2) -> tuple[Any, Any, list[Any]]:
    def of(n: int) -> list[Tensor]:
        found = []
        for tree in binary_trees(0, n - 1):
            for word in words(len(tree), labels):
                chart = torch.full((n, n), -1)
                for (i, j), k in zip(tree, word.tolist(), strict=True):
                    chart[i, j] = k
                found.append(chart)
        return found

    n = 3
    every = batched([of(m) for m in lengths or [n] * B], (n, n), None if lengths is None else torch.tensor(lengths), -1)
    return (torch.randn(B, n, n, labels),), draw_one(every), every


def segments(lengths: list[int] | None = None) -> tuple[Any, Any, list[Any]]:
    """At most two positions a segment, two labels."""

    def of(n: int) -> list[list[tuple[int, int, int]]]:
        if n == 0:
            return [[]]
        return [[*a, (n - m, n, k)] for m in (1, 2) if m <= n for a in of(n - m) for k in range(2)]

    options = [of(n) for n in lengths or [4] * B]
    every = [[o[min(k, len(o) - 1)] for o in options] for k in range(max(map(len, options)))]
    return (torch.randn(B, 4, 2, 2),), draw_one(every), every


def alignment(lengths: list[list[int]] | None = None) -> tuple[Any, Any, list[Any]]:
    def of(s: int, t: int) -> list[Tensor]:
        if s < 1 or t < 1:
            return []
        if (s, t) == (1, 1):
            return [torch.tensor([[0]])]
        found = []
        for move, (di, dj) in enumerate(((1, 1), (1, 0), (0, 1))):
            for before in of(s - di, t - dj):
                path = torch.full((s, t), -1)
                path[: s - di, : t - dj] = before
                path[-1, -1] = move
                found.append(path)
        return found

    sizes = None if lengths is None else torch.tensor(lengths)
    every = batched([of(s, t) for s, t in lengths or [[3, 3]] * B], (3, 3), sizes, -1)
    return (torch.randn(B, 3, 3, 3),), draw_one(every), every


def matching(sizes: list[list[int]] | None = None) -> tuple[Any, Any, list[Any]]:
    options = [[torch.tensor(p) for p in itertools.permutations(range(m), n)] for n, m in sizes or [[3, 4]] * B]
    every = batched(options, (3,), None if sizes is None else torch.tensor(sizes))
    return (torch.randn(B, 3, 4),), draw_one(every), every


def holes() -> Tensor:
    return torch.tensor([[True, True, False, True], [False, False, True, False], [True, False, True, True]])


LENGTHS = [4, 1, 3]
STRUCTURES = [
    StructureCase("chain", Chain, chain),
    StructureCase("chain-own", Chain, lambda: chain(own=True)),
    StructureCase("chain-lengths", Chain, lambda: chain(own=True, ends=True, lengths=LENGTHS), {"lengths": 1}),
    StructureCase("chain-mask", Chain, lambda: chain(ends=True, lengths=holes()), {"lengths": 1}),
    StructureCase("chain-own-mask", Chain, lambda: chain(own=True, lengths=holes()), {"lengths": 1}),
    StructureCase("tree", Tree, tree, {"parents": 1}),
    StructureCase("tree-own", Tree, lambda: tree(own=True), {"parents": 1}),
    StructureCase("tree-mask", Tree, lambda: tree(own=True, sizes=holes()), {"parents": 1, "sizes": 2}),
    StructureCase("labels", Labels, lambda: labels(tree=False)),
    StructureCase("label-tree", lambda: LabelTree([-1, 0, 0, 1]), lambda: labels(tree=True)),
    StructureCase("grid", Grid, grid),
    StructureCase("segments", Segments, segments),
    StructureCase("segments-lengths", Segments, lambda: segments(LENGTHS), {"lengths": LENGTHS}),
    StructureCase("projective", ProjectiveTree, lambda: dependencies(True)),
    StructureCase("projective-lengths", ProjectiveTree, lambda: dependencies(True, LENGTHS), {"lengths": -1}),
    StructureCase("projective-labels", ProjectiveTree, lambda: dependencies(True, [3, 1, 2], R=2), {"lengths": -1}),
    StructureCase("spanning", SpanningTree, lambda: dependencies(False)),
    StructureCase("spanning-lengths", SpanningTree, lambda: dependencies(False, LENGTHS), {"lengths": -1}),
    StructureCase("spanning-labels", SpanningTree, lambda: dependencies(False, [3, 1, 2], R=2), {"lengths": -1}),
    StructureCase("spans", Spans, lambda: spans(labels=1)),
    StructureCase("spans-lengths", Spans, lambda: spans([3, 1, 2]), {"lengths": 1}),
    StructureCase("alignment", Alignment, alignment),
    StructureCase("alignment-lengths", Alignment, lambda: alignment([[3, 3], [1, 2], [2, 3]]), {"lengths": 1}),
    StructureCase("matching", Matching, matching),
    StructureCase("matching-sizes", Matching, lambda: matching([[3, 4], [2, 2], [1, 3]]), {"sizes": 1}),
]
LIKELIHOODS = [case for case in STRUCTURES if case.structure().likelihood]

each_structure = pytest.mark.parametrize("case", STRUCTURES, ids=repr)
each_likelihood = pytest.mark.parametrize("case", LIKELIHOODS, ids=repr)


def form(tensors: Any) -> Any:
    """Scores in the form in which a structure takes them: one tensor, or a tuple."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


@dataclass(frozen=True)
class Enumeration:
    """All N labellings of a batch, by their φ, and their scores ``[N, B]``; ``u`` and ``y`` are prepared."""

    u: Any
    y: Any
    phi: list[Any]
    scores: Tensor


def enumerate_all(structure: Structure, scores: Any, target: Any, every: list[Any]) -> Enumeration:
    """By φ alone."""
    u, y = structure.prepare("test", form(scores), target)
    u = structure.expand(u, y)
    phi = [structure.features(structure.prepare("test", form(scores), other)[1], u) for other in every]
    return Enumeration(u, y, phi, torch.stack([inner(f, u) for f in phi]))
