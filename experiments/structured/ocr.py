"""OCR letters (Taskar et al. 2003): words of 16 × 8 pixel letters, 26 labels.

    python -m experiments.structured.ocr --data DIR          # both protocols; about 15 minutes on one core

"small" trains on fold 0 and tests on folds 1-9, "large" is the reverse. Results: experiments/results/ocr.jsonl, drawn
in docs/images/ocr.png.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.structured.runs import Runs, arguments, need
from experiments.structured.structural_svm import ChainSVM
from proxsvm import ProxOptimizer, ProxProblem
from proxsvm.losses import ChainCRF, ChainHinge, MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW
from proxsvm.verification import verify

K = 26
HOW = "OCR letters is letter.data, from https://ai.stanford.edu/~btaskar/ocr/ (unpack letter.data.gz)."


class Words(NamedTuple):
    """N words, padded: pixels and a constant ``[N, T, 129]``, labels ``[N, T]``, lengths ``[N]``."""

    x: Tensor
    labels: Tensor
    lengths: Tensor

    def __getitem__(self, at: Any) -> Words:  # type: ignore[override]
        return Words(self.x[at], self.labels[at], self.lengths[at])

    @property
    def real(self) -> Tensor:
        return torch.arange(self.x.shape[1]) < self.lengths[:, None]


def load(path: Path) -> tuple[Words, Tensor]:
    """All words of ``letter.data`` and their folds."""
    words: list[list[list[str]]] = [[]]
    for line in path.read_text().splitlines():
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


class ConvNet(nn.Module):
    """Unary scores of a small convolutional network on each letter, and pairwise scores."""

    def __init__(self) -> None:
        super().__init__()
        self.unary = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 4 * 2, 64), nn.ReLU(), nn.Linear(64, K)),
        )
        self.A = nn.Parameter(torch.zeros(K, K))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        images = x[..., :128].reshape(-1, 1, 16, 8)
        return self.unary(images).view(*x.shape[:2], K), self.A


@torch.no_grad()
def errors(scores: Callable[[Tensor], tuple[Tensor, Tensor]], words: Words) -> dict[str, float]:
    """The fractions of wrong letters and of words with a wrong letter, in percent."""
    letters = wrong_words = 0
    for at in torch.arange(len(words.x)).split(500):
        batch = words[at]
        wrong = (ChainHinge().decode(scores(batch.x), lengths=batch.lengths) != batch.labels) & batch.real
        letters += int(wrong.sum())
        wrong_words += int(wrong.any(1).sum())
    return {"letter": 100 * letters / int(words.lengths.sum()), "word": 100 * wrong_words / len(words.x)}


def solve(train: Words, test: Words, decay: float, tol: float, max_passes: int) -> dict[str, Any]:
    """One structural SVM, solved to a certified relative gap."""
    svm = ChainSVM(train.x, train.labels, train.lengths, K, decay)
    trace = []
    bar = tqdm(svm.solve(tol=tol, max_passes=max_passes, block=32, inner=6), total=max_passes, unit="pass")
    for now in bar:
        bar.set_postfix(primal=f"{now.primal:.4f}", gap=f"{now.relative_gap:.1e}")
        trace.append({"seconds": now.seconds, "primal": now.primal, "dual": now.dual, "gap": now.relative_gap})
    result = errors(lambda x: (x @ svm.W.float(), svm.A.float()), test)
    return {**result, "seconds": trace[-1]["seconds"], "passes": len(trace), "gap": trace[-1]["gap"], "trace": trace}


def train_network(
    model: nn.Module,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    train: Words,
    test: Words,
    epochs: int,
    batch: int = 32,
) -> dict[str, Any]:
    """Stochastic training; ``Letters`` sees single letters, the chain losses see words."""
    began, trace, spent = time.perf_counter(), [], 0.0
    for epoch in tqdm(range(epochs), unit="epoch"):
        for at in torch.randperm(len(train.x)).split(batch):
            words = train[at]
            optimizer.zero_grad()
            value = criterion(model(words.x), (words.labels, words.lengths))
            value.backward()
            optimizer.step()
        if epoch + 1 == epochs or (epoch + 1) % max(1, epochs // 10) == 0:
            paused = time.perf_counter()
            trace.append({"epoch": epoch + 1, "seconds": paused - began - spent, **errors(model, test)})
            spent += time.perf_counter() - paused
    return {"letter": trace[-1]["letter"], "word": trace[-1]["word"], "seconds": trace[-1]["seconds"], "trace": trace}


class Letters(MultiClassHinge):
    """The multi-class hinge on single letters: the pairwise scores are not used, and stay zero."""

    def prepare(self, scores: Any, target: Any) -> Any:
        (unary, _), (labels, lengths) = scores, target
        real = torch.arange(labels.shape[1]) < lengths[:, None]
        return super().prepare(unary[real], labels[real])


METHODS = {
    "chain SVM, solved": "chain hinge, solved to a certified gap",
    "chain hinge, ProxOptimizer": "chain hinge, ProxOptimizer",
    "multi-class hinge, ProxOptimizer": "no structure: multi-class hinge, ProxOptimizer",
    "CRF likelihood, Adam": "CRF likelihood, Adam",
    "conv net + chain hinge, ProxOptimizer": "conv net + chain hinge, ProxOptimizer",
}


# What --tune tries for each stochastic method, on words held out of fold 0.
GRID: dict[str, list[dict[str, Any]]] = {
    "chain hinge, ProxOptimizer": [
        {"lr": lr, "smooth": smooth} for smooth in (True, False) for lr in (0.01, 0.003, 0.03, 0.1)
    ],
    "multi-class hinge, ProxOptimizer": [
        {"lr": lr, "smooth": smooth} for smooth in (True, False) for lr in (0.1, 0.01, 0.03, 0.3)
    ],
    "CRF likelihood, Adam": [{"lr": lr, "decay": decay} for decay in (0.0, 1e-4) for lr in (0.01, 0.001, 0.003, 0.03)],
    "conv net + chain hinge, ProxOptimizer": [
        {"lr": lr, "smooth": smooth} for smooth in (True, False) for lr in (0.1, 0.01, 0.03, 0.3)
    ],
}


# The lowest error of --tune for each (the first tried, where two are equal).
CHOSEN: dict[str, dict[str, Any]] = {
    "chain hinge, ProxOptimizer": {"lr": 0.03, "smooth": True},
    "multi-class hinge, ProxOptimizer": {"lr": 0.1, "smooth": True},
    "CRF likelihood, Adam": {"lr": 0.01, "decay": 0.0},
    "conv net + chain hinge, ProxOptimizer": {"lr": 0.03, "smooth": True},
}


def run(
    method: str, train: Words, test: Words, epochs: int, decay: float, tol: float, setting: dict[str, Any]
) -> dict[str, Any]:
    """One method on one protocol. λ = ``decay`` is that of a word; a word has about 7.5 letters."""
    if method == "chain SVM, solved":
        return solve(train, test, decay, tol, max_passes=400)
    model: nn.Module = ConvNet() if method.startswith("conv") else Linear()
    if method == "CRF likelihood, Adam":
        adam = torch.optim.Adam(model.parameters(), lr=setting["lr"], weight_decay=setting["decay"])
        return train_network(model, ChainCRF(), adam, train, test, epochs)
    smooth = setting["smooth"]
    criterion = Letters(smooth=smooth) if method.startswith("multi") else ChainHinge(smooth=smooth)
    weight_decay = decay / (10 if method.startswith("multi") else 100 if method.startswith("conv") else 1)
    optimizer = ProxOptimizer(
        criterion, SingleStepFW(), model.parameters(), lr=setting["lr"], momentum=0.9, weight_decay=weight_decay
    )
    return train_network(model, criterion, optimizer, train, test, epochs)


def tune(runs: Runs, words: Words, epochs: int, decay: float, seed: int) -> None:
    """Every setting of GRID, trained on four fifths of the words of fold 0 and judged on the last fifth."""
    order = torch.randperm(len(words.x), generator=torch.Generator().manual_seed(0))
    kept, held_out = words[order[len(order) // 5 :]], words[order[: len(order) // 5]]
    print("| method | setting | letter error, held out |\n|---|---|---|")
    for method, settings in GRID.items():
        for setting in settings:
            config = {"protocol": "held out", "method": method, "epochs": epochs, "setting": setting, "seed": seed}
            found = runs.once(partial(run, method, kept, held_out, epochs, decay, 0.0, setting), **config)
            print(f"| {method} | {setting} | {found['letter']:.2f} % |", flush=True)


def draw(done: list[dict[str, Any]], path: Path) -> None:
    """Gap against time, and the errors of all methods."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=[1, 1.4])
    protocols = [p for p in ("small", "large") if any(r["config"]["protocol"] == p for r in done)]
    for protocol, colour in zip(protocols, ("tab:blue", "tab:orange"), strict=False):
        rows = {r["config"]["method"]: r for r in done if r["config"]["protocol"] == protocol}
        if "chain SVM, solved" in rows:
            trace = rows["chain SVM, solved"]["trace"]
            left.semilogy([p["seconds"] for p in trace], [p["gap"] for p in trace], color=colour, label=protocol)
        shift = 0.2 if protocol == "small" else -0.2
        names = [m for m in METHODS if m in rows]
        at = np.array([len(METHODS) - 1 - list(METHODS).index(m) for m in names])
        error = [rows[m]["letter"] for m in names]
        right.barh(at + shift, error, 0.38, color=colour, label=f"{protocol} protocol")
        for y, e in zip(at + shift, error, strict=True):
            right.text(e + 0.3, y, f"{e:.1f} %", va="center", fontsize=8)
    left.axhline(1e-3, color="grey", lw=0.8, ls="--")
    left.set(xlabel="seconds", ylabel="certified relative gap (P − D) / P", title="one structural SVM, λ = 0.01")
    left.legend(frameon=False)
    right.set_yticks(range(len(METHODS)), list(METHODS.values())[::-1], fontsize=8)
    right.set(xlabel="wrong letters on the test folds, %", title="OCR letters")
    right.margins(x=0.12)
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def table(done: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = ["| protocol | method | letter error | word error | seconds |", "|---|---|---|---|---|"]
    for protocol in ("small", "large"):
        for method, title in METHODS.items():
            for r in done:
                if r["config"]["protocol"] == protocol and r["config"]["method"] == method:
                    gap = f" (gap {r['gap']:.1e}, {r['passes']} passes)" if "gap" in r else ""
                    cells = f"{r['letter']:.1f} % | {r['word']:.1f} % | {r['seconds']:.0f}"
                    lines.append(f"| {protocol} | {title}{gap} | {cells} |")
    return "\n".join(lines)


def verify_word(words: Words, length: int) -> None:
    """A step on a real word, from zero weights, against the exact QP over its flow polytope."""
    word = words[(words.lengths == length).nonzero()[0]]
    x = word.x[:, :length].double()
    W, A = (torch.zeros(s, dtype=torch.double, requires_grad=True) for s in ((129, K), (K, K)))
    problem = ProxProblem.from_scores(ChainHinge(), (x @ W, A), word.labels[:, :length], [W, A], lr=0.05)
    began = time.perf_counter()
    print(f"a word of {length} letters: {K}^{length} labellings")
    print(verify(problem, MultiStepFW(max_steps=300)))
    print(f"{time.perf_counter() - began:.1f} seconds")


def main() -> None:
    parser = arguments("OCR letters with and without structure", "ocr")
    parser.add_argument("--protocols", nargs="+", default=["small", "large"], choices=["small", "large"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--epochs", type=int, nargs=2, default=[30, 6], metavar=("SMALL", "LARGE"))
    parser.add_argument("--decay", type=float, default=0.01, help="λ for a word")
    parser.add_argument("--tol", type=float, default=1e-3, help="the certified relative gap of the solved SVM")
    parser.add_argument("--picture", type=Path, default=Path("docs/images/ocr.png"))
    parser.add_argument("--tune", action="store_true", help="only try the settings, on words held out of fold 0")
    parser.add_argument("--verify", type=int, metavar="LENGTH", help="only verify a step on a real word of this length")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    words, fold = load(need(given.data / "letter.data", HOW))
    if given.verify:
        verify_word(words, given.verify)
        return
    runs = Runs(given.results)
    if given.tune:
        tune(runs, words[fold == 0], given.epochs[0] // 2, given.decay, given.seed)
        return
    for protocol, epochs in zip(("small", "large"), given.epochs, strict=True):
        if protocol not in given.protocols:
            continue
        in_train = (fold == 0) if protocol == "small" else (fold != 0)
        train, test = words[in_train], words[~in_train]
        for method in given.methods:
            setting = CHOSEN.get(method, {})
            config = {
                "protocol": protocol,
                "method": method,
                "epochs": epochs,
                "decay": given.decay,
                "seed": given.seed,
            }
            config |= {"setting": setting} if setting else {}
            runs.once(partial(run, method, train, test, epochs, given.decay, given.tol, setting), **config)
    print(table(runs.done))
    draw(runs.done, given.picture)


if __name__ == "__main__":
    main()
