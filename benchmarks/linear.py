"""Linear models beside scikit-learn's: CPU time to within 1e-3 of the best objective, for data × losses × C.

    python -m benchmarks which_estimator      small tables, all losses, C from 1e-3 to 1e3 (any_scale: unscaled ones)
    python -m benchmarks against_liblinear    large sets (SNLI and CoNLL-2000 if --data has them), multi-class hinge
    python -m benchmarks against_logistic     the same sets, multinomial logistic regression

Each solver has the loosest tolerance (a grid of quarter decades) within 1e-3 of the best objective, ours at a gap of
1e-4; "certified" is ours at tol=1e-3. –: scikit-learn is not there in 5 s. One thread, no intercept, no compilation.
An interrupted run continues: --out keeps its measurements, and tolerances.json those of scikit-learn for all runs.
"""

import resource
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import chain, product
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame
from scipy import sparse
from scipy.special import logsumexp
from sklearn import datasets, svm
from sklearn.datasets import make_classification, make_regression
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize, scale
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from benchmarks.common import Options, interleaved, kept, ratio, write
from experiments import snli as sentence_pairs
from experiments.structured import chunking
from proxsvm.estimators import LinearSVM, LinearSVR
from proxsvm.estimators.linear_svm import OF_CLASSES

Table = tuple[Any, np.ndarray]  # X, and classes from 0 or real numbers
WITHIN = 1e-3
GRID = [10 ** (-k / 4) for k in range(29)]
LIMIT = 5  # CPU seconds for a fit of scikit-learn's
COMMON = {"fit_intercept": False, "max_iter": 100_000}
SVC, SVR = partial(svm.LinearSVC, random_state=0, **COMMON), partial(svm.LinearSVR, random_state=0, **COMMON)
LOGISTIC = partial(LogisticRegression, **COMMON)
THEIRS: dict[str, dict[str, Any]] = {
    # newton-cholesky needs a matrix of all weights, sag and saga many more passes
    "log_loss": {"lbfgs": partial(LOGISTIC, solver="lbfgs"), "newton-cg": partial(LOGISTIC, solver="newton-cg")},
    "crammer_singer": {"liblinear": partial(SVC, multi_class="crammer_singer")},
    "epsilon_insensitive": {"liblinear": SVR},
    "hinge": {"liblinear": partial(SVC, loss="hinge")},
    "squared_hinge": {"liblinear": partial(SVC, loss="squared_hinge")},
    "weston_watkins": {},
    "squared_epsilon_insensitive": {"liblinear": partial(SVR, loss="squared_epsilon_insensitive")},
}


def losses(loss: str, u: np.ndarray, y: np.ndarray) -> Any:
    """The losses of the scores ``u [n, K]``, one for each sample or label. The regression has no band."""
    K, power = u.shape[1], 2 if loss.startswith("squared") else 1
    if loss.endswith("insensitive"):
        return np.abs(u - y[:, None]) ** power
    if loss.endswith("hinge"):  # of each class against the rest
        signs = np.where(y[:, None] == (np.arange(K) if K > 1 else 1), 1, -1)
        return np.maximum(0, 1 - signs * u) ** power
    above = u - np.take_along_axis(u, y[:, None], axis=1)
    return logsumexp(above, axis=1) if loss == "log_loss" else (above + (np.arange(K) != y[:, None])).max(1)


class Case(NamedTuple):
    title: str
    X: Any
    y: np.ndarray
    loss: str
    C: float

    @property
    def pair(self) -> bool:
        """Two classes in one problem, of whose weights only w = w₁ − w₀ is in ``coef_``; w₀ = −w₁ = −w/2."""
        return self.loss in OF_CLASSES and self.y.max() == 1

    def fit(self, name: str, tol: float) -> Any:
        """A fitted model, "ours" or one of scikit-learn's."""
        if name == "ours":
            kind = LinearSVR if self.loss in LinearSVR.losses else LinearSVM
            model = kind(C=self.C, loss=self.loss, tol=tol, max_iter=10_000, fit_intercept=False)
        else:  # LogisticRegression has ½‖w‖², ours ½‖w₀‖² + ½‖w₁‖² = ¼‖w‖²
            double = self.pair and self.loss == "log_loss"
            model = THEIRS[self.loss][name](C=2 * self.C if double else self.C, tol=tol)
        return model.fit(self.X, self.y)

    def objective(self, coef: np.ndarray) -> float:
        W = np.atleast_2d(coef).astype(np.float64)
        W = np.vstack([-W / 2, W / 2]) if self.pair else W
        return float((W**2).sum() / 2 + self.C * losses(self.loss, np.asarray(self.X @ W.T), self.y).sum())

    def loosest(self, name: str, best: float, limit: int = LIMIT) -> float | None:
        """The first tolerance of the grid, by bisection, whose objective is within reach of the best; or None."""
        low, high, found = 0, len(GRID), None
        while low < high:
            middle = (low + high) // 2
            fit = partial(self.fit, name, GRID[middle])
            coef = fit().coef_ if name == "ours" else within_limit(fit, limit)
            reached = coef is not None and self.objective(coef) <= best * (1 + WITHIN)
            found = GRID[middle] if reached else found
            low, high = (low, middle) if reached or coef is None else (middle + 1, high)
        return found


