"""OCR letters (Taskar et al. 2003): words of 16 × 8 pixel letters, 26 labels.

    python -m experiments.structured.ocr --data DIR          # both protocols; about 15 minutes on one core

"small" trains on fold 0 and tests on folds 1-9, "large" is the reverse. Letter errors on 2 cores, 2026-11-16: a chain
SVM solved to a gap of 1e-3 20.4 and 15.0 %, trained by ProxOptimizer 20.3 and 16.6 %, no structure 27.3 and 22.7 %, the
CRF's likelihood 20.3 and 13.6 %, a conv net with the chain hinge 8.7 and 4.7 % (experiments/results/ocr.jsonl).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.folder import write
from experiments.structured.structural_svm import ChainSVM
from experiments.task import Task, indices, need
from proxsvm import ProxOptimizer, ProxProblem
from proxsvm.losses import ChainCRF, ChainHinge, MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW
from proxsvm.verification import verify

K = 26
HOW = "OCR letters is letter.data, from https://ai.stanford.edu/~btaskar/ocr/ (unpack letter.data.gz)."


@dataclass(frozen=True)
class Words:
    """N words, padded: pixels and a constant ``[N, T, 129]``, labels ``[N, T]``, lengths ``[N]``."""

    x: Tensor
    labels: Tensor
    lengths: Tensor

    def __getitem__(self, at: Any) -> Words:
        return Words(self.x[at], self.labels[at], self.lengths[at])

    def __len__(self) -> int:
        return len(self.x)

    @property
    def target(self) -> tuple[Tensor, Tensor]:
        return self.labels, self.lengths


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
def errors(outputs: Iterable[tuple[Any, tuple[Tensor, Tensor]]]) -> dict[str, float]:
    """The fractions of wrong letters and of words with a wrong letter, in percent, of scores and targets."""
    counts = np.zeros(4)
    for scores, (labels, lengths) in outputs:
        real = torch.arange(labels.shape[1]) < lengths[:, None]
        wrong = (ChainHinge().decode(scores, lengths=lengths) != labels) & real
        counts += [int(wrong.sum()), int(real.sum()), int(wrong.any(1).sum()), len(labels)]
    return {"letter": 100 * counts[0] / counts[1], "word": 100 * counts[2] / counts[3]}


def task(protocol: str, folder: Path) -> Task:
    """Linear scores; a fifth of the training words is held out."""
    words, fold = load(folder / "letter.data")
    inside = (fold == 0) if protocol == "small" else (fold != 0)
    order = inside.nonzero()[:, 0]
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    held = len(order) // 5
    train, val, test = words[order[held:]], words[order[:held]], words[~inside]
    return Task(
        train,
        val,
        test,
        network=Linear,
        take=lambda split, index, _: ((split.x[index],), split[index].target),
        batches=lambda _, generator: indices(len(train), 32, generator),
        losses={"likelihood": ChainCRF, "hinge": partial(ChainHinge, smooth=True)},
        judge=lambda outputs, _: 100 - errors(outputs)["letter"],
    )


# The first experiment.


class Letters(MultiClassHinge):
    """The multi-class hinge on single letters: the pairwise scores are not used, and stay zero."""

    def prepare(self, scores: Any, target: Any) -> Any:
        (unary, _), (labels, lengths) = scores, target
        real = torch.arange(labels.shape[1]) < lengths[:, None]
        return super().prepare(unary[real], labels[real])


SOLVED = "chain SVM, solved"
TRAINED: dict[str, tuple[Any, Any, float]] = {  # model, loss, λ relative to that of a word, which has 7.5 letters
    "chain hinge, ProxOptimizer": (Linear, ChainHinge, 1.0),
    "multi-class hinge, ProxOptimizer": (Linear, Letters, 0.1),
    "CRF likelihood, Adam": (Linear, ChainCRF, 0.0),
    "conv net + chain hinge, ProxOptimizer": (ConvNet, ChainHinge, 0.01),
}
CHOSEN: dict[str, dict[str, Any]] = {  # the lowest error of --tune for each (the first tried, where two are equal)
    "chain hinge, ProxOptimizer": {"lr": 0.03, "smooth": True},
    "multi-class hinge, ProxOptimizer": {"lr": 0.1, "smooth": True},
    "CRF likelihood, Adam": {"lr": 0.01, "decay": 0.0},
    "conv net + chain hinge, ProxOptimizer": {"lr": 0.03, "smooth": True},
}
GRID = {  # what --tune tries, on words held out of fold 0
    "chain hinge, ProxOptimizer": (0.01, 0.003, 0.03, 0.1),
    "multi-class hinge, ProxOptimizer": (0.1, 0.01, 0.03, 0.3),
    "CRF likelihood, Adam": (0.01, 0.001, 0.003, 0.03),
    "conv net + chain hinge, ProxOptimizer": (0.1, 0.01, 0.03, 0.3),
}


class Runs:
    """Finished runs as JSON lines; an existing one is not repeated, so a stopped experiment can be resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def once(self, run: Callable[[], dict[str, Any]], **config: Any) -> None:
        """Print the errors of the run with this ``config``: from disk, or by running it now."""
        found = next((line for line in self.done if line["config"] == config), None)
        if found is None:
            torch.manual_seed(config["seed"])
            found = {"config": config, **run()}
            self.done.append(found)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write(self.path, "".join(json.dumps(line) + "\n" for line in self.done))
        about = ", ".join(str(config[name]) for name in ("protocol", "method", "setting") if name in config)
        gap = f", gap {found['gap']:.1e} in {found['passes']} passes" if "gap" in found else ""
        print(f"{found['letter']:5.1f} % letters, {found['word']:5.1f} % words wrong: {about}{gap}", flush=True)


