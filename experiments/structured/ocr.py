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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import read_csv
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import TensorDataset

from experiments.task import Neighbours, Task, indices, need, percent, seen, within
from proxsvm import ProxProblem
from proxsvm.losses import ChainCRF, ChainHinge, MultiClassHinge
from proxsvm.solvers import MultiStepFW
from proxsvm.verification import verify

K = 26


def load(path: Path) -> tuple[TensorDataset, Tensor]:
    """All words of ``letter.data`` and their folds.

    Padded: pixels and a constant ``[N, T, 129]``, labels ``[N, T]``, lengths ``[N]``.
    """
    rows = read_csv(need(path, "ocr"), sep="\t", header=None, usecols=range(134), na_filter=False)
    ends = np.flatnonzero(rows[2] == -1) + 1  # no next letter
    lengths = torch.tensor(np.diff(ends, prepend=0))
    pixels = F.pad(torch.tensor(rows.loc[:, 6:].to_numpy(np.float32)), (0, 1), value=1.0)
    labels = torch.tensor(rows[1].map(ord).to_numpy()) - ord("a")
    padded = (pad_sequence(list(column.split(lengths.tolist())), batch_first=True) for column in (pixels, labels))
    return TensorDataset(*padded, lengths), torch.tensor(rows[5].to_numpy()[ends - 1])


class Letters(nn.Sequential):
    """``width`` features of each letter, ``[B, T, width]``, by a small convolutional network on its pixels."""

    def __init__(self, width: int) -> None:
        first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        second = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        super().__init__(*first, *second, nn.Flatten(), nn.Linear(32 * 4 * 2, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[..., :128].reshape(-1, 1, 16, 8)).view(*x.shape[:2], -1)


def network(model: str) -> nn.Module:
    """Scores of letters, linear and zero at first or of a small convolutional network, and of pairs of neighbours."""
    if model == "conv":
        return Neighbours(nn.Sequential(Letters(64), nn.Linear(64, K)), K)
    linear = nn.Linear(129, K, bias=False)
    nn.init.zeros_(linear.weight)
    return Neighbours(linear, K)


def letters(scores: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Single letters: the pairwise scores are not used, and stay zero."""
    (unary, _), (labels, lengths) = scores, target
    real = within(lengths, labels.shape[1])
    return unary[real], labels[real]


@torch.no_grad()
def letters_right(outputs: Iterable[tuple[Any, tuple[Tensor, Tensor]]]) -> float:
    """The fraction of right letters, in percent, of scores and targets."""
    return percent(
        (ChainHinge().decode(scores, lengths=lengths) == labels, within(lengths, labels.shape[1]))
        for scores, (labels, lengths) in outputs
    )[0]


def task(protocol: str, model: str, folder: Path) -> Task:
    """Linear scores; a fifth of the training words is held out.

    With a ``model``, "linear" or "conv", as in the first runs: that fifth is trained on, too.
    """
    words, fold = load(folder / "letter.data")
    inside = (fold == 0) if protocol == "small" else (fold != 0)
    order = inside.nonzero()[:, 0]
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    held = len(order) // 5
    train, val, test = order if model else order[held:], order[:held], ~inside
    return Task(
        *(TensorDataset(*words[part]) for part in (train, val, test)),
        network=partial(network, model),
        batches=lambda _, generator: indices(len(train), 32, generator),
        losses={
            "likelihood": ChainCRF,
            "hinge": partial(ChainHinge, smooth=True),
            "letters-hinge": partial(seen(MultiClassHinge, letters), smooth=True),
        },
        judge=lambda outputs, _: letters_right(outputs),
    )


def verify_word(words: TensorDataset, length: int) -> None:
    """A step on a real word, from zero weights, against the exact QP over its flow polytope."""
    pixels, labels, _ = words[(words.tensors[2] == length).nonzero()[0]]
    x = pixels[:, :length].double()
    W, A = (torch.zeros(s, dtype=torch.double, requires_grad=True) for s in ((129, K), (K, K)))
    problem = ProxProblem.from_scores(ChainHinge(), (x @ W, A), labels[:, :length], [W, A], lr=0.05)
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
    else:
        for name in ("first-ocr-small", "first-ocr-large"):
            alias(name, words=["--data", str(given.data), *rest])
