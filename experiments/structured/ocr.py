"""OCR letters (Taskar et al. 2003): words of 16 × 8 pixel letters, 26 labels.

    python -m experiments.structured.ocr --data DIR                # both protocols; some minutes on one core
    python -m experiments.structured.ocr --data DIR --verify 6     # one step on a word of six letters, certified

"small" trains on fold 0 and tests on folds 1-9, "large" is the reverse. Letter errors on 2 cores, 2026-11-16: a chain
SVM solved to a gap of 1e-3 20.4 and 15.0 %, trained by ProxOptimizer 20.3 and 16.6 %, no structure 27.3 and 22.7 %, the
CRF's likelihood 20.3 and 13.6 %, a conv net with the chain hinge 8.7 and 4.7 % (experiments/results/ocr.jsonl).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.task import Samples, Task, indices, need
from proxsvm import ProxProblem
from proxsvm.losses import ChainCRF, ChainHinge, MultiClassHinge
from proxsvm.solvers import MultiStepFW
from proxsvm.verification import verify

K = 26
HOW = "OCR letters is letter.data, from https://ai.stanford.edu/~btaskar/ocr/ (unpack letter.data.gz)."


@dataclass(frozen=True)
class Words(Samples):
    """N words, padded: pixels and a constant ``[N, T, 129]``, labels ``[N, T]``, lengths ``[N]``."""

    x: Tensor
    labels: Tensor
    lengths: Tensor

    def __getitem__(self, at: Any) -> Words:
        return Words(self.x[at], self.labels[at], self.lengths[at])


def load(path: Path) -> tuple[Words, Tensor]:
    """All words of ``letter.data`` and their folds."""
    words: list[list[list[str]]] = [[]]
    for line in need(path, HOW).read_text().splitlines():
        fields = line.split()
        words[-1].append(fields)
        if fields[2] == "-1":  # no next letter
            words.append([])
    words = [w for w in words if w]
    N, T = len(words), max(len(w) for w in words)
    x, labels = np.zeros((N, T, 129), dtype=np.float32), np.zeros((N, T), dtype=np.int64)
    for i, word in enumerate(words):
        for t, fields in enumerate(word):
            x[i, t, :128] = np.array(fields[6:134], dtype=np.float32)
            x[i, t, 128] = 1
            labels[i, t] = ord(fields[1]) - ord("a")
    lengths = torch.tensor([len(w) for w in words])
    return Words(torch.from_numpy(x), torch.from_numpy(labels), lengths), torch.tensor([int(w[0][5]) for w in words])


class Linear(nn.Module):
    """Linear unary scores, and one score for each pair of neighbouring letters; all zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.W, self.A = nn.Parameter(torch.zeros(129, K)), nn.Parameter(torch.zeros(K, K))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.W, self.A


def letter_layers(width: int) -> list[nn.Module]:
    """From images of letters, ``[n, 1, 16, 8]``, to ``width`` features."""
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return [*first, *second, nn.Flatten(), nn.Linear(32 * 4 * 2, width), nn.ReLU()]


class ConvNet(nn.Module):
    """Unary scores of a small convolutional network on each letter, and pairwise scores."""

    def __init__(self) -> None:
        super().__init__()
        self.unary = nn.Sequential(*letter_layers(64), nn.Linear(64, K))
        self.A = nn.Parameter(torch.zeros(K, K))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        images = x[..., :128].reshape(-1, 1, 16, 8)
        return self.unary(images).view(*x.shape[:2], K), self.A


class Letters(MultiClassHinge):
    """The multi-class hinge on single letters: the pairwise scores are not used, and stay zero."""

    def prepare(self, scores: Any, target: Any) -> Any:
        (unary, _), (labels, lengths) = scores, target
        real = torch.arange(labels.shape[1]) < lengths[:, None]
        return super().prepare(unary[real], labels[real])


@torch.no_grad()
def letters_right(outputs: Iterable[tuple[Any, tuple[Tensor, Tensor]]]) -> float:
    """The fraction of right letters, in percent, of scores and targets."""
    right = total = 0
    for scores, (labels, lengths) in outputs:
        real = torch.arange(labels.shape[1]) < lengths[:, None]
        right += int(((ChainHinge().decode(scores, lengths=lengths) == labels) & real).sum())
        total += int(real.sum())
    return 100 * right / total


def task(protocol: str, model: str, folder: Path) -> Task:
    """Linear scores; a fifth of the training words is held out.

    With a ``model``, "linear" or "conv", as in the first runs: that fifth is trained on, too.
    """
    words, fold = load(folder / "letter.data")
    inside = (fold == 0) if protocol == "small" else (fold != 0)
    order = inside.nonzero()[:, 0]
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    held = len(order) // 5
    train = words[order if model else order[held:]]
    return Task(
        *(train, words[order[:held]], words[~inside]),
        network=ConvNet if model == "conv" else Linear,
        take=lambda split, index, _: ((split.x[index],), (split.labels[index], split.lengths[index])),
        batches=lambda _, generator: indices(len(train), 32, generator),
        losses={"likelihood": ChainCRF} | {k: partial(f, smooth=True) for k, f in HINGES.items()},
        judge=lambda outputs, _: letters_right(outputs),
    )


HINGES = {"hinge": ChainHinge, "letters-hinge": Letters}


def verify_word(words: Words, length: int) -> None:
    """A step on a real word, from zero weights, against the exact QP over its flow polytope."""
    word = words[(words.lengths == length).nonzero()[0]]
    x = word.x[:, :length].double()
    W, A = (torch.zeros(s, dtype=torch.double, requires_grad=True) for s in ((129, K), (K, K)))
    problem = ProxProblem.from_scores(ChainHinge(), (x @ W, A), word.labels[:, :length], [W, A], lr=0.05)
    began = time.perf_counter()
    print(f"a word of {length} letters: {K}^{length} labellings\n{verify(problem, MultiStepFW(max_steps=300))}")
    print(f"{time.perf_counter() - began:.1f} seconds")


if __name__ == "__main__":
    from experiments.sweep import alias

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--verify", type=int)
    given, rest = parser.parse_known_args()
    torch.set_num_threads(1)
    if given.verify:
        verify_word(load(given.data / "letter.data")[0], given.verify)
    for name in ("first-ocr-small", "first-ocr-large") if not given.verify else ():
        alias(name, words=["--data", str(given.data), *rest])
