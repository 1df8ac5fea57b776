"""ChainSVM and ChainCRFClassifier beside CRFsuite (python-crfsuite): OCR letters (small), and CoNLL-2000 chunking.

CRFsuite: "lbfgs", c1 = 0, c2 = 1/(2C), its own stopping rule. On OCR feature.possible_states and possible_transitions
make its objective ours; on CoNLL it has its default, the pairs of a feature and a label that the training data have.
Seconds: CPU time of one thread for the training, the conversion of the dicts included, compilation not.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from sklearn.metrics import accuracy_score

from benchmarks.common import Options, write
from experiments.structured import chunking, ocr
from proxsvm._extras import load
from proxsvm.estimators import ChainCRFClassifier, ChainSVM

Data = tuple[list[list[dict[str, float]]], list[list[str]]]
Task = tuple[Any, ...]  # name, training and test set, what judges labels, C, tolerance of the SVM, options of CRFsuite
Fitted = tuple[Callable[[Any], Any], Any, float, str]  # predicts; passes, the objective as ours has it, relative gap


def letters(options: Options) -> Task:
    """Fold 0 trains, the others test; λ = 0.01 for the mean over the words."""
    words, fold = ocr.load(options.data / "letter.data")

    def convert(words: Any) -> Data:
        rows = [(x[:T].tolist(), y[:T].tolist()) for x, y, T in zip(*words, strict=True)]
        X = [[{str(j): value for j, value in enumerate(row) if value} for row in x] for x, _ in rows]
        return X, [[chr(ord("a") + k) for k in y] for _, y in rows]

    def right(*labels: Any) -> float:
        return float(accuracy_score(*(list(chain.from_iterable(each)) for each in labels)))

    same = {"feature.possible_states": 1, "feature.possible_transitions": 1}
    train, test = convert(words[fold == 0]), convert(words[fold != 0])
    return "OCR", train, test, right, 1 / (0.01 * len(train[0])), 1e-3, same


def chunks(options: Options) -> Task:
    """Words and POS tags at distances up to 2, bigrams of them, trigrams of tags: {"p0|p1=NN|VB": 1.0, ...}."""
    w, p = ([f"{kind}{d}" for d in range(-2, 3)] for kind in "wp")
    templates = [*([name] for name in w + p), w[1:3], w[2:4], *(p[d : d + m] for m in (2, 3) for d in range(6 - m))]

    def features(sentence: chunking.Sentence) -> list[dict[str, float]]:
        words, tags = (["<2>", "<1>", *column, "</1>", "</2>"] for column in (sentence.words, sentence.pos))
        windows = [dict(zip(w + p, words[t : t + 5] + tags[t : t + 5], strict=True)) for t in range(len(words) - 4)]
        named = [
            {f"{'|'.join(names)}={'|'.join(own[k] for k in names)}": 1.0 for names in templates} for own in windows
        ]
        return [position | {"bias": 1.0} for position in named]

    splits = [chunking.read(options.data / "conll2000" / f"{name}.txt") for name in ("train", "test")]
    splits = [split[:500] for split in splits] if options.quick else splits
    train, test = (([features(s) for s in split], [s.chunks for s in split]) for split in splits)
    return "CoNLL", train, test, load("seqeval.metrics", extra="experiments").f1_score, 0.5, 1e-2, {}


def crfsuite(C: float, options: dict[str, Any], train: Data) -> Fitted:
    pycrfsuite = load("pycrfsuite", extra="peers")
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", params={"c1": 0, "c2": 0.5 / C, **options}, verbose=False)
    for x, y in zip(*train, strict=True):
        trainer.append(x, y)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(f"{folder}/model")
        tagger, last = pycrfsuite.Tagger(), trainer.logparser.last_iteration
        tagger.open(f"{folder}/model")
    return lambda X: list(map(tagger.tag, X)), last["num"], C * last["loss"], "not known"


def ours(model: Any, train: Data) -> Fitted:
    model.fit(*train)
    return model.predict, model.n_iter_, model.objective_, f"{model.dual_gap_ / model.objective_:.1e}"


def main(options: Options) -> None:
    for name, train, (X, y), judge, C, tol, same in (letters(options), chunks(options)):
        runs: dict[str, Callable[[Data], Fitted]] = {
            "ChainSVM": partial(ours, ChainSVM(C, tol=tol)),
            "ChainCRFClassifier": partial(ours, ChainCRFClassifier(C, tol=1e-3)),
            "CRFsuite": partial(crfsuite, C, same),
        }
        rows = []
        for method, run in runs.items():
            run((train[0][:2], train[1][:2]))  # loads the compiled loops
            began = time.process_time()
            predict, passes, objective, gap = run(train)
            row = {"method": method, "seconds": time.process_time() - began, "passes": passes}
            right = f"{100 * judge(y, predict(X)):.2f}"
            rows.append({**row, "objective": f"{objective:.2f}", "relative gap": gap, "F1 or letters right, %": right})
        write(options, f"structured_estimator_{name}", rows, __doc__ or "")