def within_limit(fit: Callable[[], Any], limit: int) -> Any:
    """The weights of a fit in a process of its own; None where the kernel ended it after ``limit`` s of CPU time."""
    limits = resource.RLIMIT_CPU, (limit, limit)
    with ProcessPoolExecutor(1, get_context("fork"), resource.setrlimit, limits) as process:
        try:
            return process.submit(fit).result().coef_
        except BrokenProcessPool:
            return None


def measure(case: Case, key: str, options: Options, whole: bool) -> dict[str, float]:
    """Milliseconds and ratios, tolerances, objectives, and the gap that is certified."""
    fits = {"certified": partial(case.fit, "ours", WITHIN)}
    if theirs := THEIRS[case.loss]:
        best = case.fit("ours", 1e-4).objective_
        tols: dict[str, float] = {"ours": case.loosest("ours", best) or WITHIN} if whole else {}
        for name in theirs:
            search = partial(case.loosest, name, best, 1 if options.quick else LIMIT)
            tols |= {name: tol} if (tol := kept(options.out / "tolerances.json", f"{key}|{name}", search)) else {}
        fits |= {name: partial(case.fit, name, tol) for name, tol in tols.items()}
        single = case._replace(X=case.X.astype(np.float32))
        fits |= {"ours, float32": partial(single.fit, "ours", tols["ours"])} if whole else {}
    models = {name: fit() for name, fit in fits.items()}  # and loads the compiled loops
    times = interleaved(fits, options.rounds(5, quick=3), clock=time.thread_time)
    found = {f"{name}, ms": 1e3 * times[name].median for name in fits}
    if reached := [name for name in theirs if name in fits]:
        fastest = min(reached, key=lambda name: times[name].median)
        found |= {f"{name} / the faster": ratio(times, name, fastest) for name in fits if name not in theirs}
    found |= {f"{name} above the best": case.objective(m.coef_) / best - 1 for name, m in models.items() if theirs}
    return found | {"certified gap": float(models["certified"].dual_gap_ / models["certified"].objective_)}


def compare(options: Options, name: str, data: dict[str, Table], chosen: Iterable[str]) -> DataFrame:
    """A row for each case: real targets with the losses of regression, classes with the others."""
    cases, rows, whole = [], [], name.startswith("against")
    for loss, (title, (X, y)) in product(chosen, data.items()):
        grid = 10.0 ** np.arange(-3, 4)
        if whole:
            grid = grid[:2] if isinstance(X, np.ndarray) else grid[2:4]
        elif options.quick:
            grid = grid[2:3]
        if (y.dtype.kind == "f") == (loss in LinearSVR.losses):
            cases += [Case(title, X, y, loss, C) for C in grid]
    parts = options.out / f"{name}_parts{'_quick' * options.quick}.json"
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        for case in tqdm(cases, desc=name):
            row = {"loss": case.loss, "data": case.title, "C": f"{case.C:g}"}
            key = "|".join([*row.values(), "quick"[: 5 * options.quick]])
            rows.append(row | kept(parts, key, partial(measure, case, key, options, whole)))
    frame = DataFrame(rows)
    write(options, name, frame, __doc__ or "")
    parts.unlink()
    return frame


def which_estimator(options: Options, name: str = "which_estimator", kind: str = "") -> None:
    data = {title: table for title, table in small(options).items() if title.startswith(kind)}
    frame = compare(options, name, data, THEIRS)
    best = frame.filter(items=["liblinear, ms", "lbfgs, ms", "newton-cg, ms"]).min(axis=1)
    frame["ms"] = [f"{a:.3g} / {b:.3g}".replace("nan", "–") for a, b in zip(frame["certified, ms"], best, strict=True)]
    by_C = frame.pivot(index=["loss", "data"], columns="C", values="ms").reset_index()
    write(options, f"{name}_by_C", by_C, "Milliseconds, ours certified / the faster one of scikit-learn.")


any_scale = partial(which_estimator, name="any_scale", kind="unscaled")


def against_liblinear(options: Options) -> None:
    compare(options, "against_liblinear", large(options), ["crammer_singer"])


def against_logistic(options: Options) -> None:
    compare(options, "against_logistic", large(options), ["log_loss"])


