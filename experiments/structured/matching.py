"""Matching on OCR letters: the letters of a word, shuffled, are put into alphabetical order from their pixels.

    python -m experiments.structured.matching --data DIR     # some minutes on one core

A sample is a word's different letters; every letter has to find its rank among them. A small convolutional network sees
each letter and the mean of all. The hinge of the matching beside a cross-entropy of each letter's rank; both predict by
the best matching. Folds 2-9 are for training, fold 1 chooses the epoch, fold 0 is the test set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.structured import chunking, ocr
from experiments.task import Task, indices, percent, seen, within
from proxsvm.losses import CrossEntropy, StructuredHinge
from proxsvm.structures import Matching

Letters = chunking.Encoded  # pixels [n, 128] and ranks [n] of each word


def shuffled(words: Sequence[Tensor], generator: torch.Generator) -> Letters:
    """The different letters of every word in random order; words of one letter are left out."""
    found = []
    for x, labels, length in zip(*words, strict=True):
        at = {int(labels[t]): t for t in torch.randperm(int(length), generator=generator)}
        letters = torch.tensor(list(at))
        if len(at) > 1:
            found.append((x[list(at.values()), :128], letters.argsort().argsort()))
    return found


def take(split: Letters, index: Iterable[int], _: object = None) -> tuple[Any, Any]:
    """A padded batch: pixels ``[B, n, 128]`` and sizes; ranks ``[B, n]`` and sizes ``[B, 2]``."""
    (pixels, sizes), (ranks, _) = chunking.take(split, index, inputs=1)
    return (pixels, sizes), (ranks, sizes[:, None].repeat(1, 2))


class Ranker(nn.Module):
    """Scores ``[B, n, n]`` of a letter at a rank, from the letter and the mean of the word's letters."""

    def __init__(self, most: int, width: int = 64) -> None:
        super().__init__()
        self.letter = ocr.Letters(width)
        self.rank = nn.Sequential(nn.Linear(2 * width + 1, width), nn.ReLU(), nn.Linear(width, most))

    def forward(self, pixels: Tensor, sizes: Tensor) -> Tensor:
        n = pixels.shape[1]
        x = self.letter(pixels) * within(sizes, n)[..., None]
        word = torch.cat([x.sum(1) / sizes[:, None], sizes[:, None] / n], 1)
        return self.rank(torch.cat([x, word[:, None].expand(-1, n, -1)], 2))[..., :n]


def rank_by_rank(scores: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Every letter chooses its rank alone."""
    ranks, sizes = target
    real = within(sizes[:, 0], scores.shape[1])
    return scores.masked_fill(~real[:, None], -torch.inf)[real], ranks[real]


@torch.no_grad()
def in_order(outputs: Iterable[tuple[Tensor, tuple[Tensor, Tensor]]], _: str) -> dict[str, float]:
    """Letters at their rank and words in order, in percent."""
    letters, words = percent(
        (StructuredHinge(Matching()).decode(scores, sizes=sizes) == ranks, within(sizes[:, 0], scores.shape[1]))
        for scores, (ranks, sizes) in outputs
    )
    return {"letters": letters, "words": words}


def task(folder: Path) -> Task:
    words, fold = ocr.load(folder / "letter.data")
    generator = torch.Generator().manual_seed(0)
    train, val, test = (shuffled(words[part], generator) for part in (fold > 1, fold == 1, fold == 0))
    return Task(
        *(train, val, test),
        network=lambda: Ranker(max(len(y) for _, y in train + val + test)),
        take=take,
        batches=lambda _, generator: indices(len(train), 32, generator),
        losses={"ce": seen(CrossEntropy, rank_by_rank), "hinge": lambda: StructuredHinge(Matching())},
        judge=in_order,
    )


if __name__ == "__main__":
    from experiments.sweep import alias

    alias("first-matching")
