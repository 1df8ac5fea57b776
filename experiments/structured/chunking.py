"""CoNLL-2000 chunking: embeddings, a BiLSTM and a chain; structured hinge against CRF likelihood.

    python -m experiments.structured.chunking --data DIR     # about 15 minutes on one core

The last 10 % of the training sentences choose the epoch; F1 of chunks is seqeval's, which is conlleval's definition.
One seed, 2 cores, 2026-11-16: hinge 91.94, CRF with Adam 93.09, with SGD 91.95 (first-chunking.jsonl).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from experiments.task import Task, need, similar
from proxsvm._extras import load
from proxsvm.losses import ChainCRF, ChainHinge

Encoded = list[tuple[Tensor, ...]]
WIDTH = 100  # of the LSTM, in each direction


class Sentence(NamedTuple):
    words: list[str]
    pos: list[str]
    chunks: list[str]


def read(path: Path) -> list[Sentence]:
    """The sentences of a file in the official format: one word per line, an empty line between sentences."""
    blocks = need(path, "chunking").read_text(encoding="utf-8").split("\n\n")
    rows = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
    return [Sentence(*(list(column) for column in zip(*block, strict=True))) for block in rows if block]


def splits(folder: Path) -> dict[str, list[Sentence]]:
    """The last tenth of the training sentences is held out."""
    sentences = read(folder / "conll2000" / "train.txt")
    held = len(sentences) // 10
    test = read(folder / "conll2000" / "test.txt")
    return {"train": sentences[:-held], "validation": sentences[-held:], "test": test}


class Vocabulary:
    """Indices of words (lower case, seen twice or more), three-letter suffixes with their case, and tags of words.

    0 is the unknown. Every sentence begins with the words of ``start``.
    """

    def __init__(self, sentences: Iterable[tuple[list[str], list[str]]], start: tuple[str, ...] = ()) -> None:
        words, tags = (list(chain(*column)) for column in zip(*sentences, strict=True))
        self.start = start
        self.words = indexed([*start, *(w for w, c in Counter(map(str.lower, words)).items() if c > 1)])
        self.suffixes, self.pos = indexed({*start, *map(shape, words)}), indexed({*start, *tags})

    def encode(self, words: list[str], tags: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        columns = (self.words, map(str.lower, words)), (self.suffixes, map(shape, words)), (self.pos, tags)
        return tuple(torch.tensor([index.get(x, 0) for x in (*self.start, *column)]) for index, column in columns)  # type: ignore[return-value]


def shape(word: str) -> str:
    """The suffix, and whether the word starts with a capital."""
    return ("^" if word[0].isupper() else "") + word[-3:].lower()


def indexed(items: Any) -> dict[str, int]:
    return {item: i for i, item in enumerate(sorted(items), start=1)}


def take(encoded: Encoded, index: Iterable[int], _: object = None, inputs: int = 3) -> tuple[Any, Any]:
    """A padded batch: the ``inputs`` (words, suffixes, tags) and lengths; what is to be predicted, and lengths."""
    chosen = [encoded[i] for i in index]
    columns = [pad_sequence(list(column), batch_first=True) for column in zip(*chosen, strict=True)]
    lengths = torch.tensor([len(sentence[-1]) for sentence in chosen])
    return (*columns[:inputs], lengths), (*columns[inputs:], lengths)


class Words(nn.Module):
    """Scores ``[B, T, outputs]`` of the words of sentences, in their context. ``sizes``: of the three embeddings."""

    def __init__(
        self, vocabulary: Vocabulary, outputs: int, sizes: Sequence[int] = (100, 30, 30), dropout: float = 0.5
    ) -> None:
        super().__init__()
        indices = vocabulary.words, vocabulary.suffixes, vocabulary.pos
        self.words, self.suffixes, self.pos = (nn.Embedding(len(i) + 1, d) for i, d in zip(indices, sizes, strict=True))
        self.lstm = nn.LSTM(sum(sizes), WIDTH, bidirectional=True, batch_first=True)
        self.head, self.dropout = nn.Linear(2 * WIDTH, outputs), nn.Dropout(dropout)

    def encode(self, words: Tensor, suffixes: Tensor, pos: Tensor, lengths: Tensor) -> Tensor:
        """The states of both directions, ``[B, T, 2 · WIDTH]``."""
        x = self.dropout(torch.cat([self.words(words), self.suffixes(suffixes), self.pos(pos)], -1))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.dropout(nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])

    def forward(self, *inputs: Tensor) -> Any:
        return self.head(self.encode(*inputs))


class Tagger(Words):
    """Scores (unary, pairwise, start, end) of a chain of ``K`` chunks."""

    def __init__(self, vocabulary: Vocabulary, K: int) -> None:
        super().__init__(vocabulary, K)
        self.pairwise, self.start, self.end = (nn.Parameter(torch.zeros(s)) for s in ((K, K), (K,), (K,)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return super().forward(*inputs), self.pairwise, self.start, self.end


@torch.no_grad()
def f1(tagged: Iterable[tuple[list[str], list[str]]]) -> float:
    """F1 of whole chunks, in percent, from the true BIO tags of each sentence and those that were found."""
    truth, found = zip(*tagged, strict=True)
    return 100 * float(load("seqeval.metrics", extra="experiments").f1_score(list(truth), list(found)))


def tagged(outputs: Iterable[tuple[Any, tuple[Tensor, Tensor]]], chunks: list[str]) -> Iterator[tuple[Any, Any]]:
    """The tags of each sentence and those of its best chain."""
    for scores, (labels, lengths) in outputs:
        for *rows, length in zip(labels, ChainHinge().decode(scores, lengths=lengths), lengths, strict=True):
            yield tuple([chunks[k] for k in row[:length]] for row in rows)


def words_task(
    parts: Iterable[Iterable[Any]], encode: Callable[[Any], tuple[Tensor, ...]], evaluated: int = 128, **options: Any
) -> Task:
    """Training, validation and test sentences in batches of similar length."""
    train, val, test = ([encode(sentence) for sentence in part] for part in parts)
    lengths = torch.tensor([len(sentence[0]) for sentence in train])
    batches = lambda _, generator: similar(lengths, 32, generator, pool=20)  # noqa: E731
    return Task(train, val, test, take=take, batches=batches, evaluated=evaluated, **options)


def task(folder: Path) -> Task:
    split = splits(folder)
    vocabulary = Vocabulary(s[:2] for s in split["train"])
    chunks = sorted({chunk for s in split["train"] for chunk in s.chunks})
    at = {chunk: i for i, chunk in enumerate(chunks)}
    return words_task(
        split.values(),
        lambda s: (*vocabulary.encode(*s[:2]), torch.tensor([at.get(chunk, 0) for chunk in s.chunks])),
        network=partial(Tagger, vocabulary, len(chunks)),
        losses={"likelihood": ChainCRF, "hinge": partial(ChainHinge, smooth=True)},
        judge=lambda outputs, _: f1(tagged(outputs, chunks)),
    )


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("first-chunking")
