"""CoNLL-2000 chunking by segments: the network and the split of ``chunking``, a score for every chunk as a whole.

    python -m experiments.structured.segments --data DIR     # about 15 minutes on one core

A word outside of all chunks is a segment of its own, and no chunk of the training sentences has more than 15 words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.structured.chunking import Sentence, Vocabulary, Words, f1, splits, words_task
from experiments.task import Task
from proxsvm.losses import CRF, StructuredHinge
from proxsvm.structures import Segments

LONGEST = 15
OUTSIDE = "O"


def encode(vocabulary: Vocabulary, kinds: list[str], sentence: Sentence) -> tuple[Tensor, ...]:
    """Words, suffixes and POS tags; the kind of every word, and whether a segment ends there."""
    labels = torch.tensor([kinds.index(chunk[2:] or OUTSIDE) for chunk in sentence.chunks])
    ends = torch.tensor([int(chunk[0] != "I") for chunk in (*sentence.chunks[1:], OUTSIDE)])
    return *vocabulary.encode(*sentence[:2]), labels, ends


class Chunker(Words):
    """Scores ``[B, T, L, K]`` of segments: of their first word, their last one, all of them, and their length."""

    def __init__(self, vocabulary: Vocabulary, K: int) -> None:
        super().__init__(vocabulary, 3 * K)
        self.length = nn.Parameter(torch.zeros(LONGEST, K))

    def forward(self, *inputs: Tensor) -> Tensor:
        first, last, each = super().forward(*inputs).chunk(3, 2)
        T = first.shape[1]
        end = (torch.arange(T)[:, None] + torch.arange(LONGEST)).clamp(max=T - 1)  # beyond the sentence: not used
        up_to = F.pad(each.cumsum(1), (0, 0, 1, 0))
        inside = up_to[:, end + 1] - up_to[:, :T, None]
        return first[:, :, None] + last[:, end] + inside + self.length


def tagged(outputs: Iterable[tuple[Tensor, tuple[Tensor, ...]]], kinds: list[str]) -> Iterator[tuple[Any, Any]]:
    """The BIO tags of each sentence and those of its best segments."""
    for scores, (labels, ends, lengths) in outputs:
        decoded = StructuredHinge(Segments()).decode(scores, lengths=lengths)
        for y, ending, found in zip(labels, ends, decoded, strict=True):
            cuts = [0, *(ending[: found[-1][1]].nonzero()[:, 0] + 1).tolist()]
            truth = [(a, b, y[a]) for a, b in pairwise(cuts)]
            yield tuple([tag for a, b, k in each for tag in tags(kinds[k], b - a)] for each in (truth, found))


def tags(kind: str, length: int) -> list[str]:
    """A segment as BIO tags."""
    return [OUTSIDE] * length if kind == OUTSIDE else [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)


def task(folder: Path) -> Task:
    split = splits(folder)
    vocabulary = Vocabulary(s[:2] for s in split["train"])
    kinds = sorted({chunk[2:] or OUTSIDE for s in split["train"] for chunk in s.chunks})
    return words_task(
        split.values(),
        partial(encode, vocabulary, kinds),
        network=partial(Chunker, vocabulary, len(kinds)),
        losses={"likelihood": lambda: CRF(Segments()), "hinge": lambda: StructuredHinge(Segments(), smooth=True)},
        judge=lambda outputs, _: f1(tagged(outputs, kinds)),
    )


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("first-segments")