def scored(scores: Callable[[Tensor], Any], words: Words) -> Iterator[tuple[Any, tuple[Tensor, Tensor]]]:
    for at in torch.arange(len(words)).split(500):
        yield scores(words.x[at]), words[at].target


def run(method: str, train: Words, test: Words, epochs: int, decay: float, setting: dict[str, Any]) -> dict[str, Any]:
    """Train one method; λ = ``decay`` is that of a word."""
    build, loss, weight = TRAINED[method]
    model = build()
    criterion = loss(smooth=setting["smooth"]) if "smooth" in setting else loss()
    if "smooth" in setting:
        optimizer: Any = ProxOptimizer(
            criterion, SingleStepFW(), model.parameters(), lr=setting["lr"], momentum=0.9, weight_decay=weight * decay
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=setting["lr"], weight_decay=setting["decay"])
    trace, seconds = [], 0.0
    for epoch in tqdm(range(epochs), desc=method, unit="epoch", disable=None, leave=False):
        began = time.perf_counter()
        for at in indices(len(train), 32):
            optimizer.zero_grad()
            criterion(model(train.x[at]), train[at].target).backward()
            optimizer.step()
        seconds += time.perf_counter() - began
        if epoch + 1 == epochs or (epoch + 1) % max(1, epochs // 10) == 0:
            trace.append({"epoch": epoch + 1, "seconds": seconds, **errors(scored(model, test))})
    return {k: trace[-1][k] for k in ("letter", "word", "seconds")} | {"trace": trace}


def solve(train: Words, test: Words, decay: float, tol: float) -> dict[str, Any]:
    """One structural SVM, solved to a certified relative gap."""
    svm = ChainSVM(train.x, train.labels, train.lengths, K, decay)
    trace = []
    for now in tqdm(svm.solve(tol=tol, max_passes=400, block=32, inner=6), total=400, unit="pass", disable=None):
        trace.append({"seconds": now.seconds, "primal": now.primal, "dual": now.dual, "gap": now.relative_gap})
    result = errors(scored(lambda x: (x @ svm.W.float(), svm.A.float()), test))
    return {**result, "seconds": trace[-1]["seconds"], "passes": len(trace), "gap": trace[-1]["gap"], "trace": trace}


def tune(runs: Runs, words: Words, epochs: int, decay: float, seed: int) -> None:
    """Every setting of GRID, trained on four fifths of the words of fold 0 and judged on the last fifth."""
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0))
    kept, held_out = words[order[len(order) // 5 :]], words[order[: len(order) // 5]]
    for method, rates in GRID.items():
        name, values = ("smooth", (True, False)) if "smooth" in CHOSEN[method] else ("decay", (0.0, 1e-4))
        for setting in ({"lr": lr, name: value} for value in values for lr in rates):
            config = {"protocol": "held out", "method": method, "epochs": epochs, "setting": setting, "seed": seed}
            runs.once(partial(run, method, kept, held_out, epochs, decay, setting), **config)


def verify_word(words: Words, length: int) -> None:
    """A step on a real word, from zero weights, against the exact QP over its flow polytope."""
    word = words[(words.lengths == length).nonzero()[0]]
    x = word.x[:, :length].double()
    W, A = (torch.zeros(s, dtype=torch.double, requires_grad=True) for s in ((129, K), (K, K)))
    problem = ProxProblem.from_scores(ChainHinge(), (x @ W, A), word.labels[:, :length], [W, A], lr=0.05)
    began = time.perf_counter()
    print(f"a word of {length} letters: {K}^{length} labellings\n{verify(problem, MultiStepFW(max_steps=300))}")
    print(f"{time.perf_counter() - began:.1f} seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description="OCR letters with and without structure")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of the data set")
    parser.add_argument("--results", type=Path, default=Path("experiments/results/ocr.jsonl"))
    parser.add_argument("--methods", nargs="+", default=[SOLVED, *TRAINED], choices=[SOLVED, *TRAINED])
    parser.add_argument("--protocols", nargs="+", default=["small", "large"], choices=["small", "large"])
    parser.add_argument("--epochs", type=int, nargs=2, default=[30, 6], metavar=("SMALL", "LARGE"))
    parser.add_argument("--decay", type=float, default=0.01, help="λ for a word")
    parser.add_argument("--tol", type=float, default=1e-3, help="the certified relative gap of the solved SVM")
    parser.add_argument("--tune", action="store_true", help="only try the settings, on words held out of fold 0")
    parser.add_argument("--verify", type=int, metavar="LENGTH", help="only verify a step on a real word of this length")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    words, fold = load(given.data / "letter.data")
    if given.verify:
        return verify_word(words, given.verify)
    runs = Runs(given.results)
    if given.tune:
        return tune(runs, words[fold == 0], given.epochs[0] // 2, given.decay, given.seed)
    for protocol in given.protocols:
        epochs = given.epochs[protocol == "large"]
        inside = (fold == 0) if protocol == "small" else (fold != 0)
        train, test = words[inside], words[~inside]
        for method in given.methods:
            config = {"protocol": protocol, "method": method, "epochs": epochs, "decay": given.decay}
            config |= {"seed": given.seed}
            if method == SOLVED:
                runs.once(partial(solve, train, test, given.decay, given.tol), **config)
            else:
                setting = CHOSEN[method]
                of = partial(run, method, train, test, epochs, given.decay, setting)
                runs.once(of, **config, setting=setting)


if __name__ == "__main__":
    main()
