"""CoNLL-2000 as a multi-label set: which kinds of chunks are in a sentence, predicted from its words.

    python -m experiments.structured.sentences --data DIR    # two seeds, two η; some minutes on one core

Of the kinds that occur, those in 1 % to 95 % of the training sentences are kept: adjectives, adverbs, conjunctions and
the like. They are rare, and judged by the ranking of all test sentences: mean average precision. The last 10 % of the
training sentences choose the epoch and η. Results: experiments/results/sentences.jsonl.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.structured.chunking import HOW, Sentence, Vocabulary, read
from experiments.structured.runs import Runs, arguments, need
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import AveragePrecisionHinge, BinaryCrossEntropy, ConvexLoss, MultiLabelHinge
from proxsvm.metrics import Diagonal
from proxsvm.solvers import SingleStepFW

RARE, COMMON = 0.01, 0.95


class Labelled(NamedTuple):
    """The words and suffixes of each sentence, and the kinds of its chunks, ``[N, L]`` of 0 and 1."""

    words: list[Tensor]
    suffixes: list[Tensor]
    y: Tensor


def kinds(sentences: list[Sentence]) -> list[str]:
    """The kinds of chunks that are neither very rare nor in nearly every sentence."""
    found = [{c[2:] for c in s.chunks if c != "O"} for s in sentences]
    share = {k: np.mean([k in one for one in found]) for k in sorted(set().union(*found))}
    return [k for k, often in share.items() if RARE <= often <= COMMON]


def labelled(sentences: list[Sentence], vocabulary: Vocabulary, wanted: list[str]) -> Labelled:
    encoded = vocabulary.encode(sentences)
    y = torch.tensor([[int(any(c[2:] == k for c in s.chunks)) for k in wanted] for s in sentences])
    return Labelled([e[0] for e in encoded], [e[1] for e in encoded], y)


class Bag(nn.Module):
    """The mean of the embeddings of words and suffixes, and one hidden layer."""

    def __init__(self, vocabulary: Vocabulary, labels: int, width: int = 64) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(len(vocabulary.words) + 1, width)
        self.suffixes = nn.EmbeddingBag(len(vocabulary.suffixes) + 1, width)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, labels))

    def forward(self, data: Labelled, at: Tensor) -> Tensor:
        chosen = at.tolist()
        starts = torch.tensor([0, *(len(data.words[i]) for i in chosen)]).cumsum(0)[:-1]
        bags = [
            bag(torch.cat([of[i] for i in chosen]), starts)
            for bag, of in ((self.words, data.words), (self.suffixes, data.suffixes))
        ]
        return self.head(torch.cat(bags, 1))


class RankedSentences(AveragePrecisionHinge):
    """Scores ``[n, L]``: for each kind the sentences of the batch are ranked."""

    def prepare(self, scores: Any, target: Any) -> Any:
        return super().prepare(scores.T, target.T)


@torch.no_grad()
def mean_average_precision(model: Bag, data: Labelled) -> float:
    """The mean over the kinds of the average precision of their ranking of all sentences, in percent."""
    metrics = load("sklearn.metrics", extra="estimators")
    model.eval()
    scores = torch.cat([model(data, at) for at in torch.arange(len(data.y)).split(512)])
    model.train()
    both = [k for k in range(data.y.shape[1]) if 0 < int(data.y[:, k].sum()) < len(data.y)]
    return 100 * float(np.mean([metrics.average_precision_score(data.y[:, k], scores[:, k]) for k in both]))


METHODS = {
    "cross-entropy, Adam": "binary cross-entropy, Adam",
    "cross-entropy": "binary cross-entropy, ProxOptimizer",
    "hinge": "multi-label hinge, smoothed, ProxOptimizer",
    "average precision": "average-precision hinge, ProxOptimizer",
}
OURS: dict[str, Any] = {
    "cross-entropy": BinaryCrossEntropy,
    "hinge": partial(MultiLabelHinge, smooth=True),
    "average precision": RankedSentences,
}
ETAS = {method: (0.003, 0.01) if method not in OURS else (0.01, 0.1) for method in METHODS}


def run(
    method: str, lr: float, vocabulary: Vocabulary, data: dict[str, Labelled], epochs: int, batch: int
) -> dict[str, Any]:
    """Train one method; the test score is that of the epoch with the best validation score."""
    train = data["train"]
    model = Bag(vocabulary, train.y.shape[1])
    criterion: ConvexLoss = OURS.get(method, BinaryCrossEntropy)()
    if method in OURS:
        optimizer: Any = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), lr=lr, metric=Diagonal())
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    trace: list[dict[str, float]] = []
    began, spent = time.perf_counter(), 0.0
    for epoch in tqdm(range(epochs), unit="epoch", desc=f"{method}, {lr:g}", mininterval=2):
        total = 0.0
        for at in torch.randperm(len(train.y)).split(batch):
            optimizer.zero_grad()
            value = criterion(model(train, at), train.y[at])
            value.backward()
            optimizer.step()
            total += float(value.detach()) * len(at)
        paused = time.perf_counter()
        scores = {f"{split}_map": mean_average_precision(model, data[split]) for split in ("validation", "test")}
        trace.append({"epoch": epoch + 1, "seconds": paused - began - spent, "loss": total / len(train.y), **scores})
        spent += time.perf_counter() - paused
    best = max(trace, key=lambda e: e["validation_map"])
    return {"map": best["test_map"], **best, "seconds": trace[-1]["seconds"], "trace": trace}


def table(done: list[dict[str, Any]]) -> str:
    """The results in Markdown: for each method those of the η that is best on the validation sentences."""
    lines = ["| method | η | mean average precision, test: mean (each seed) | validation |", "|---|---|---|---|"]
    for method, title in METHODS.items():
        rows = [r for r in done if r["config"]["method"] == method]
        if not rows:
            continue
        by_lr = {lr: [r for r in rows if r["config"]["lr"] == lr] for lr in {r["config"]["lr"] for r in rows}}
        val = {lr: sum(r["validation_map"] for r in found) / len(found) for lr, found in by_lr.items()}
        lr = max(val, key=lambda k: val[k])
        each = ", ".join(f"{r['map']:.1f}" for r in by_lr[lr])
        mean = sum(r["map"] for r in by_lr[lr]) / len(by_lr[lr])
        lines.append(f"| {title} | {lr:g} | {mean:.1f} % ({each}) | {val[lr]:.1f} % |")
    return "\n".join(lines)


def main() -> None:
    parser = arguments("CoNLL-2000, which kinds of chunks are in a sentence", "sentences")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=128, help="the sentences that are ranked together")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--lr", type=float, nargs="+", help="two values for each method if left out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.data / "conll2000"
    sentences = read(need(folder / "train.txt", HOW))
    held_out = len(sentences) // 10
    splits = {
        "train": sentences[:-held_out],
        "validation": sentences[-held_out:],
        "test": read(need(folder / "test.txt", HOW)),
    }
    vocabulary, wanted = Vocabulary(splits["train"]), kinds(splits["train"])
    data = {name: labelled(found, vocabulary, wanted) for name, found in splits.items()}
    often = dict(zip(wanted, data["train"].y.sum(0).tolist(), strict=True))
    print(f"kinds of chunks, and in how many of {len(splits['train']):,} training sentences: {often}")
    runs = Runs(given.results)
    for seed in given.seeds:
        for method in given.methods:
            for lr in given.lr or ETAS[method]:
                config = {"method": method, "lr": lr, "epochs": given.epochs, "batch": given.batch, "seed": seed}
                runs.once(partial(run, method, lr, vocabulary, data, given.epochs, given.batch), **config)
    print(table(runs.done))


if __name__ == "__main__":
    main()
