"""SNLI and GloVe: official files round-trip, batches, and the model on word ids."""

import pytest
import torch
from torch.utils.data import TensorDataset

from experiments import snli
from experiments.models import SentencePairBiLSTM
from experiments.task import similar
from tests.experiments.conftest import write_pairs

PAIRS = [
    ("A dog doesn't swim.", "An animal rests.", "neutral"),
    ("Two men talk", "Two people talk", "entailment"),
    ("A dog sleeps", "A zyx dog runs !", "contradiction"),
    ("A dog", "A cat", "-"),
]
WORDS = ["a", "dog", "does", "n't", "swim", ".", "an", "animal", "rests", "two", "men", "talk", "people", "unused"]


def vector(k):
    return [k + 0.5, -k, 0.25 * k]


def write(folder, pairs=PAIRS, words=WORDS, glove="glove.6B.100d.txt"):
    for name in ("train", "dev", "test"):
        write_pairs(folder, name, pairs)
    lines = [" ".join([word, *map(str, vector(k))]) + "\n" for k, word in enumerate(words)]
    (folder / glove).write_text("".join(lines), encoding="utf-8")
    return folder


def test_the_loader_reads_official_files(tmp_path):
    train, val, test, vectors = snli.load(write(tmp_path), None, seed=0)
    assert [len(split) for split in (train, val, test)] == [3, 3, 3]  # the pair without a gold label is gone
    first, first_lengths, second, _, y = train.tensors
    assert y.tolist() == [1, 0, 2]
    assert vectors.dtype == torch.float32
    assert len(vectors) == 2 + 13  # padding, unknown, and the words that occur and are known
    assert torch.equal(vectors[snli.PADDING], torch.zeros(3))
    torch.testing.assert_close(vectors[snli.UNKNOWN], vectors[2:].mean(0))
    assert first_lengths.tolist() == [6, 3, 3]
    words = ["a", "dog", "does", "n't", "swim", "."]
    torch.testing.assert_close(vectors[first[0]], torch.tensor([vector(WORDS.index(w)) for w in words]))
    assert first[1, 3:].tolist() == [snli.PADDING] * 3
    assert second[2, 1] == snli.UNKNOWN


def test_a_sample_is_drawn_by_the_seed(tmp_path):
    folder = write(tmp_path, pairs=[(" ".join(["dog"] * k), "talk", "neutral") for k in range(1, 21)])
    draw = {seed: snli.load(folder, 8, seed)[0].tensors[1].tolist() for seed in (0, 1)}
    assert snli.load(folder, 8, 0)[0].tensors[1].tolist() == draw[0] != draw[1]
    assert len(set(draw[0])) == 8
    assert len(snli.load(folder, 8, 0)[1]) == 20  # the validation set is the whole dev set


def test_words_with_spaces_and_odd_line_ends_of_840b(tmp_path):
    name = "glove.840B.300d.txt"
    write(tmp_path, words=["dog", "dog cat@mail.com", ". . .", "x\u2028y", "x\x85y", "talk"], glove=name)
    _, _, _, vectors = snli.load(tmp_path, None, 0, glove=name)
    torch.testing.assert_close(vectors[2:], torch.tensor([vector(0), vector(5)]))


GLOVE, DEV = "glove.6B.100d.txt", "snli_1.0/snli_1.0_dev.jsonl"
BROKEN = [
    (GLOVE, lambda text: text[:-3], r"line 14: expected a word and 3 numbers: is the file whole"),
    (GLOVE, lambda text: text.replace("dog 1.5 -1 0.25", "dog 1.5 -1"), r"line 2: expected a word and 3 numbers"),
    (GLOVE, lambda text: text.replace("dog 1.5", "dog x"), r"line 2: .*expected a word and 3 numbers"),
    (GLOVE, lambda text: "qqq 1 2\n", r"a vector for none of the 17 words"),
    (DEV, lambda text: text[:-20], r"dev.jsonl, line 4: expected JSON with sentence1.*is the file whole"),
    (DEV, lambda text: text.replace("entailment", "maybe"), r"line 2: .* a gold_label"),
    (DEV, lambda text: "", "no pair with a gold label"),
]


@pytest.mark.parametrize(("name", "broken", "match"), BROKEN)
def test_missing_and_broken_files_are_named(tmp_path, name, broken, match):
    file = write(tmp_path) / name
    text = file.read_text()
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"is missing. python -m experiments download (snli|glove)"):
        snli.load(tmp_path, None, 0)
    file.write_text(broken(text))
    with pytest.raises(ValueError, match=match):
        snli.load(tmp_path, None, 0)


def random_pairs(n=300):
    lengths = torch.randint(1, 30, (2, n))
    words = torch.randint(1, 50, (2, n, 29)) * (torch.arange(29) < lengths[:, :, None])
    return TensorDataset(words[0], lengths[0], words[1], lengths[1], torch.randint(3, (n,)))


def test_batches_hold_each_pair_once_and_little_padding():
    split = random_pairs().tensors[1]
    drawn = [similar(split, 16, torch.Generator().manual_seed(seed), pool=32) for seed in (0, 0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    assert not torch.equal(torch.cat(drawn[0]), torch.cat(drawn[2]))
    for cut in drawn:
        assert torch.equal(torch.cat(cut).sort().values, torch.arange(300))
        assert sorted(map(len, cut)) == [12] + [16] * 18
    spread = [int(split[b].max() - split[b].min()) for b in drawn[0]]
    assert max(spread) <= 4


def test_take_trims_padding():
    split = random_pairs()
    index = torch.tensor([5, 0, 7])
    vectors = torch.randn(50, 6)
    (first, first_lengths, second, second_lengths), y = snli.take(vectors, split, index)
    a, m, b, n, labels = split[index]
    assert (first.shape, second.shape) == ((3, int(m.max()), 6), (3, int(n.max()), 6))
    assert torch.equal(first, vectors[a[:, : first.shape[1]]])
    assert torch.equal(second, vectors[b[:, : second.shape[1]]])
    assert torch.equal(first_lengths, m)
    assert torch.equal(second_lengths, n)
    assert torch.equal(y, labels)


def test_sentences_are_encoded_in_float32():
    model = SentencePairBiLSTM(6, 5, 4)
    (words, lengths, _, _), _ = snli.take(torch.randn(50, 6), random_pairs(), torch.arange(20))
    expected = model.encode(words, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.encode(words, lengths), expected)
