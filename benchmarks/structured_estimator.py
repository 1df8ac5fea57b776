"""ChainSVM and ChainCRFClassifier beside CRFsuite (python-crfsuite): OCR letters (small), and CoNLL-2000 chunking.

    python -m benchmarks structured_estimator --data DIR

CRFsuite: algorithm "lbfgs", c1 = 0, c2 = 1/(2C), its own stopping rule. On OCR all states and transitions
(feature.possible_states, feature.possible_transitions = 1) make its model and its objective the same as ours. On CoNLL it
has its default, the pairs of a feature and a label that occur in the training data, so its objective is another one.
Seconds are CPU time of one thread, with the conversion of the dicts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pycrfsuite
from seqeval.metrics import f1_score

from benchmarks.common import Options, write
from experiments.structured.chunking import Sentence, read
from experiments.structured.ocr import load
from proxsvm.estimators import ChainCRFClassifier, ChainSVM

Features = list[list[dict[str, float]]]
Labels = list[list[str]]


class Task(NamedTuple):
    train: tuple[Features, Labels]
    test: tuple[Features, Labels]
    judge: Callable[[Labels, Labels], float]
    measure: str
    C: float
    crfsuite: dict[str, Any]


def letters(folder: Path) -> Task:
    """Fold 0 trains, the others test. λ = 0.01 for the mean over the words, as in docs/structured.md."""
    words, fold = load(folder / "letter.data")

    def split(at: Any) -> tuple[Features, Labels]:
        own = [
            (w.x[:T].tolist(), w.labels[:T].tolist())
            for w in (words[i] for i in at.nonzero()[:, 0])
            for T in [w.lengths]
        ]
        X = [[{str(j): value for j, value in enumerate(row) if value} for row in x] for x, _ in own]
        return X, [[chr(ord("a") + k) for k in y] for _, y in own]

    def right(truth: Labels, found: Labels) -> float:
        pairs = [(a, b) for y, z in zip(truth, found, strict=True) for a, b in zip(y, z, strict=True)]
        return sum(a == b for a, b in pairs) / len(pairs)

    same = {"feature.possible_states": 1, "feature.possible_transitions": 1}
    train = split(fold == 0)
    return Task(train, split(fold != 0), right, "letters right, %", 1 / (0.01 * len(train[0])), same)


def chunks(folder: Path, limit: int | None) -> Task:
    """The features of a window of five: words, POS tags, their bigrams, and trigrams of tags."""

    def split(name: str) -> tuple[Features, Labels]:
        sentences = read(folder / "conll2000" / f"{name}.txt")[:limit]
        return [features(s) for s in sentences], [s.chunks for s in sentences]

    return Task(split("train"), split("test"), f1_score, "chunk F1, %", 0.5, {})


def features(sentence: Sentence) -> list[dict[str, float]]:
    """Of each word, as names with the value 1: {"w-1=of": 1.0, "p0|p1=NN|VB": 1.0, ...}."""
    found = []
    for t in range(len(sentence.words)):
        window = {f"w{d}": at(sentence.words, t + d) for d in range(-2, 3)}
        tags = {f"p{d}": at(sentence.pos, t + d) for d in range(-2, 3)}
        names = [("bias",), *((key,) for key in (*window, *tags)), ("w-1", "w0"), ("w0", "w1")]
        names += [tuple(tags)[d : d + n] for n in (2, 3) for d in range(6 - n)]
        own = {"bias": "", **window, **tags}
        found.append({f"{'|'.join(keys)}={'|'.join(own[key] for key in keys)}": 1.0 for keys in names})
    return found


def at(words: list[str], t: int) -> str:
    return words[t] if 0 <= t < len(words) else f"outside {min(t, 0) + max(t - len(words) + 1, 0)}"


def crfsuite(task: Task) -> tuple[Labels, dict[str, Any]]:
    trainer = pycrfsuite.Trainer(
        algorithm="lbfgs", verbose=False, params={"c1": 0, "c2": 0.5 / task.C, **task.crfsuite}
    )
    for x, y in zip(*task.train, strict=True):
        trainer.append(x, y)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(f"{folder}/model")
        last = trainer.logparser.last_iteration
        tagger = pycrfsuite.Tagger()
        tagger.open(f"{folder}/model")
        done = time.process_time()
        found = [tagger.tag(x) for x in task.test[0]]
    return found, {
        "done": done,
        "passes": last["num"],
        "objective": f"{task.C * last['loss']:.2f}",
        "relative gap": "not known",
    }


def ours(make: type, tol: float, task: Task) -> tuple[Labels, dict[str, Any]]:
    model = make(task.C, tol=tol, max_iter=2000).fit(*task.train)
    gap, done = model.dual_gap_ / model.objective_, time.process_time()
    return model.predict(task.test[0]), {
        "done": done,
        "passes": model.n_iter_,
        "objective": f"{model.objective_:.2f}",
        "relative gap": f"{gap:.1e}",
    }


def main(options: Options) -> None:
    runs: dict[str, Callable[[Task], Any]] = {
        "CRFsuite": crfsuite,
        "ChainCRFClassifier, tol 1e-2": lambda task: ours(ChainCRFClassifier, 1e-2, task),
        "ChainCRFClassifier, tol 1e-3": lambda task: ours(ChainCRFClassifier, 1e-3, task),
        "ChainSVM, tol 1e-2": lambda task: ours(ChainSVM, 1e-2, task),
        "ChainSVM, tol 1e-3": lambda task: ours(ChainSVM, 1e-3, task),
    }
    rows = []
    for name, task in {
        "OCR": letters(options.data),
        "CoNLL": chunks(options.data, 500 if options.quick else None),
    }.items():
        for method, run in runs.items():
            run(task._replace(train=tuple(part[:2] for part in task.train)))  # compiles
            began = time.process_time()
            found, row = run(task)
            seconds = row.pop("done") - began
            quality = 100 * task.judge(task.test[1], found)
            rows.append({"task": name, "method": method, "C": task.C, "seconds": seconds, **row, task.measure: quality})
    for name in ("OCR", "CoNLL"):
        write(options, f"structured_estimator_{name}", [row for row in rows if row["task"] == name], __doc__ or "")
