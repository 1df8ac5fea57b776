"""ChainSVM and ChainCRFClassifier beside CRFsuite (python-crfsuite): OCR letters (small), and CoNLL-2000 chunking.

    python -m benchmarks structured_estimator --data DIR

CRFsuite: "lbfgs", c1 = 0, c2 = 1/(2C), its own stopping rule. On OCR feature.possible_states and possible_transitions
make its objective ours; on CoNLL it has its default, the pairs of a feature and a label that the training data have.
Seconds: CPU time of one thread for the training, the conversion of the dicts included, compilation not.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.metrics import accuracy_score

from benchmarks.common import Options, write
from experiments.structured import chunking, ocr
from proxsvm._extras import load
from proxsvm.estimators import ChainCRFClassifier, ChainSVM

Data = tuple[list[list[dict[str, float]]], list[list[str]]]


class Task(NamedTuple):
    train: Data
    test: Data
    judge: Callable[[Any, Any], float]
    C: float
    tol: float  # of the SVM
    crfsuite: dict[str, Any]


def letters(folder: Path) -> Task:
    """Fold 0 trains, the others test; λ = 0.01 for the mean over the words."""
    words, fold = ocr.load(folder / "letter.data")

    def convert(words: ocr.Words) -> Data:
        rows = [(x[:T].tolist(), y[:T].tolist()) for x, y, T in zip(words.x, *words.target, strict=True)]
        X = [[{str(j): value for j, value in enumerate(row) if value} for row in x] for x, _ in rows]
        return X, [[chr(ord("a") + k) for k in y] for _, y in rows]

    def right(*labels: Any) -> float:
        return float(accuracy_score(*(list(chain.from_iterable(each)) for each in labels)))

    same = {"feature.possible_states": 1, "feature.possible_transitions": 1}
    train = convert(words[fold == 0])
    return Task(train, convert(words[fold != 0]), right, 1 / (0.01 * len(train[0])), 1e-3, same)


def chunks(folder: Path, limit: int | None) -> Task:
    splits = [chunking.read(folder / "conll2000" / f"{name}.txt")[:limit] for name in ("train", "test")]
    train, test = (([features(s) for s in split], [s.chunks for s in split]) for split in splits)
    f1 = load("seqeval.metrics", extra="experiments").f1_score
    return Task(train, test, f1, 0.5, 1e-2, {})


def features(sentence: chunking.Sentence) -> list[dict[str, float]]:
    """Words and POS tags at distances up to 2, bigrams of them, trigrams of tags: {"p0|p1=NN|VB": 1.0, ...}."""
    padded = [["<2>", "<1>", *column, "</1>", "</2>"] for column in (sentence.words, sentence.pos)]
    w, p = ([f"w{d}" for d in range(-2, 3)], [f"p{d}" for d in range(-2, 3)])
    templates = [*([name] for name in w + p), w[1:3], w[2:4], *(p[d : d + m] for m in (2, 3) for d in range(6 - m))]
    found = []
    for t in range(len(sentence.words)):
        own = dict(zip(w + p, padded[0][t : t + 5] + padded[1][t : t + 5], strict=True))
        found.append({f"{'|'.join(names)}={'|'.join(own[k] for k in names)}": 1.0 for names in templates})
    return [position | {"bias": 1.0} for position in found]


def crfsuite(task: Task) -> tuple[Callable[[Any], Any], Any, float, str]:
    """The prediction, the number of passes, the objective as ours has it, and the relative gap."""
    pycrfsuite = load("pycrfsuite", extra="peers")
    options = {"c1": 0, "c2": 0.5 / task.C, **task.crfsuite}
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", params=options, verbose=False)
    for x, y in zip(*task.train, strict=True):
        trainer.append(x, y)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(f"{folder}/model")
        tagger, last = pycrfsuite.Tagger(), trainer.logparser.last_iteration
        tagger.open(f"{folder}/model")
    return lambda X: list(map(tagger.tag, X)), last["num"], task.C * last["loss"], "not known"


def ours(model: Any, task: Task) -> tuple[Callable[[Any], Any], Any, float, str]:
    model.fit(*task.train)
    return model.predict, model.n_iter_, model.objective_, f"{model.dual_gap_ / model.objective_:.1e}"


def main(options: Options) -> None:
    for name, task in (("OCR", letters(options.data)), ("CoNLL", chunks(options.data, 500 if options.quick else None))):
        models = ChainSVM(task.C, tol=task.tol), ChainCRFClassifier(task.C, tol=1e-3)
        runs = {type(m).__name__: partial(ours, m) for m in models} | {"CRFsuite": crfsuite}
        rows: list[dict[str, Any]] = []
        for method, run in runs.items():
            run(task._replace(train=(task.train[0][:2], task.train[1][:2])))  # compiles
            began = time.process_time()
            predict, passes, objective, gap = run(task)
            seconds = time.process_time() - began
            right = f"{100 * task.judge(task.test[1], predict(task.test[0])):.2f}"
            row = {"method": method, "seconds": seconds, "passes": passes, "objective": f"{objective:.2f}"}
            rows.append({**row, "relative gap": gap, "F1 or letters right, %": right})
        write(options, f"structured_estimator_{name}", rows, __doc__ or "")
