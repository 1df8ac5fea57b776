"""CoNLL-2000 chunking: embeddings, a BiLSTM and a chain; structured hinge against CRF likelihood.

    python -m experiments.structured.chunking --data DIR     # about 15 minutes on one core

The last 10 % of the training sentences choose the epoch; F1 of chunks is seqeval's, which is conlleval's definition.
One seed, 2 cores, 2026-11-16: hinge 91.94, CRF with Adam 93.09, with SGD 91.95 (first-chunking.jsonl).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from experiments.task import Task, indices, need
from proxsvm._extras import load
from proxsvm.losses import ChainCRF, ChainHinge

HOW = (
    "CoNLL-2000 is conll2000/train.txt and conll2000/test.txt, lines of 'word POS chunk', from "
    "https://www.clips.uantwerpen.be/conll2000/chunking/."
)
Encoded = list[tuple[Tensor, ...]]


class Sentence(NamedTuple):
    words: list[str]
    pos: list[str]
    chunks: list[str]


def read(path: Path) -> list[Sentence]:
    """The sentences of a file in the official format: one word per line, an empty line between sentences."""
    blocks = need(path, HOW).read_text(encoding="utf-8").split("\n\n")
    rows = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
    return [Sentence(*(list(column) for column in zip(*block, strict=True))) for block in rows if block]


def splits(folder: Path) -> dict[str, list[Sentence]]:
    """The last tenth of the training sentences is held out."""
    sentences = read(folder / "conll2000" / "train.txt")
    held = len(sentences) // 10
    test = read(folder / "conll2000" / "test.txt")
    return {"train": sentences[:-held], "validation": sentences[-held:], "test": test}


class Vocabulary:
    """Indices of words (lower case, seen twice or more), three-letter suffixes with their case, POS tags and chunks."""

    def __init__(self, sentences: list[Sentence]) -> None:
        count = Counter(w.lower() for s in sentences for w in s.words)
        self.words = indexed(w for w, c in count.items() if c > 1)
        self.suffixes = indexed({shape(w) for s in sentences for w in s.words})
        self.pos = indexed({p for s in sentences for p in s.pos})
        self.chunks = sorted({c for s in sentences for c in s.chunks})
        self.chunk_at = {c: i for i, c in enumerate(self.chunks)}

    def encode(self, sentences: list[Sentence]) -> Encoded:
        """Each sentence as four index tensors; 0 is the unknown."""
        return [
            (
                torch.tensor([self.words.get(w.lower(), 0) for w in s.words]),
                torch.tensor([self.suffixes.get(shape(w), 0) for w in s.words]),
                torch.tensor([self.pos.get(p, 0) for p in s.pos]),
                torch.tensor([self.chunk_at.get(c, 0) for c in s.chunks]),
            )
            for s in sentences
        ]


def shape(word: str) -> str:
    """The suffix, and whether the word starts with a capital."""
    return ("^" if word[0].isupper() else "") + word[-3:].lower()


def indexed(items: Any) -> dict[str, int]:
    return {item: i for i, item in enumerate(sorted(items), start=1)}


def take(encoded: Encoded, index: Iterable[int]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A padded batch: words, suffixes, tags and lengths; what is to be predicted (here the chunks) and lengths."""
    chosen = [encoded[i] for i in index]
    columns = [pad_sequence(list(column), batch_first=True) for column in zip(*chosen, strict=True)]
    lengths = torch.tensor([len(sentence[-1]) for sentence in chosen])
    return (*columns[:3], lengths), (*columns[3:], lengths)


def batches(encoded: Encoded, generator: torch.Generator | None, size: int = 32, pool: int = 20) -> Sequence[Tensor]:
    """Random batches of sentences of similar length: each pool of sentences is sorted before it is split."""
    found: list[Tensor] = []
    for chosen in indices(len(encoded), size * pool, generator):
        in_order = sorted(chosen.tolist(), key=lambda i: len(encoded[i][0]))
        found += torch.tensor(in_order).split(size)
    return [found[i] for i in torch.randperm(len(found), generator=generator)]


class Words(nn.Module):
    """Scores ``[B, T, outputs]`` of the words of sentences, in their context."""

    def __init__(self, vocabulary: Vocabulary, outputs: int, width: int = 100, dropout: float = 0.5) -> None:
        super().__init__()
        self.words = nn.Embedding(len(vocabulary.words) + 1, width)
        self.suffixes = nn.Embedding(len(vocabulary.suffixes) + 1, 30)
        self.pos = nn.Embedding(len(vocabulary.pos) + 1, 30)
        self.lstm = nn.LSTM(width + 60, width, bidirectional=True, batch_first=True)
        self.head, self.dropout = nn.Linear(2 * width, outputs), nn.Dropout(dropout)

    def forward(self, words: Tensor, suffixes: Tensor, pos: Tensor, lengths: Tensor) -> Any:
        x = self.dropout(torch.cat([self.words(words), self.suffixes(suffixes), self.pos(pos)], -1))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(self.dropout(hidden))


class Tagger(Words):
    """Scores (unary, pairwise, start, end) of a chain."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        K = len(vocabulary.chunks)
        super().__init__(vocabulary, K)
        self.pairwise, self.start, self.end = (nn.Parameter(torch.zeros(s)) for s in ((K, K), (K,), (K,)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return super().forward(*inputs), self.pairwise, self.start, self.end


@torch.no_grad()
def chunk_f1(outputs: Iterable[tuple[Any, tuple[Tensor, Tensor]]], chunks: list[str]) -> float:
    """F1 of whole chunks, in percent, of scores and targets."""
    metrics = load("seqeval.metrics", extra="experiments")
    truth, found = [], []
    for scores, (labels, lengths) in outputs:
        decoded = ChainHinge().decode(scores, lengths=lengths)
        for row, y, length in zip(decoded, labels, lengths, strict=True):
            truth.append([chunks[k] for k in y[:length]])
            found.append([chunks[k] for k in row[:length]])
    return 100 * float(metrics.f1_score(truth, found))


def task(folder: Path) -> Task:
    split = splits(folder)
    vocabulary = Vocabulary(split["train"])
    train, val, test = map(vocabulary.encode, split.values())
    return Task(
        *(train, val, test),
        network=partial(Tagger, vocabulary),
        take=lambda encoded, index, _: take(encoded, index),
        batches=lambda _, generator: batches(train, generator),
        losses={"likelihood": ChainCRF, "hinge": partial(ChainHinge, smooth=True)},
        judge=lambda outputs, _: chunk_f1(outputs, vocabulary.chunks),
        evaluated=128,
    )


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("first-chunking")
