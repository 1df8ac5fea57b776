"""The data of the linear models: small tables of every kind, and large sets, most of them sparse; title → X and y."""

from itertools import chain
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import datasets
from sklearn.datasets import make_classification, make_regression
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize, scale

from benchmarks.common import Options
from experiments import snli as sentence_pairs
from experiments.structured import chunking

Table = tuple[Any, np.ndarray]  # X, and classes from 0 or real numbers


def small(options: Options) -> dict[str, Table]:
    """Unscaled, dense, tall, wide and sparse tables; California housing where --data has it."""
    n = 400 if options.quick else 20_000
    iris, wine, cancer, digits = (
        getattr(datasets, f"load_{name}")(return_X_y=True) for name in ("iris", "wine", "breast_cancer", "digits")
    )
    scaled = {
        "dense (iris)": iris,
        "dense (wine)": wine,
        "dense (breast cancer)": cancer,
        "dense (digits)": digits,
        "dense, ten classes": make_classification(n // 4, 100, n_informative=30, n_classes=10, random_state=0),
        "tall": make_classification(n, 20, n_informative=10, n_classes=3, random_state=0),
        "wide": make_classification(200, 1000, n_informative=30, n_classes=3, random_state=0),
    }
    found = {
        "unscaled (breast cancer)": cancer,
        "unscaled (wine)": wine,
        "unscaled (synthetic)": mixed_scales(real=False),
        "unscaled, real y (diabetes)": datasets.load_diabetes(return_X_y=True, scaled=False),
        "unscaled, real y (synthetic)": mixed_scales(real=True),
        **{title: (scale(X), y) for title, (X, y) in scaled.items()},
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
    sets = {
        "synthetic": ten_clouds(n),
        "text-like": text_like(n),
        "text-like 2": text_like(2 * n, features=100_000, words=200, classes=6, seed=1),
    }
    sets |= {"SNLI": snli(options, n)} if (options.data / "snli_1.0").exists() else {}
    sets |= {"CoNLL-2000": conll(options, n)} if (options.data / "conll2000").exists() else {}
    kinds = {
        title: f"sparse, {y.max() + 1} classes" if sparse.issparse(X) else "dense" for title, (X, y) in sets.items()
    }
    return {f"{t}, {X.shape[0]:,} × {X.shape[1]:,} {kinds[t]}": (X, y) for t, (X, y) in sets.items()}


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
    rows = np.repeat(np.arange(n), words)
    counts = sparse.csr_matrix((np.ones(n * words), (rows, columns.reshape(-1))), shape=(n, features))
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
