"""The structures of the suite, each with random scores, a target, and every labelling that could be the target."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from proxsvm._scores import inner
from proxsvm.structures import Chain, Grid, LabelTree, Structure, Tree

B, T, K = 3, 4, 3


@dataclass(frozen=True)
class StructureCase:
    """``draw`` returns scores, a target, and a function that lists all targets of the same shape, each for the batch.

    ``given`` is what decoders need to know of a target: its lengths, its tree.
    """

    name: str
    structure: Callable[[], Structure]
    draw: Callable[[], tuple[Any, Any, list[Any]]]
    given: Callable[[Any], dict[str, Any]] = lambda target: {}

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


def label_tree() -> tuple[Any, Any, list[Any]]:
    return (
        (torch.randn(B, 4), torch.randn(4, 2, 2)),
        torch.randint(2, (B, 4)),
        [w.expand(B, 4) for w in words(4, 2)],
    )


def grid(masked: bool = False) -> tuple[Any, Any, list[Any]]:
    mask = torch.rand(B, 2, 3) < 0.7
    mask[:, 0, 0] = True

    def target(labels: Tensor) -> Any:
        return (labels, mask) if masked else labels

    scores = 2 * torch.randn(B, 2, 3), torch.rand(B, 2, 2), torch.rand(B, 1, 3)
    every = [target(w.view(2, 3).expand(B, 2, 3)) for w in words(6, 2)]
    return scores, target(torch.randint(2, (B, 2, 3))), every


def holes() -> Tensor:
    return torch.tensor([[True, True, False, True], [False, False, True, False], [True, False, True, True]])


CHAIN_LENGTHS = [4, 1, 3]
STRUCTURES = [
    StructureCase("chain", Chain, chain),
    StructureCase("chain-own", Chain, lambda: chain(own=True)),
    StructureCase(
        "chain-lengths",
        Chain,
        lambda: chain(own=True, ends=True, lengths=CHAIN_LENGTHS),
        lambda target: {"lengths": target[1]},
    ),
    StructureCase(
        "chain-mask", Chain, lambda: chain(ends=True, lengths=holes()), lambda target: {"lengths": target[1]}
    ),
    StructureCase(
        "chain-own-mask", Chain, lambda: chain(own=True, lengths=holes()), lambda target: {"lengths": target[1]}
    ),
    StructureCase("tree", Tree, tree, lambda target: {"parents": target[1]}),
    StructureCase("tree-own", Tree, lambda: tree(own=True), lambda target: {"parents": target[1]}),
    StructureCase(
        "tree-mask",
        Tree,
        lambda: tree(own=True, sizes=holes()),
        lambda target: {"parents": target[1], "sizes": target[2]},
    ),
    StructureCase("label-tree", lambda: LabelTree([-1, 0, 0, 1]), label_tree),
    StructureCase("grid", Grid, grid),
]
LIKELIHOODS = [case for case in STRUCTURES if case.structure().likelihood]

each_structure = pytest.mark.parametrize("case", STRUCTURES, ids=repr)
each_likelihood = pytest.mark.parametrize("case", LIKELIHOODS, ids=repr)


@dataclass(frozen=True)
class Enumeration:
    """All N labellings of a batch, by their φ, and their scores ``[N, B]``; ``u`` and ``y`` are prepared."""

    u: Any
    y: Any
    phi: list[Any]
    scores: Tensor


def enumerate_all(structure: Structure, scores: Any, target: Any, every: list[Any]) -> Enumeration:
    """By φ alone."""
    u, y = structure.prepare("test", scores, target)
    u = structure.expand(u, y)
    phi = [structure.features(structure.prepare("test", scores, other)[1], u) for other in every]
    return Enumeration(u, y, phi, torch.stack([inner(f, u) for f in phi]))
