"""What the benchmarks of linear models share: the data sets, and a race to within 1e-3 of the best objective."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from tqdm import tqdm

from benchmarks.common import Options, interleaved, ratio, write

WITHIN = 1e-3
GRID = [10 ** (-k / 4) for k in range(21)]


def race(options: Options, name: str, losses: Any, makes: dict[str, Callable[[float, float], Any]]) -> None:
    """Time every estimator ``makes[...](C, tol)`` at its loosest sufficient tolerance; ours are called LinearSVM…

    ``losses(scores, y)``: the loss of each sample.
    """
    warnings.simplefilter("ignore")
    found, missing = cases(options)
    for data in (found[0][1][:200], found[2][1][:200]):
        for who in (who for who in makes if who.startswith("LinearSVM")):
            makes[who](10.0, WITHIN).fit(data, np.arange(200) % 10)  # compiles
    rows = []
    for title, X, y, C in tqdm(found, desc=name):

        def fit(who: str, tol: float, X: Any = X, y: Any = y, C: float = C) -> Any:
            return makes[who](C, tol).fit(X, y)

        def reached(who: str, tol: float, X: Any = X, y: Any = y, C: float = C, fit: Any = fit) -> float:
            w = fit(who, tol).coef_.astype(np.float64)
            return float(np.sum(w**2) / 2 + C * losses(np.asarray(X @ w.T), y).sum())

        theirs = [who for who in makes if not who.startswith("LinearSVM")]
        best = min(reached("LinearSVM", 1e-6), *(reached(who, 1e-4) for who in theirs))
        tols = {who: loosest(partial(reached, who), best) for who in [*theirs, "LinearSVM"]}
        tols = {who: tols.get(who, tols["LinearSVM"]) for who in makes}  # float32 at the tolerance of float64
        times = interleaved({who: partial(fit, who, tol) for who, tol in tols.items()}, options.rounds(5, quick=3))
        fastest = min(theirs, key=lambda who: times[who].median)
        certified = fit("LinearSVM", tols["LinearSVM"])
        rows.append(
            {"data": title, "C": C}
            | {f"{who}, s": times[who].median for who in makes}
            | {f"{who} / the faster": ratio(times, who, fastest) for who in makes if who not in theirs}
            | {f"tol of {who}": tol for who, tol in tols.items()}
            | {f"{who} above the best": reached(who, tol) / best - 1 for who, tol in tols.items()}
            | {"certified gap": float(certified.dual_gap_ / certified.objective_)}
        )
    note = (
        f"Seconds until the primal objective is within {WITHIN:g} of the best known, each solver at the loosest "
        "tolerance (a grid of quarter decades) that gets there; no intercept, compiling not included. Only LinearSVM "
        "knows how far it is from the optimum: its certified gap P − D, relative to P."
    )
    note += f" Missing in --data, and so left out: {', '.join(missing)}." if missing else ""
    write(options, name, rows, note)


def loosest(objective: Callable[[float], float], best: float) -> float:
    """The loosest tolerance whose objective is within reach of the best."""
    for tol in GRID:
        if objective(tol) <= best * (1 + WITHIN):
            return tol
    raise RuntimeError(f"no tolerance of {GRID} was enough")


def cases(options: Options) -> tuple[list[tuple[str, Any, np.ndarray, float]], list[str]]:
    """(title, X, y, C) of each case, the dense ones first; and the sets that are missing in --data."""
    n = 2000 if options.quick else 10_000
    X, y = dense(n)
    sets: dict[str, Any] = {
        "text-like": text_like(n),
        "text-like 2": text_like(2 * n, features=100_000, words=200, classes=6, seed=1),
        "SNLI": snli(options.data / "snli_1.0", n),
        "CoNLL-2000": conll(options.data / "conll2000", n),
    }
    found = [(f"synthetic, {n:,} × 784 dense", X, y, C) for C in (1e-3, 1e-2)]
    for title, there in sets.items():
        if there is not None:
            T, t = there
            size = f"{T.shape[0]:,} × {T.shape[1]:,} sparse, {t.max() + 1} classes"
            found += [(f"{title}, {size}", T, t, C) for C in (0.1, 1.0)]
    return found, [title for title, there in sets.items() if there is None]


def dense(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten noisy classes ``[n, 784]`` in [0, 1]."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=n)
    return np.clip(rng.random((10, 784))[y] + 0.8 * rng.standard_normal((n, 784)), 0, 1), y


def text_like(
    n: int, features: int = 30_000, words: int = 80, classes: int = 20, seed: int = 0
) -> tuple[Any, np.ndarray]:
    """Documents as sparse rows of unit length: words drawn by Zipf's law, a few of them typical of the class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    common = np.minimum(rng.zipf(1.3, (n, words)) - 1, features - 1)
    topical = (y[:, None] * 997 + np.minimum(rng.zipf(1.2, (n, words)) - 1, 2000)) % features
    columns = np.where(rng.random((n, words)) < 0.15, topical, common)
    rows = np.repeat(np.arange(n), words)
    counts = sparse.csr_matrix((np.ones(n * words), (rows, columns.reshape(-1))), shape=(n, features))
    counts.sum_duplicates()
    idf = np.log(n / np.maximum(1, np.bincount(counts.indices, minlength=features)))
    return sparse.csr_matrix(normalize(counts.multiply(idf[None]).tocsr())), y


def snli(path: Path, n: int) -> tuple[Any, np.ndarray] | None:
    """n labelled sentence pairs of SNLI's dev set: tf-idf of the premise's words and of the hypothesis' words and
    pairs of words, one of 3 labels. None where ``path/snli_1.0_dev.jsonl`` is missing."""
    file = path / "snli_1.0_dev.jsonl"
    if not file.exists():
        return None
    pairs = [json.loads(line) for line in file.read_text().splitlines()]
    pairs = [pair for pair in pairs if pair["gold_label"] != "-"][:n]
    premise = TfidfVectorizer().fit_transform([pair["sentence1"] for pair in pairs])
    hypothesis = TfidfVectorizer(ngram_range=(1, 2)).fit_transform([pair["sentence2"] for pair in pairs])
    labels = np.unique([pair["gold_label"] for pair in pairs], return_inverse=True)[1]
    return sparse.hstack([premise, hypothesis], format="csr"), labels


def conll(path: Path, n: int) -> tuple[Any, np.ndarray] | None:
    """n words of CoNLL-2000: indicators of the word, its endings and its neighbours, one of its chunk tags. None where
    ``path/train.txt`` is missing."""
    file = path / "train.txt"
    if not file.exists():
        return None
    seen: list[dict[str, str]] = []
    tags: list[str] = []
    for sentence in file.read_text().split("\n\n"):
        lines = [line.split() for line in sentence.splitlines()]
        words = ["<s>", *(line[0].lower() for line in lines), "</s>"]
        for before, word, after, (_, _, tag) in zip(words, words[1:], words[2:], lines, strict=False):
            pair = {"pair": f"{before} {word}", "next": f"{word} {after}"}
            seen.append({"word": word, "before": before, "after": after, "end3": word[-3:], "end2": word[-2:], **pair})
            tags.append(tag)
        if len(tags) >= n:
            break
    X = normalize(DictVectorizer().fit_transform(seen[:n]).tocsr())
    return X, np.unique(tags[:n], return_inverse=True)[1]
