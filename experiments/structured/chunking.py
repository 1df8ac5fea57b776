"""CoNLL-2000 chunking: embeddings, a BiLSTM and a chain; structured hinge against CRF likelihood.

    python -m experiments.structured.chunking --data DIR     # about 15 minutes on one core

The last 10 % of the training sentences choose the epoch; F1 of chunks is seqeval's, which is conlleval's definition.
Results: experiments/results/chunking.jsonl, drawn in docs/images/chunking.png.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from experiments.structured.runs import Runs, arguments, need
from proxsvm import ProxOptimizer
from proxsvm._extras import load
from proxsvm.losses import ChainCRF, ChainHinge
from proxsvm.solvers import SingleStepFW

HOW = (
    "CoNLL-2000 is conll2000/train.txt and conll2000/test.txt, lines of 'word POS chunk', from "
    "https://www.clips.uantwerpen.be/conll2000/chunking/."
)


class Sentence(NamedTuple):
    words: list[str]
    pos: list[str]
    chunks: list[str]


def read(path: Path) -> list[Sentence]:
    """The sentences of a file in the official format: one word per line, an empty line between sentences."""
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    rows = [[line.split() for line in block.splitlines() if line.strip()] for block in blocks]
    return [Sentence(*(list(column) for column in zip(*block, strict=True))) for block in rows if block]


class Batch(NamedTuple):
    words: Tensor
    suffixes: Tensor
    pos: Tensor
    chunks: Tensor
    lengths: Tensor


class Vocabulary:
    """Indices of words (lower case, seen twice or more), three-letter suffixes with their case, POS tags and chunks."""

    def __init__(self, sentences: list[Sentence]) -> None:
        count = Counter(w.lower() for s in sentences for w in s.words)
        self.words = _index(w for w, c in count.items() if c > 1)
        self.suffixes = _index({shape(w) for s in sentences for w in s.words})
        self.pos = _index({p for s in sentences for p in s.pos})
        self.chunks = sorted({c for s in sentences for c in s.chunks})
        self.chunk_at = {c: i for i, c in enumerate(self.chunks)}

    def encode(self, sentences: list[Sentence]) -> list[tuple[Tensor, ...]]:
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


def _index(items: Any) -> dict[str, int]:
    return {item: i for i, item in enumerate(sorted(items), start=1)}


def collate(encoded: list[tuple[Tensor, ...]]) -> Batch:
    """A padded batch."""
    columns = [pad_sequence(list(column), batch_first=True) for column in zip(*encoded, strict=True)]
    return Batch(*columns, torch.tensor([len(s[0]) for s in encoded]))


def batches(encoded: list[tuple[Tensor, ...]], size: int = 32, pool: int = 20) -> list[list[int]]:
    """Random batches of sentences of similar length: each pool of sentences is sorted before it is split."""
    found: list[list[int]] = []
    for chosen in torch.randperm(len(encoded)).split(size * pool):
        in_order = sorted(chosen.tolist(), key=lambda i: len(encoded[i][0]))
        found += [in_order[i : i + size] for i in range(0, len(in_order), size)]
    return [found[i] for i in torch.randperm(len(found))]


class Tagger(nn.Module):
    """Scores (unary, pairwise, start, end) of a chain."""

    def __init__(self, vocabulary: Vocabulary, width: int = 100, dropout: float = 0.5) -> None:
        super().__init__()
        K = len(vocabulary.chunks)
        self.words = nn.Embedding(len(vocabulary.words) + 1, width)
        self.suffixes = nn.Embedding(len(vocabulary.suffixes) + 1, 30)
        self.pos = nn.Embedding(len(vocabulary.pos) + 1, 30)
        self.lstm = nn.LSTM(width + 60, width, bidirectional=True, batch_first=True)
        self.head, self.dropout = nn.Linear(2 * width, K), nn.Dropout(dropout)
        self.pairwise, self.start, self.end = (nn.Parameter(torch.zeros(s)) for s in ((K, K), (K,), (K,)))

    def forward(self, batch: Batch) -> tuple[Tensor, ...]:
        x = torch.cat([self.words(batch.words), self.suffixes(batch.suffixes), self.pos(batch.pos)], -1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(x), batch.lengths, batch_first=True, enforce_sorted=False
        )
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(self.dropout(hidden)), self.pairwise, self.start, self.end


@torch.no_grad()
def chunk_f1(model: Tagger, encoded: list[tuple[Tensor, ...]], chunks: list[str]) -> float:
    """F1 of whole chunks, in percent."""
    metrics = load("seqeval.metrics", extra="experiments")
    model.eval()
    truth, found = [], []
    for at in range(0, len(encoded), 128):
        batch = collate(encoded[at : at + 128])
        labels = ChainHinge().decode(model(batch), lengths=batch.lengths)
        for row, (_, _, _, y) in zip(labels, encoded[at : at + 128], strict=True):
            truth.append([chunks[k] for k in y])
            found.append([chunks[k] for k in row[: len(y)]])
    model.train()
    return 100 * float(metrics.f1_score(truth, found))


METHODS = {
    "chain hinge, ProxOptimizer": "chain hinge, ProxOptimizer(SingleStepFW), no schedule",
    "CRF, Adam": "CRF likelihood, Adam",
    "CRF, SGD": "CRF likelihood, SGD with Nesterov momentum",
}


def run(method: str, data: dict[str, list[Sentence]], epochs: int) -> dict[str, Any]:
    """Train one method."""
    vocabulary = Vocabulary(data["train"])
    encoded = {name: vocabulary.encode(sentences) for name, sentences in data.items()}
    model = Tagger(vocabulary)
    criterion: Any = ChainCRF()
    if method == "CRF, Adam":
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.002)
    elif method == "CRF, SGD":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    else:
        criterion = ChainHinge(smooth=True)
        optimizer = ProxOptimizer(criterion, SingleStepFW(), model.parameters(), lr=0.03, momentum=0.9)
    trace, spent, began = [], 0.0, time.perf_counter()
    for epoch in range(epochs):
        total = 0.0
        for at in tqdm(batches(encoded["train"]), desc=f"{method}, epoch {epoch + 1}/{epochs}", mininterval=2):
            batch = collate([encoded["train"][i] for i in at])
            optimizer.zero_grad()
            value = criterion(model(batch), (batch.chunks, batch.lengths))
            value.backward()
            optimizer.step()
            total += float(value.detach()) * len(at)
        paused = time.perf_counter()
        f1 = {f"{name}_f1": chunk_f1(model, encoded[name], vocabulary.chunks) for name in ("validation", "test")}
        seconds = paused - began - spent
        trace.append({"epoch": epoch + 1, "seconds": seconds, "loss": total / len(encoded["train"]), **f1})
        print(trace[-1], flush=True)
        spent += time.perf_counter() - paused
    best = max(trace, key=lambda e: e["validation_f1"])
    return {"f1": best["test_f1"], "epoch": best["epoch"], "seconds": trace[-1]["seconds"], "trace": trace}


def table(done: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = ["| method | seed | chunk F1, test | epoch chosen on validation | seconds |", "|---|---|---|---|---|"]
    for method, title in METHODS.items():
        for r in done:
            if r["config"]["method"] == method:
                cells = f"{r['config']['seed']} | {r['f1']:.2f} | {r['epoch']} | {r['seconds']:.0f}"
                lines.append(f"| {title} | {cells} |")
    return "\n".join(lines)


def draw(done: list[dict[str, Any]], path: Path) -> None:
    """Test F1 after each epoch."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.8))
    for method, colour in zip(METHODS, ("tab:red", "tab:blue", "tab:green"), strict=True):
        for i, r in enumerate(r for r in done if r["config"]["method"] == method):
            at, f1 = [e["epoch"] for e in r["trace"]], [e["test_f1"] for e in r["trace"]]
            axis.plot(at, f1, "o-", color=colour, ms=3, label=None if i else METHODS[method])
    axis.set(xlabel="epoch", ylabel="chunk F1 on the test set, %", title="CoNLL-2000 chunking, BiLSTM + chain")
    axis.set_ylim(bottom=max(80, axis.get_ylim()[0]))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = arguments("CoNLL-2000 chunking", "chunking")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--picture", type=Path, default=Path("docs/images/chunking.png"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.data / "conll2000"
    sentences = read(need(folder / "train.txt", HOW))
    held_out = len(sentences) // 10
    data = {
        "train": sentences[:-held_out],
        "validation": sentences[-held_out:],
        "test": read(need(folder / "test.txt", HOW)),
    }
    runs = Runs(given.results)
    for method in given.methods:
        config = {"method": method, "epochs": given.epochs, "seed": given.seed}
        runs.once(partial(run, method, data, given.epochs), **config)
    print(table(runs.done))
    draw(runs.done, given.picture)


if __name__ == "__main__":
    main()
