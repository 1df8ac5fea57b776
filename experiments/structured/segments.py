"""CoNLL-2000 chunking by segments: the network and the split of ``chunking``, a score for every chunk as a whole.

    python -m experiments.structured.segments --data DIR     # about 15 minutes on one core

A word outside of all chunks is a segment of its own, and no chunk of the training sentences has more than 15 words.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.structured import chunking
from experiments.structured.chunking import Encoded, Vocabulary, Words
from experiments.task import Task
from proxsvm._extras import load
from proxsvm.losses import CRF, StructuredHinge
from proxsvm.structures import Segments

LONGEST = 15
OUTSIDE = "O"


def kinds_of(vocabulary: Vocabulary) -> list[str]:
    return sorted({chunk[2:] or OUTSIDE for chunk in vocabulary.chunks})


def encode(sentences: list[chunking.Sentence], vocabulary: Vocabulary) -> Encoded:
    """Words, suffixes and POS tags; the kind of every word, and whether a segment ends there."""
    kinds, found = kinds_of(vocabulary), []
    for sentence, inputs in zip(sentences, vocabulary.encode(sentences), strict=True):
        labels = torch.tensor([kinds.index(chunk[2:] or OUTSIDE) for chunk in sentence.chunks])
        ends = torch.tensor([int(chunk[0] != "I") for chunk in (*sentence.chunks[1:], OUTSIDE)])
        found.append((*inputs[:3], labels, ends))
    return found


class Chunker(Words):
    """Scores ``[B, T, L, K]`` of segments: of their first word, their last one, all of them, and their length."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        K = len(kinds_of(vocabulary))
        super().__init__(vocabulary, 3 * K)
        self.length = nn.Parameter(torch.zeros(LONGEST, K))

    def forward(self, *inputs: Tensor) -> Tensor:
        first, last, each = super().forward(*inputs).chunk(3, 2)
        T = first.shape[1]
        end = (torch.arange(T)[:, None] + torch.arange(LONGEST)).clamp(max=T - 1)  # beyond the sentence: not used
        up_to = F.pad(each.cumsum(1), (0, 0, 1, 0))
        inside = up_to[:, end + 1] - up_to[:, :T, None]
        return first[:, :, None] + last[:, end] + inside + self.length


@torch.no_grad()
def chunk_f1(outputs: Iterable[tuple[Tensor, tuple[Tensor, ...]]], kinds: list[str]) -> float:
    """F1 of whole chunks, in percent, of scores and targets."""
    found, truth = [], []
    for scores, (labels, ends, lengths) in outputs:
        for segments in StructuredHinge(Segments()).decode(scores, lengths=lengths):
            found.append([tag for start, end, k in segments for tag in tags(kinds[k], end - start)])
        for y, ending, length in zip(labels, ends, lengths, strict=True):
            cuts = [0, *(ending[:length].nonzero()[:, 0] + 1).tolist()]
            truth.append([tag for a, b in pairwise(cuts) for tag in tags(kinds[y[a]], b - a)])
    return 100 * float(load("seqeval.metrics", extra="experiments").f1_score(truth, found))


def tags(kind: str, length: int) -> list[str]:
    """A segment as BIO tags."""
    return [OUTSIDE] * length if kind == OUTSIDE else [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)


def task(folder: Path) -> Task:
    split = chunking.splits(folder)
    vocabulary = Vocabulary(split["train"])
    train, val, test = (encode(sentences, vocabulary) for sentences in split.values())
    return Task(
        *(train, val, test),
        network=partial(Chunker, vocabulary),
        take=lambda encoded, index, _: chunking.take(encoded, index),
        batches=lambda _, generator: chunking.batches(train, generator),
        losses={"likelihood": lambda: CRF(Segments()), "hinge": lambda: StructuredHinge(Segments(), smooth=True)},
        judge=lambda outputs, _: chunk_f1(outputs, kinds_of(vocabulary)),
        evaluated=128,
    )


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("first-segments")
