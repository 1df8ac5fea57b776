"""CoNLL-2000 as a multi-label set: which kinds of chunks are in a sentence, predicted from its words.

    python -m experiments.structured.sentences --data DIR    # two seeds, two η; some minutes on one core

Of the kinds that occur, those in 1 % to 95 % of the training sentences are kept: adjectives, adverbs, conjunctions and
the like. They are rare, and judged by the ranking of all test sentences: mean average precision. The last 10 % of the
training sentences choose the epoch and η. Results: experiments/results/small/first-sentences.jsonl.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from experiments.structured.chunking import Encoded, Sentence, Vocabulary, splits
from experiments.task import Task, seen
from proxsvm._extras import load
from proxsvm.losses import AveragePrecisionHinge, BinaryCrossEntropy, MultiLabelHinge

RARE, COMMON = 0.01, 0.95


def take(encoded: Encoded, index: Tensor, _: object = None) -> tuple[tuple[Tensor, ...], Tensor]:
    """All words and suffixes of some sentences, and where each sentence starts; its kinds."""
    words, suffixes, y = zip(*(encoded[i] for i in index), strict=True)
    starts = torch.tensor([0, *map(len, words)]).cumsum(0)[:-1]
    return (torch.cat(words), torch.cat(suffixes), starts), torch.stack(y)


def kinds(sentences: list[Sentence]) -> list[str]:
    """The kinds of chunks that are neither very rare nor in nearly every sentence."""
    found = [{c[2:] for c in s.chunks if c != "O"} for s in sentences]
    share = {k: np.mean([k in one for one in found]) for k in sorted(set().union(*found))}
    return [k for k, often in share.items() if RARE <= often <= COMMON]


def labelled(sentence: Sentence, vocabulary: Vocabulary, wanted: list[str]) -> tuple[Tensor, ...]:
    """Its words and suffixes, and which kinds of chunks it has, ``[L]`` of 0 and 1."""
    words, suffixes, _ = vocabulary.encode(*sentence[:2])
    return words, suffixes, torch.tensor([int(any(c[2:] == k for c in sentence.chunks)) for k in wanted])


class Bag(nn.Module):
    """The mean of the embeddings of words and suffixes, and one hidden layer."""

    def __init__(self, vocabulary: Vocabulary, labels: int, width: int = 64) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(len(vocabulary.words) + 1, width)
        self.suffixes = nn.EmbeddingBag(len(vocabulary.suffixes) + 1, width)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, labels))

    def forward(self, words: Tensor, suffixes: Tensor, starts: Tensor) -> Tensor:
        return self.head(torch.cat([self.words(words, starts), self.suffixes(suffixes, starts)], 1))


@torch.no_grad()
def mean_average_precision(outputs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The mean over the kinds of the average precision of their ranking of all sentences, in percent."""
    metrics = load("sklearn.metrics", extra="estimators")
    scores, y = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    both = [k for k in range(y.shape[1]) if 0 < int(y[:, k].sum()) < len(y)]
    return 100 * float(np.mean([metrics.average_precision_score(y[:, k], scores[:, k]) for k in both]))


def task(folder: Path) -> Task:
    split = splits(folder)
    vocabulary, wanted = Vocabulary(s[:2] for s in split["train"]), kinds(split["train"])
    return Task(
        *([labelled(s, vocabulary, wanted) for s in part] for part in split.values()),
        network=partial(Bag, vocabulary, len(wanted)),
        take=take,
        losses={
            "ce": BinaryCrossEntropy,
            "hinge": partial(MultiLabelHinge, smooth=True),
            # scores [n, L]: for each kind the sentences of the batch are ranked
            "average-precision-hinge": seen(AveragePrecisionHinge, lambda scores, target: (scores.T, target.T)),
        },
        judge=lambda outputs, _: mean_average_precision(outputs),
    )


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("first-sentences")
