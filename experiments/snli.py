"""SNLI sentence pairs and GloVe word vectors in their official formats.

Differences from InferSent (Conneau et al., EMNLP 2017), whose protocol the paper follows: words are lower-cased and
split by a regular expression here (there: the Moses tokeniser, with case); a word without a vector reads the mean
vector (there: it is left out); no start and end tokens; and batches are drawn among sentences of similar length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import TensorDataset

from experiments.task import damaged, need

LABELS = ("entailment", "neutral", "contradiction")
PADDING, UNKNOWN = 0, 1  # rows of the vectors
WORD = re.compile(r"\w+(?=n't)|n't|'\w+|\w+|[^\w\s]")  # "don't" is "do" and "n't", as in GloVe


def tokenise(sentence: str) -> list[str]:
    """The words and punctuation of a sentence; an empty one is a full stop.

    >>> tokenise("A dog doesn't swim.")
    ['a', 'dog', 'does', "n't", 'swim', '.']
    """
    return WORD.findall(sentence.lower()) or ["."]


def read_sentences(file: Path) -> tuple[list[str], list[str], list[int]]:
    """Both sentences of each pair, and its label; pairs without a gold label ("-") are left out."""
    rows = []
    for number, line in enumerate(_lines(file, "snli"), 1):
        try:
            row = json.loads(line)
            if row["gold_label"] != "-":
                rows.append((row["sentence1"], row["sentence2"], LABELS.index(row["gold_label"])))
        except (ValueError, KeyError, TypeError) as error:
            expected = f"expected JSON with sentence1, sentence2 and a gold_label ({error!r})"
            raise damaged(file, "snli", f", line {number}: {expected}") from error
    if not rows:
        raise damaged(file, "snli", " has no pair with a gold label")
    first, second, labels = zip(*rows, strict=True)
    return list(first), list(second), list(labels)


def read_vectors(file: Path, wanted: set[str]) -> dict[str, np.ndarray]:
    """The vectors of the ``wanted`` words, in the file's order; lines are a word and its numbers.

    A few words of glove.840B.300d contain spaces: they match no token here, and are skipped.
    """
    vectors: dict[str, np.ndarray] = {}
    size = 0
    for number, line in enumerate(_lines(file, "glove"), 1):
        size = size or line.count(" ")
        word, _, numbers = line.partition(" ")
        if line.count(" ") < size or not line.endswith("\n"):
            raise damaged(file, "glove", f", line {number}: expected a word and {size} numbers")
        if word in wanted and word not in vectors and line.count(" ") == size:
            try:
                vectors[word] = np.array(numbers.split(), np.float32)
            except ValueError as error:
                raise damaged(file, "glove", f", line {number}: {error}; expected a word and {size} numbers") from error
    if not vectors:
        raise damaged(file, "glove", f" has a vector for none of the {len(wanted)} words in GloVe's text format")
    return vectors


def load(
    data: Path, samples: int | None, seed: int, glove: str = "glove.6B.100d.txt"
) -> tuple[TensorDataset, TensorDataset, TensorDataset, Tensor]:
    """Training, validation (the official dev) and test pairs, and the vectors ``[V, E]`` of their words in float32.

    A pair is the word ids ``[n, T]`` of the first sentence, padded with 0, and its length, those of the second one, and
    the label.
    ``samples`` training pairs are drawn by ``seed`` (None: all, in the file's order). Row 0 of the vectors is padding,
    zeros; row 1 is any word that GloVe does not have: the mean vector.
    """
    texts = [read_sentences(data / "snli_1.0" / f"snli_1.0_{name}.jsonl") for name in ("train", "dev", "test")]
    texts = [([*map(tokenise, first)], [*map(tokenise, second)], y) for first, second, y in texts]
    if samples is not None:
        chosen = np.random.default_rng(seed).permutation(len(texts[0][2]))[:samples]
        texts[0] = tuple([column[i] for i in chosen] for column in texts[0])  # type: ignore[assignment]
    known = read_vectors(data / glove, {word for text in texts for side in text[:2] for word in chain(*side)})
    rows = np.stack(list(known.values()))
    vectors = torch.from_numpy(np.concatenate([np.zeros_like(rows[:1]), rows.mean(0, keepdims=True), rows]))
    ids = {word: at for at, word in enumerate(known, UNKNOWN + 1)}
    train, val, test = (TensorDataset(*_padded(a, ids), *_padded(b, ids), torch.tensor(y)) for a, b, y in texts)
    return train, val, test, vectors


def take(vectors: Tensor, split: TensorDataset, index: Tensor, _: object = None) -> tuple[tuple[Tensor, ...], Tensor]:
    """The model's inputs, with the words' frozen ``vectors``, and the labels at ``index``.

    Padded to the longest sentence among them.
    """
    a, m, b, n, y = split[index]
    return (vectors[a[:, : int(m.max())]], m, vectors[b[:, : int(n.max())]], n), y


def _lines(file: Path, data: str) -> Iterable[str]:
    with need(file, data).open(encoding="utf-8", newline="\n") as lines:
        yield from lines


def _padded(sentences: list[list[str]], ids: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Word ids ``[n, T]`` and lengths ``[n]``."""
    rows = [torch.tensor([ids.get(word, UNKNOWN) for word in sentence]) for sentence in sentences]
    return pad_sequence(rows, batch_first=True, padding_value=PADDING), torch.tensor(list(map(len, rows)))