def small(options: Options) -> dict[str, Table]:
    """Unscaled, dense, tall, wide and sparse tables; California housing where --data has it."""
    n, known = 400 if options.quick else 20_000, ("iris", "wine", "breast_cancer", "digits")
    raw = {name.replace("_", " "): getattr(datasets, f"load_{name}")(return_X_y=True) for name in known}
    dense = {f"dense ({name})": table for name, table in raw.items()} | {
        "dense, ten classes": make_classification(n // 4, 100, n_informative=30, n_classes=10, random_state=0),
        "tall": make_classification(n, 20, n_informative=10, n_classes=3, random_state=0),
        "wide": make_classification(200, 1000, n_informative=30, n_classes=3, random_state=0),
    }
    found = {f"unscaled ({name})": raw[name] for name in ("breast cancer", "wine")} | {
        "unscaled (synthetic)": mixed_scales(real=False),
        "unscaled, real y (diabetes)": datasets.load_diabetes(return_X_y=True, scaled=False),
        "unscaled, real y (synthetic)": mixed_scales(real=True),
        **{title: (scale(X), y) for title, (X, y) in dense.items()},
        "sparse (text-like)": text_like(n // 4),
        "tall, real y": make_regression(n, 20, noise=10.0, random_state=0),
    }
    if (options.data / "cal_housing.data").exists():
        rows = np.loadtxt(options.data / "cal_housing.data", delimiter=",")
        found["unscaled, real y (California)"] = rows[:, :8], rows[:, 8] / 1e5
    return found


def large(options: Options) -> dict[str, Table]:
    """A dense set, and sparse ones; SNLI and CoNLL-2000 where --data has them."""
    n = 2000 if options.quick else 10_000
    more = {"features": 100_000, "words": 200, "classes": 6, "seed": 1}
    sets = {"synthetic": ten_clouds(n), "text-like": text_like(n), "text-like 2": text_like(2 * n, **more)}
    sets |= {"SNLI": snli(options, n)} if (options.data / "snli_1.0").exists() else {}
    sets |= {"CoNLL-2000": conll(options, n)} if (options.data / "conll2000").exists() else {}
    return {f"{t}, {X.shape[0]:,} × {X.shape[1]:,}, {y.max() + 1} classes": (X, y) for t, (X, y) in sets.items()}


def mixed_scales(real: bool) -> Table:
    """Columns of the scales 1e-4 to 1e4."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((400, 12))
    scores = Z @ rng.standard_normal((12, 3)) + rng.standard_normal((400, 3))
    return Z * np.logspace(-4, 4, 12), scores[:, 0] if real else scores.argmax(1)


def ten_clouds(n: int) -> Table:
    """Ten noisy classes ``[n, 784]`` in [0, 1]."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=n)
    return np.clip(rng.random((10, 784))[y] + 0.8 * rng.standard_normal((n, 784)), 0, 1), y


def text_like(n: int, features: int = 30_000, words: int = 80, classes: int = 20, seed: int = 0) -> Table:
    """Documents as sparse rows of unit length: words drawn by Zipf's law, a few of them typical of the class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    common = np.minimum(rng.zipf(1.3, (n, words)) - 1, features - 1)
    topical = (y[:, None] * 997 + np.minimum(rng.zipf(1.2, (n, words)) - 1, 2000)) % features
    columns = np.where(rng.random((n, words)) < 0.15, topical, common)
    entries = np.ones(n * words), (np.repeat(np.arange(n), words), columns.reshape(-1))
    counts = sparse.csr_matrix(entries, shape=(n, features))
    counts.sum_duplicates()
    idf = np.log(n / np.maximum(1, np.bincount(counts.indices, minlength=features)))
    return sparse.csr_matrix(normalize(counts.multiply(idf[None]).tocsr())), y


def snli(options: Options, n: int) -> Table:
    """n sentence pairs of SNLI's dev set: tf-idf of the premise's words, and of the hypothesis' words and bigrams."""
    parts = sentence_pairs.read_sentences(options.data / "snli_1.0" / "snli_1.0_dev.jsonl")
    premises, hypotheses, labels = (part[:n] for part in parts)
    X = [TfidfVectorizer().fit_transform(premises), TfidfVectorizer(ngram_range=(1, 2)).fit_transform(hypotheses)]
    return sparse.hstack(X, format="csr"), (np.array(labels) + 1) % 3  # in alphabetical order


def conll(options: Options, n: int) -> Table:
    """n words of CoNLL-2000: indicators of the word, its endings and its neighbours; its chunk tag."""
    sentences = chunking.read(options.data / "conll2000" / "train.txt")
    tags = list(chain.from_iterable(sentence.chunks for sentence in sentences))[:n]
    seen: list[dict[str, str]] = []
    for sentence in sentences:
        words = ["<s>", *map(str.lower, sentence.words), "</s>"]
        for before, word, after in zip(words, words[1:], words[2:], strict=False):
            pair = {"pair": f"{before} {word}", "next": f"{word} {after}"}
            seen.append({"word": word, "before": before, "after": after, "end3": word[-3:], "end2": word[-2:], **pair})
    X = normalize(DictVectorizer().fit_transform(seen[:n]).tocsr())
    return X, np.unique(tags, return_inverse=True)[1]
