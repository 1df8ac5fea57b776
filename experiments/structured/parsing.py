"""Dependency parsing on UD English EWT: a BiLSTM with biaffine scores; trees against heads one by one.

    python -m experiments.structured.parsing --data DIR                     # the study
    python -m experiments.structured.parsing --data DIR --picture RUN FILE  # a test sentence; RUN: a folder in --out

3,000 training sentences of at most 25 words, without crossing arcs, so that every loss has the same; 500 such sentences
of dev choose η and the epoch. The test set is complete: 2,077 sentences. Gold UPOS tags are given, relations are the 37
universal ones (subtypes cut off, as in the CoNLL 2018 task's scorer), punctuation counts.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from experiments.structured.chunking import Encoded, batches, indexed, shape, take
from experiments.task import Task, need
from proxsvm.losses import CRF, CrossEntropy, StructuredHinge
from proxsvm.structures import ProjectiveTree, SpanningTree

HOW = (
    "UD English EWT is UD_English-EWT/en_ewt-ud-{train,dev,test}.conllu, from "
    "https://github.com/UniversalDependencies/UD_English-EWT."
)
LONGEST, TRAIN, HELD = 25, 3_000, 500
ROOT = "<root>"


class Sentence(NamedTuple):
    words: list[str]
    tags: list[str]
    heads: list[int]
    relations: list[str]

    @property
    def arcs(self) -> list[tuple[int, str]]:
        return list(zip(self.heads, self.relations, strict=True))

    @property
    def projective(self) -> bool:
        """Whether no two arcs cross."""
        arcs = [(min(h, m), max(h, m)) for m, h in enumerate(self.heads, 1)]
        return not any(a < c < b < d for a, b in arcs for c, d in arcs)


def read(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file; multi-word tokens and empty nodes (1-2, 1.1) are left out."""
    found = []
    for block in need(path, HOW).read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if line[:1] != "#"]
        columns = list(zip(*(row for row in rows if row[0].isdigit()), strict=True))
        relations = [relation.partition(":")[0] for relation in columns[7]]
        found.append(Sentence(list(columns[1]), list(columns[3]), list(map(int, columns[6])), relations))
    return found


def by_length(sentence: Sentence) -> int:
    return len(sentence.words)


