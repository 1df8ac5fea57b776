"""The structured tasks with every method tuned alike: hinge and likelihood × metric × average against Adam and AdamW.

    python -m experiments.structured.tuned ocr-small --data DIR      # ocr-large, chunking, camvid

Every method starts from three values of η; while the best one is at an edge, the grid grows there. Held-out data
determine η (one seed, shorter runs) and then, in new runs with three further seeds, the epoch and whether to average.
The test set is read at the end of these, with the best weights and the best average. Results:
experiments/results/tuned/TASK.jsonl.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from experiments.structured import camvid, chunking, ocr
from experiments.structured.runs import Runs, arguments, need
from proxsvm import ProxOptimizer
from proxsvm.losses import ChainCRF, ChainHinge, ConvexLoss, GridHinge
from proxsvm.metrics import Diagonal, Euclidean
from proxsvm.solvers import SingleStepFW
from proxsvm.structures import maxflow_cut, scipy_cut

AVERAGE = 0.99  # for every method; the shortest run has 480 steps
STEP = 10**0.5  # from one η to the next
PEERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
MEASURES = {
    **dict.fromkeys(("ocr-small", "ocr-large"), "letters right, %"),
    "chunking": "chunk F1, %",
    "camvid": "IoU of the road, %",
}
METRICS = {"Euclidean": Euclidean, "diagonal": Diagonal}


class Task(NamedTuple):
    """What a method needs to know about a task. The first loss is the likelihood, which the peers train with, too."""

    model: Callable[[], nn.Module]
    losses: dict[str, Callable[[], ConvexLoss]]
    batches: Callable[[], Iterator[tuple[Any, Any]]]  # one epoch of (input, target)
    score: Callable[[nn.Module, str, str], float]  # of a model and its loss, on "val" or "test"; higher is better
    epochs: tuple[int, int]  # to choose η, and with the chosen one
    etas: dict[str, float]  # where the grid of a loss starts in the Euclidean metric


def ocr_task(folder: Path, protocol: str) -> Task:
    """Linear scores; a fifth of the training words is held out."""
    words, fold = ocr.load(need(folder / "letter.data", ocr.HOW))
    inside = (fold == 0) if protocol == "small" else (fold != 0)
    order = inside.nonzero()[:, 0]
    order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(0))]
    held = len(order) // 5
    train, data = words[order[held:]], {"val": words[order[:held]], "test": words[~inside]}

    def batches() -> Iterator[tuple[Any, Any]]:
        for at in torch.randperm(len(train.x)).split(32):
            batch = train[at]
            yield batch.x, (batch.labels, batch.lengths)

    return Task(
        ocr.Linear,
        {"likelihood": ChainCRF, "hinge": partial(ChainHinge, smooth=True)},
        batches,
        lambda model, _, split: 100 - ocr.errors(model, data[split])["letter"],
        (15, 30) if protocol == "small" else (3, 6),
        {"likelihood": 0.03, "hinge": 0.03},
    )


def chunking_task(folder: Path) -> Task:
    """The BiLSTM; the last tenth of the training sentences is held out."""
    sentences = chunking.read(need(folder / "conll2000" / "train.txt", chunking.HOW))
    held = len(sentences) // 10
    split = {"train": sentences[:-held], "val": sentences[-held:], "test": chunking.read(folder / "conll2000/test.txt")}
    vocabulary = chunking.Vocabulary(split["train"])
    data = {name: vocabulary.encode(found) for name, found in split.items()}

    def batches() -> Iterator[tuple[Any, Any]]:
        for at in chunking.batches(data["train"]):
            batch = chunking.collate([data["train"][i] for i in at])
            yield batch, (batch.chunks, batch.lengths)

    return Task(
        partial(chunking.Tagger, vocabulary),
        {"likelihood": ChainCRF, "hinge": partial(ChainHinge, smooth=True)},
        batches,
        lambda model, _, split: chunking.chunk_f1(model, data[split], vocabulary.chunks),
        (2, 6),
        {"likelihood": 0.03, "hinge": 0.03},
    )


def camvid_task(folder: Path, fast_cut: bool) -> Task:
    """The dilated convolutions; the val split is the data set's own."""
    data = {split: camvid.read(folder / "camvid", split) for split in ("train", "val", "test")}
    grid = partial(GridHinge, cut=maxflow_cut if fast_cut else scipy_cut)
    train = data["train"]

    def batches() -> Iterator[tuple[Any, Any]]:
        for at in torch.randperm(len(train.x)).split(4):
            yield train.x[at], (train.road[at], train.known[at])

    def score(model: nn.Module, loss: str, split: str) -> float:
        decode = grid().decode if loss == "hinge" else camvid.by_sign
        return camvid.iou(camvid.predict(model, data[split], decode), data[split])

    return Task(
        camvid.Network,
        {"likelihood": camvid.PixelCrossEntropy, "hinge": grid},
        batches,
        score,
        (4, 10),
        {"likelihood": 0.1, "hinge": 1e-5},  # the grid hinge is a sum over 10,800 pixels
    )


