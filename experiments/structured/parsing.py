"""Dependency parsing on UD English EWT: a BiLSTM with biaffine scores; trees against heads one by one.

    python -m experiments.structured.parsing --data DIR      # an hour on one core

3,000 training sentences of at most 25 words, without crossing arcs, so that every loss has the same; 500 such sentences
of dev choose η and the epoch. The test set is complete: 2,077 sentences. Gold UPOS tags are given, relations are the 37
universal ones (subtypes cut off, as in the CoNLL 2018 task's scorer), punctuation counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from experiments.structured.chunking import Vocabulary, Words, indexed, words_task
from experiments.task import Task, need, percent, seen, within
from proxsvm.losses import CRF, CrossEntropy, StructuredHinge
from proxsvm.structures import ProjectiveTree, SpanningTree, Structure

LONGEST, TRAIN, HELD = 25, 3_000, 500
ROOT = "<root>"


class Sentence(NamedTuple):
    words: list[str]
    tags: list[str]
    heads: list[int]
    relations: list[str]

    @property
    def projective(self) -> bool:
        """Whether no two arcs cross."""
        arcs = [(min(h, m), max(h, m)) for m, h in enumerate(self.heads, 1)]
        return not any(a < c < b < d for a, b in arcs for c, d in arcs)


def read(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file; multi-word tokens and empty nodes (1-2, 1.1) are left out."""
    found = []
    for block in need(path, "parsing").read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if line[:1] != "#"]
        columns = list(zip(*(row for row in rows if row[0].isdigit()), strict=True))
        relations = [relation.partition(":")[0] for relation in columns[7]]
        found.append(Sentence(list(columns[1]), list(columns[3]), list(map(int, columns[6])), relations))
    return found


def splits(folder: Path) -> dict[str, list[Sentence]]:
    """Short projective sentences to train with and to choose by; all of the test set."""
    train, held, test = (read(folder / "UD_English-EWT" / f"en_ewt-ud-{s}.conllu") for s in ("train", "dev", "test"))
    train, held = ([s for s in part if len(s.words) <= LONGEST and s.projective] for part in (train, held))
    step = max(1, len(train) // TRAIN)  # of all genres: the files are sorted by them
    return {"train": train[::step][:TRAIN], "validation": held[:: max(1, len(held) // HELD)][:HELD], "test": test}


class Parser(Words):
    """Scores ``[B, T + 1, T + 1, R]`` of labelled arcs: that of the arc and that of its relation, both biaffine."""

    def __init__(self, vocabulary: Vocabulary, relations: int, arc: int = 100, relation: int = 16) -> None:
        super().__init__(vocabulary, arc + relation, sizes=(64, 32, 32), dropout=0.33)
        self.word = nn.Linear(*self.head.weight.T.shape)
        self.arc = nn.Linear(arc, arc + 1, bias=False)
        self.relation = nn.Parameter(torch.randn(relations, relation + 1, relation + 1) / relation)
        self.sizes = arc, relation

    def forward(self, *inputs: Tensor) -> Tensor:
        *nodes, lengths = inputs
        x = self.encode(*nodes, lengths + 1)
        head, kind = self.head(x).relu().split(self.sizes, 2)
        word, own = self.word(x).relu().split(self.sizes, 2)
        arcs = with_one(head) @ self.arc(word).transpose(1, 2)
        kinds = torch.einsum("bhi,rij,bmj->bhmr", with_one(kind), self.relation, with_one(own))
        return arcs[..., None] + kinds


def with_one(x: Tensor) -> Tensor:
    """x and a constant feature."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def head_by_head(scores: Any, target: Any) -> tuple[Tensor, Tensor]:
    """As usual: every word chooses its head and relation alone, whether or not the arcs are a tree."""
    heads, relations, lengths = target
    _, N, _, R = scores.shape
    node = torch.arange(N)
    allowed = (node[:, None] <= lengths[:, None, None]) & (node[:, None] != node[1:])  # [B, head, word]
    u = scores[:, :, 1:].masked_fill(~allowed[..., None], -torch.inf).transpose(1, 2).flatten(2)
    real = within(lengths, N - 1)
    return u[real], (heads * R + relations)[real]


LOSSES = {
    "ce": seen(CrossEntropy, head_by_head),
    "spanning-likelihood": lambda: CRF(SpanningTree()),
    "spanning-hinge": lambda: StructuredHinge(SpanningTree(), smooth=True),
    "projective-likelihood": lambda: CRF(ProjectiveTree()),
    "projective-hinge": lambda: StructuredHinge(ProjectiveTree(), smooth=True),
}


def structure_of(loss: str) -> Structure:
    """Whose best tree is predicted."""
    return ProjectiveTree() if loss.startswith("projective") else SpanningTree()


@torch.no_grad()
def attachment(outputs: Iterable[tuple[Tensor, tuple[Tensor, ...]]], loss: str) -> dict[str, float]:
    """Labelled and unlabelled attachment and exact sentences (heads and relations), in percent, by the best tree."""
    structure = StructuredHinge(structure_of(loss))
    arcs, both = [], []
    for scores, (heads, relations, lengths) in outputs:
        found, kinds = structure.decode(scores, lengths=lengths)
        real = within(lengths, heads.shape[1])
        arcs.append((found == heads, real))
        both.append(((found == heads) & (kinds == relations), real))
    las, exact = percent(both)
    return {"LAS": las, "UAS": percent(arcs)[0], "exact": exact}


def task(folder: Path) -> Task:
    """A sample is the words, suffixes and tags of the nodes, and heads and relations of the words."""
    split = splits(folder)
    vocabulary = Vocabulary((s[:2] for s in split["train"]), start=(ROOT,))
    index = indexed({r for s in split["train"] for r in s.relations})  # 0 is the unknown

    def encode(s: Sentence) -> tuple[Tensor, ...]:
        relations = torch.tensor([index.get(r, 0) for r in s.relations])
        return *vocabulary.encode(*s[:2]), torch.tensor(s.heads), relations

    parts = [sorted(part, key=lambda s: len(s.words)) for part in split.values()]
    network = partial(Parser, vocabulary, len(index) + 1)
    return words_task(parts, encode, evaluated=64, network=network, losses=LOSSES, judge=attachment)


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("parsing")
