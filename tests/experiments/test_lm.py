"""The language model: the text, its windows, a causal network, and the optimizers that came with it."""

from __future__ import annotations

import doctest
import json
import math

import pytest
import torch
from torch import nn

from experiments import dog, lm, schedules
from experiments.config import Config
from experiments.dog import DoG
from experiments.optimizers import OPTIMIZERS, criterion_of, recipe_of
from experiments.schedules import Schedule
from experiments.tasks import LANGUAGE_MODELS, task_of


@pytest.fixture
def data(tmp_path):
    """Sentences of SNLI: the premise of three pairs stands once."""
    (tmp_path / "snli_1.0").mkdir()
    for name, n in (("train", 40), ("dev", 20), ("test", 20)):
        rows = [
            {"gold_label": "-" if k == 5 else "neutral", "sentence1": f"{name} {k // 3} é", "sentence2": f"no. {k}"}
            for k in range(n)
        ]
        (tmp_path / "snli_1.0" / f"snli_1.0_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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
    assert (
        lm.nats(torch.zeros(2, 5, 97), torch.zeros(2, 5, dtype=torch.long)).tolist()
        == [pytest.approx(math.log(97))] * 2
    )


def test_the_loss_sees_every_character(data):
    task = task_of(Config(data=str(data), dataset="lm", model="gpt-2-64"))
    output, y = torch.randn(2, 64, lm.VOCABULARY), torch.randint(lm.VOCABULARY, (2, 64))
    value = task.loss(nn.CrossEntropyLoss(), output, y)
    torch.testing.assert_close(value, task.score(output, y).mean())
    assert task.better(1.0, 2.0) == 1.0


def test_the_largest_network_is_nanogpts():
    layers, heads, width, context = LANGUAGE_MODELS["gpt-6-384"]
    with torch.device("meta"):
        model = lm.GPT(layers, heads, width, context)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(10.8e6, rel=0.01)


# The optimizers.


def test_dog_is_its_formula():
    torch.manual_seed(0)
    a, x = torch.randn(6, 4), torch.randn(4)
    w = nn.Parameter(torch.zeros(4))
    optimizer = DoG([w], start=1e-2, weight_decay=0.1)
    plain, start, distance, squares = torch.zeros(4), torch.zeros(4), 1e-2, 0.0
    for _ in range(30):
        optimizer.zero_grad()
        ((a @ (w - x)) ** 2).sum().backward()
        optimizer.step()
        g = 2 * a.T @ (a @ (plain - x)) + 0.1 * plain
        distance = max(distance, float((plain - start).norm()))
        squares += float(g.norm()) ** 2
        plain = plain - distance / math.sqrt(squares + 1e-8) * g
    torch.testing.assert_close(w.detach(), plain)
    again = DoG([w])
    again.load_state_dict(optimizer.state_dict())
    assert again.state[w]["distance"] == optimizer.state[w]["distance"]
    with pytest.raises(ValueError, match="lr is 0; expected a positive number"):
        DoG([w], lr=0)


def test_a_full_step_in_the_euclidean_metric_is_sgd():
    config = Config(optimizer="dfw-full", loss="hinge", lr=3.0, momentum=0.9, weight_decay=0.01)
    models = [nn.Linear(5, 4) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x, y = torch.randn(8, 5), torch.randint(4, (8,))
    criterion = criterion_of(config)
    for model, name in zip(models, ("dfw-full", "sgd"), strict=True):
        recipe = OPTIMIZERS[name]
        optimizer = recipe.build(config, criterion, model.parameters(), 10)
        for _ in range(10):
            recipe.update(optimizer, lambda: criterion(model(x), y))
    torch.testing.assert_close(models[0].weight, models[1].weight)


def test_the_cosine_warms_up_and_falls_to_zero():
    w = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([w], lr=2.0)
    schedule = Schedule(Config(schedule="cosine", lr=2.0), optimizer)
    rates = []
    for step in range(100):
        schedule.before_step((step + 0.5) / 100)
        rates.append(optimizer.param_groups[0]["lr"])
    schedule.after_epoch(1.0)
    assert rates[:5] == pytest.approx([0.2, 0.6, 1.0, 1.4, 1.8])
    assert rates[5] == pytest.approx(2.0, abs=1e-3)
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert rates[-1] < 1e-3
    assert schedule.state_dict() == {}


@pytest.mark.parametrize("options", [{"metric": "diagonal"}, {"average": "0.995"}, {"lr": "auto"}], ids=str)
def test_options_of_proxsvm_are_refused_for_others(options):
    with pytest.raises(ValueError, match=r"which adam does not have: only proxsvm has it"):
        recipe_of(Config(optimizer="adam", **options))
    assert recipe_of(Config(optimizer="dfw", **options)).proximal


@pytest.mark.parametrize("module", [dog, lm, schedules], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