def task_of(name: str, folder: Path, fast_cut: bool = False) -> Task:
    """A task of ``MEASURES``."""
    if name == "chunking":
        return chunking_task(folder)
    return camvid_task(folder, fast_cut) if name == "camvid" else ocr_task(folder, name.removeprefix("ocr-"))


def methods(task: Task) -> dict[tuple[str, str], float]:
    """Each method, a loss and an optimizer, with the η its grid starts from."""
    ours = {(loss, metric): task.etas[loss] for loss in task.losses for metric in METRICS}
    ours |= {(loss, "diagonal"): 1e-3 for loss in task.losses}
    return ours | {("likelihood", peer): 1e-3 * STEP for peer in PEERS}


def train(task: Task, loss: str, how: str, eta: float, epochs: int, test: bool) -> dict[str, Any]:
    """One run: after each epoch the held-out score of the weights and of their average."""
    model, criterion = task.model().train(), task.losses[loss]()
    optimizer: Any
    if how in PEERS:
        optimizer = PEERS[how](model.parameters(), lr=eta)
    else:
        optimizer = ProxOptimizer(
            criterion, SingleStepFW(), model.parameters(), lr=eta, momentum=0.9, metric=METRICS[how]()
        )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGE), use_buffers=True)
    best: dict[str, tuple[float, nn.Module]] = {}
    trace, began = [], time.process_time()
    for epoch in tqdm(range(epochs), desc=f"{loss}, {how}, {eta:.2g}", unit="epoch", mininterval=2):
        for x, y in task.batches():
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            average.update_parameters(model)
        for name, weights in {"last": model, "average": average.module}.items():
            score = task.score(weights, loss, "val")
            trace.append({"epoch": epoch + 1, "weights": name, "val": score})
            if name not in best or score > best[name][0]:
                best[name] = score, copy.deepcopy(weights)
    found: dict[str, Any] = {f"val_{name}": score for name, (score, _) in best.items()}
    if test:
        found |= {f"test_{name}": task.score(weights, loss, "test") for name, (_, weights) in best.items()}
    return {**found, "seconds": time.process_time() - began, "trace": trace}


def tune(runs: Runs, task: Task, loss: str, how: str, eta: float, most: int = 7) -> float:
    """The best η on held-out data: never at the edge of the tried values, unless there are ``most`` of them."""
    found: dict[int, float] = {}

    def score(k: int) -> float:
        if k not in found:
            tried, epochs = float(f"{eta * STEP**k:.2g}"), task.epochs[0]
            run = partial(train, task, loss, how, tried, epochs, test=False)
            result = runs.once(run, loss=loss, how=how, eta=tried, epochs=epochs, seed=0)
            found[k] = max(result["val_last"], result["val_average"])
        return found[k]

    for k in (-1, 0, 1):
        score(k)
    while len(found) < most:
        best = max(found, key=lambda k: found[k])
        beyond = best - 1 if best == min(found) else best + 1
        if beyond in found:
            break
        score(beyond)
    return float(f"{eta * STEP ** max(found, key=lambda k: found[k]):.2g}")


def table(task: str, done: list[dict[str, Any]]) -> str:
    """Mean and standard deviation of the chosen runs, in Markdown."""
    lines = [f"| loss | trained by | η | {MEASURES[task]}, test: last | averaged | chosen on held-out data |"]
    lines.append("|---|---|---|---|---|---|")
    final = [r for r in done if r["config"]["seed"]]
    for loss, how in dict.fromkeys((r["config"]["loss"], r["config"]["how"]) for r in final):
        rows = [r for r in final if (r["config"]["loss"], r["config"]["how"]) == (loss, how)]
        chosen = [r["test_average" if r["val_average"] > r["val_last"] else "test_last"] for r in rows]
        columns = [[r["test_last"] for r in rows], [r["test_average"] for r in rows], chosen]
        cells = [f"{statistics.mean(c):.1f}" + (f" ± {statistics.stdev(c):.1f}" if c[1:] else "") for c in columns]
        name = how if how in PEERS else f"ProxOptimizer, {how}"
        lines.append(f"| {loss} | {name} | {rows[0]['config']['eta']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = arguments("Structured tasks, every method tuned alike", "tuned/TASK")
    parser.add_argument("task", choices=list(MEASURES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, nargs=2, metavar=("TUNING", "CHOSEN"), help="default: the task's own")
    parser.add_argument("--fast-cut", action="store_true", help="cut with PyMaxflow (pip install '.[maxflow]')")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = task_of(given.task, given.data, given.fast_cut)
    if given.epochs:
        task = task._replace(epochs=tuple(given.epochs))
    runs = Runs(given.results.with_name(given.results.name.replace("TASK", given.task)))
    for (loss, how), start in methods(task).items():
        eta = tune(runs, task, loss, how, start)
        for seed in given.seeds:
            run = partial(train, task, loss, how, eta, task.epochs[1], test=True)
            runs.once(run, loss=loss, how=how, eta=eta, epochs=task.epochs[1], seed=seed)
    print(table(given.task, runs.done))


if __name__ == "__main__":
    main()
