"""The language model: the text, its windows, and a causal network."""

import math

import pytest
import torch
from torch import nn

from experiments import lm
from experiments.config import Config
from experiments.tasks import task_of
from tests.experiments.conftest import write_pairs


@pytest.fixture
def data(tmp_path):
    """Sentences of SNLI: the premise of three pairs stands once."""
    for name, n in (("train", 40), ("dev", 20), ("test", 20)):
        pairs = [(f"{name} {k // 3} é", f"no. {k}", "-" if k == 5 else "neutral") for k in range(n)]
        write_pairs(tmp_path, name, pairs)
    return tmp_path


def test_the_text_is_each_sentence_once(data):
    text = lm.read(data / "snli_1.0" / "snli_1.0_train.jsonl")
    assert text.splitlines()[:5] == ["train 0 é", "no. 0", "no. 1", "no. 2", "train 1 é"]
    assert "no. 5" not in text.splitlines()  # it has no gold label
    ids = lm.encode(text)
    assert "".join((lm.CHARACTERS + "é")[i] for i in ids) == text
    assert len(lm.CHARACTERS) == 96


def test_windows_cover_the_text_and_targets_are_one_later(data):
    train, val, test = lm.load(data, 16, None, held=3)
    assert len(val) == 3
    assert len(test) == (len(test.ids) - 1) // 16
    (x,), y = lm.take(train, torch.arange(len(train)), None)
    assert torch.equal(x.flatten(), train.ids[: len(train) * 16].long())
    assert torch.equal(y.flatten(), train.ids[1 : len(train) * 16 + 1].long())
    (moved,), y = lm.take(train, torch.arange(len(train)), torch.Generator().manual_seed(0))
    assert torch.equal(moved[:, 1:], y[:, :-1])
    assert not torch.equal(moved, x)
    assert len(lm.load(data, 16, 4, None)[0]) == 4
    with pytest.raises(ValueError, match=r"snli_1.0_train.jsonl has \d+ characters; expected at least 2001"):
        lm.load(data, 2000, None, None)


def test_the_network_is_causal_and_begins_near_uniform():
    model = lm.GPT(2, 2, 16, 12)
    x = torch.randint(lm.VOCABULARY, (3, 12))
    later = x.clone()
    later[:, 7:] = (later[:, 7:] + 1) % lm.VOCABULARY
    torch.testing.assert_close(model(x)[:, :7], model(later)[:, :7])
    assert (model(x)[:, 7:] != model(later)[:, 7:]).any()
    assert lm.nats(model(x), x).tolist() == pytest.approx([math.log(lm.VOCABULARY)] * 3, abs=0.1)
    found = lm.nats(torch.zeros(2, 5, 97), torch.zeros(2, 5, dtype=torch.long))
    assert found.tolist() == pytest.approx([math.log(97)] * 2)


def test_the_loss_sees_every_character(data):
    task = task_of(Config(data=str(data), dataset="lm", model="gpt-2-64"))
    output, y = torch.randn(2, 64, lm.VOCABULARY), torch.randint(lm.VOCABULARY, (2, 64))
    value = task.loss(nn.CrossEntropyLoss(), output, y)
    torch.testing.assert_close(value, task.score(output, y).mean())
    assert task.better(1.0, 2.0) == 1.0