def splits(folder: Path) -> dict[str, list[Sentence]]:
    """Short projective sentences to train with and to choose by; all of the test set."""
    train, held, test = (read(folder / "UD_English-EWT" / f"en_ewt-ud-{s}.conllu") for s in ("train", "dev", "test"))
    train, held = ([s for s in part if len(s.words) <= LONGEST and s.projective] for part in (train, held))
    step = max(1, len(train) // TRAIN)  # of all genres: the files are sorted by them
    return {"train": train[::step][:TRAIN], "validation": held[:: max(1, len(held) // HELD)][:HELD], "test": test}


class Vocabulary:
    """Indices of words (lower case, seen twice or more), suffixes with their case, tags and relations."""

    def __init__(self, sentences: list[Sentence]) -> None:
        words = Counter(w.lower() for s in sentences for w in s.words)
        self.words = indexed([ROOT, *(w for w, c in words.items() if c > 1)])
        self.suffixes = indexed({ROOT, *(shape(w) for s in sentences for w in s.words)})
        self.tags = indexed({ROOT, *(t for s in sentences for t in s.tags)})
        self.relations = indexed({r for s in sentences for r in s.relations})
        self.names = ["?", *self.relations]

    def encode(self, sentences: list[Sentence]) -> Encoded:
        """Each sentence as index tensors: words, suffixes and tags of the nodes, heads and relations of the words."""
        return [
            (
                torch.tensor([self.words.get(w, 0) for w in (ROOT, *map(str.lower, s.words))]),
                torch.tensor([self.suffixes.get(x, 0) for x in (ROOT, *map(shape, s.words))]),
                torch.tensor([self.tags.get(t, 0) for t in (ROOT, *s.tags)]),
                torch.tensor(s.heads),
                torch.tensor([self.relations.get(r, 0) for r in s.relations]),
            )
            for s in sentences
        ]


class Parser(nn.Module):
    """Scores ``[B, T + 1, T + 1, R]`` of labelled arcs: that of the arc and that of its relation, both biaffine."""

    def __init__(self, vocabulary: Vocabulary, width: int = 100, arc: int = 100, relation: int = 16) -> None:
        super().__init__()
        sizes = {len(vocabulary.words) + 1: 64, len(vocabulary.suffixes) + 1: 32, len(vocabulary.tags) + 1: 32}
        self.embeddings = nn.ModuleList(nn.Embedding(n, d) for n, d in sizes.items())
        self.lstm = nn.LSTM(sum(sizes.values()), width, bidirectional=True, batch_first=True)
        self.head, self.word = (nn.Linear(2 * width, arc + relation) for _ in range(2))
        self.arc = nn.Linear(arc, arc + 1, bias=False)
        self.relation = nn.Parameter(torch.randn(len(vocabulary.names), relation + 1, relation + 1) / relation)
        self.dropout, self.sizes = nn.Dropout(0.33), (arc, relation)

    def forward(self, words: Tensor, suffixes: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        x = torch.cat([e(i) for e, i in zip(self.embeddings, (words, suffixes, tags), strict=True)], -1)
        packed = pack_padded_sequence(self.dropout(x), lengths + 1, batch_first=True, enforce_sorted=False)
        x = self.dropout(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])
        head, kind = self.head(x).relu().split(self.sizes, 2)
        word, own = self.word(x).relu().split(self.sizes, 2)
        arcs = with_one(head) @ self.arc(word).transpose(1, 2)
        kinds = torch.einsum("bhi,rij,bmj->bhmr", with_one(kind), self.relation, with_one(own))
        return arcs[..., None] + kinds


def with_one(x: Tensor) -> Tensor:
    """x and a constant feature."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


class HeadByHead(CrossEntropy):
    """The usual loss: every word chooses its head and relation alone, whether or not the arcs are a tree."""

    def prepare(self, scores: Any, target: Any) -> Any:
        heads, relations, lengths = target
        _, N, _, R = scores.shape
        node = torch.arange(N)
        allowed = (node[:, None] <= lengths[:, None, None]) & (node[:, None] != node[1:])  # [B, head, word]
        u = scores[:, :, 1:].masked_fill(~allowed[..., None], -torch.inf).transpose(1, 2).flatten(2)
        real = node[1:] <= lengths[:, None]
        return super().prepare(u[real], (heads * R + relations)[real])


STRUCTURES = {"ce": SpanningTree, "spanning": SpanningTree, "projective": ProjectiveTree}
LOSSES = {
    "ce": HeadByHead,
    "spanning-likelihood": lambda: CRF(SpanningTree()),
    "spanning-hinge": lambda: StructuredHinge(SpanningTree(), smooth=True),
    "projective-likelihood": lambda: CRF(ProjectiveTree()),
    "projective-hinge": lambda: StructuredHinge(ProjectiveTree(), smooth=True),
}


@torch.no_grad()
def attachment(outputs: Iterable[tuple[Tensor, tuple[Tensor, ...]]], loss: str) -> dict[str, float]:
    """Labelled and unlabelled attachment and exact sentences (heads and relations), in percent, by the best tree."""
    structure = StructuredHinge(STRUCTURES[loss.partition("-")[0]]())
    counts = torch.zeros(5, dtype=torch.long)
    for scores, (heads, relations, lengths) in outputs:
        found, kinds = structure.decode(scores, lengths=lengths)
        real = torch.arange(heads.shape[1]) < lengths[:, None]
        arc = (found == heads) & real
        both = arc & (kinds == relations)
        exact = (both | ~real).all(1)
        counts += torch.stack([both.sum(), arc.sum(), real.sum(), exact.sum(), torch.tensor(len(exact))])
    las, uas, words, exact, sentences = counts.tolist()
    return {"LAS": 100 * las / words, "UAS": 100 * uas / words, "exact": 100 * exact / sentences}


def task(folder: Path) -> Task:
    split = splits(folder)
    vocabulary = Vocabulary(split["train"])
    train, val, test = (vocabulary.encode(sorted(part, key=by_length)) for part in split.values())
    return Task(
        *(train, val, test),
        network=partial(Parser, vocabulary),
        take=lambda encoded, index, _: take(encoded, index),
        batches=lambda _, generator: batches(train, generator),
        losses=LOSSES,
        judge=attachment,
        evaluated=64,
    )


def draw(run: Path, folder: Path, file: Path) -> None:
    """A test sentence of 9 to 13 words with one or two mistakes: its tree above, the prediction of a run below."""
    import matplotlib.pyplot as plt

    from experiments import config, train

    given = config.from_dict(json.loads((run / "config.json").read_text())["config"])
    training = train.Training.of(replace(given, data=str(folder)))
    train.folder.resume(run, training.parts)
    decode, model = StructuredHinge(STRUCTURES[given.loss.partition("-")[0]]()).decode, training.model.eval()
    names, sentences = Vocabulary(splits(folder)["train"]).names, sorted(splits(folder)["test"], key=by_length)
    for at in (at for at, s in enumerate(sentences) if 9 <= len(s.words) <= 13 and s.words[0].istitle()):
        inputs, (*_, lengths) = take(training.task.test, [at])
        found, kinds = (x[0].tolist() for x in decode(model(*inputs), lengths=lengths))
        predicted, truth = list(zip(found, (names[k] for k in kinds), strict=True)), sentences[at].arcs
        if 0 < sum(a != b for a, b in zip(predicted, truth, strict=True)) < 3:
            break
    figure, axes = plt.subplots(figsize=(1.05 * len(truth), 5), layout="constrained")
    t = torch.linspace(0, torch.pi, 50)
    for side, tree, marker in ((1, truth, "v"), (-1, predicted, "^")):
        for m, (h, name) in enumerate(tree):
            color = "#1b9e77" if (h, name) == truth[m] else "#d95f02"
            start, top = (m, 2.5) if h == 0 else (h - 1, 0.3 + 0.4 * abs(h - 1 - m) ** 0.75)
            x, y = (
                start + (m - start) * (1 - t.cos()) / 2,
                side * (0.25 + (top - 0.25) * (t / 2 if h == 0 else t).sin()),
            )
            axes.plot(x, y, color=color, lw=1.2)
            axes.plot(m, 0.25 * side, marker, color=color, ms=5)
            axes.text((start + m) / 2, side * (top + 0.1), name, color=color, ha="center", va="center", fontsize=8)
    for m, word in enumerate(sentences[at].words):
        axes.text(m, 0, word, ha="center", va="center")
    axes.axis("off")
    figure.savefig(file, dpi=110, facecolor="white")


if __name__ == "__main__":
    from experiments.sweep import alias

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--picture", type=Path, nargs=2, metavar=("RUN", "FILE"))
    parser.add_argument("--data", type=Path, default=Path("data"))
    given, rest = parser.parse_known_args()
    if given.picture:
        draw(given.picture[0], given.data, given.picture[1])
    else:
        alias("parsing", words=["--data", str(given.data), *rest])
