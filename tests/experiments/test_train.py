"""``experiments train``: official files, every optimizer, resuming bit for bit, torchrun."""

import json
import math
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import cifar, train
from experiments.config import Config, from_dict
from experiments.models import DenseNet
from experiments.optimizers import OPTIMIZERS
from experiments.tasks import IMAGE_MODELS
from experiments.train import Best, TimeUp, run
from tests.experiments.conftest import write_housing, write_pairs
from tests.parallel import run_module

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Both data sets in the official format, tiny: class k is brighter in channel k mod 3."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def write(file, n, header, classes):
        labels = np.arange(n) % classes
        pixels = rng.integers(0, 120, (n, 3, 32, 32))
        pixels[np.arange(n), labels % 3] += 100
        top = np.stack([labels // 5, labels], 1)[:, 2 - header :]
        file.parent.mkdir(exist_ok=True)
        np.concatenate([top, pixels.reshape(n, -1)], 1).astype(np.uint8).tofile(file)

    for k in range(1, 6):
        write(folder / "cifar-10-batches-bin" / f"data_batch_{k}.bin", 20, 1, 10)
    write(folder / "cifar-10-batches-bin" / "test_batch.bin", 30, 1, 10)
    write(folder / "cifar-100-binary" / "train.bin", 200, 2, 100)
    write(folder / "cifar-100-binary" / "test.bin", 100, 2, 100)

    words, labels = ["man", "dog", "runs", "sleeps", "red", "ball"], ["entailment", "neutral", "contradiction"]
    for name, n in (("train", 60), ("dev", 15), ("test", 15)):
        first, second = (rng.choice(words, (n, length)) for length in (5, 4))
        write_pairs(folder, name, [(" ".join(first[k]), " ".join(second[k]), labels[k % 3]) for k in range(n)])
    vectors = "".join(f"{word} {' '.join(f'{v:.4f}' for v in rng.normal(size=100))}\n" for word in words)
    (folder / "glove.6B.100d.txt").write_text(vectors)
    write_housing(folder, np.abs(rng.normal(size=(120, 9))) * 100 + 1)
    return folder


RECORDS = {"cifar10": (100, 30), "cifar100": (200, 100)}  # of the tiny files


def config(data, **options):
    records = RECORDS.get(options.get("dataset", "cifar10"), ())
    given = {"records": records, "held": 10, "epochs": 2, "batch": 32, "lr": 0.05, **options}
    return Config(data=str(data), **given)


def test_the_loader_reads_official_files(data):
    train, val, test = cifar.load(data, "cifar10", held=10, records=(100, 30))
    assert (len(train), len(val), len(test)) == (90, 10, 30)
    assert train.tensors[0].mean((0, 2, 3)).abs().max() < 1e-5
    torch.testing.assert_close(train.tensors[0].std((0, 2, 3), correction=0), torch.ones(3))
    assert torch.equal(test.tensors[1], torch.arange(30) % 10)
    fine, _, _ = cifar.load(data, "cifar100", 90, held=10, records=(200, 100))
    assert len(fine) == 90
    with pytest.raises(ValueError, match="cifar10 has 100 training images here; 10 were to be held out and 95 used"):
        cifar.load(data, "cifar10", 95, held=10, records=(100, 30))
    assert fine.tensors[1].max() > 20  # the fine labels, not the coarse ones


def test_missing_and_truncated_files_are_named(data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_batch_1.bin is missing. Get the binary version"):
        cifar.load(tmp_path, "cifar10")
    with pytest.raises(ValueError, match="there are cifar10, cifar100"):
        cifar.load(data, "mnist")
    with pytest.raises(ValueError, match=r"data_batch_1.bin has 61460 bytes, 20 images; expected 10000: is it whole"):
        cifar.load(data, "cifar10")
    with pytest.raises(ValueError, match=r"records is \(3,\); expected two numbers"):
        from_dict({"records": [3]})
    broken = tmp_path / "cifar-100-binary"
    broken.mkdir()
    whole = (data / "cifar-100-binary" / "train.bin").read_bytes()
    for cut in (1, 3074):  # within a record, and a whole one
        (broken / "train.bin").write_bytes(whole[:-cut])
        with pytest.raises(ValueError, match=r"train\.bin has .* expected 200: is it whole, and binary\?"):
            cifar.load(tmp_path, "cifar100", held=10, records=(200, 100))


def test_augmentation_shifts_and_flips():
    x = torch.randn(200, 3, 32, 32)
    moved = cifar.augment(x, torch.Generator().manual_seed(0))
    assert moved.shape == x.shape
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    sources = padded, padded.flip(3)
    for i in range(20):
        crops = (source[i, :, r : r + 32, c : c + 32] for source in sources for r in range(9) for c in range(9))
        assert any(torch.equal(moved[i], crop) for crop in crops)


IMAGES = {"images": 20, "batch": 10}
FAMILIES = {
    "wrn": {"model": "wrn-10-1", "augment": True, **IMAGES},
    "densenet": {"dataset": "cifar100", "model": "densenet-10-4", **IMAGES},
    "wrn, half": {"model": "wrn-10-1", "precision": "bfloat16", **IMAGES},
    "bilstm": {"dataset": "snli", "model": "bilstm-128", "precision": "bfloat16"},
    "mlp": {"dataset": "california", "model": "mlp"},
    "gpt": {"dataset": "lm", "model": "gpt-2-64"},
}
RATES = dict.fromkeys(("adam", "adamw", "amsgrad", "schedulefree-adamw", "nadamw", "soap", "muon"), 0.003)
RATES |= {"adagrad": 0.01, "momo-adam": 0.01, "bpgrad": 0.02, "multistep": 0.1, "dog": 1.0, "prodigy": 1.0}
SCHEDULES = {"sgd": "wrn-jobs", "adamw": "cosine"}


OF_ALL = ("dfw", "multistep", "sgd", "adamw", "muon", "soap")  # to which the shapes of the parameters may matter
PAIRS = [(o, f) for o in OPTIMIZERS for f in FAMILIES if f == "mlp" or o in OF_ALL]
PAIRS += [("schedulefree", "wrn")]  # whose batch norm is estimated again


@pytest.mark.parametrize(("optimizer", "family"), PAIRS)
def test_every_optimizer_trains_every_family_and_resumes(data, tmp_path, monkeypatch, optimizer, family):
    monkeypatch.setitem(IMAGE_MODELS, "densenet-10-4", partial(DenseNet, 10, 4))  # the smallest of its family
    lr = RATES.get(optimizer, 0.05)
    schedule = "snli" if (optimizer, family) == ("sgd", "bilstm") else SCHEDULES.get(optimizer, "")
    options = {"optimizer": optimizer, "lr": lr, "batch": 20, "averages": ("0.9", "1/4"), "test": True}
    made = config(data, schedule=schedule, **options | FAMILIES[family])
    with pytest.raises(TimeUp):
        run(made, tmp_path, until=0.0)  # stopped after the first epoch
    result, whole = run(made, tmp_path), run(made, tmp_path / "whole")
    assert told(result) == told(whole)
    lines = result["curve"]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert all(math.isfinite(lines[-1][key]) for key in ("train_loss", "val", "step_size", "train_seconds", "seconds"))
    assert math.isfinite(result["test"])
    assert set(lines[-1]["val_averaged"]) == set(result["test_averaged"]) == {"0.9", "1/4"}
    assert set(result["test_last"]) == {"", "0.9", "1/4"}
    assert lines[-1]["val_averaged"]["0.9"] != lines[-1]["val"] or family != "mlp"
    assert result["config"]["optimizer"] == optimizer
    assert result["provenance"]["torch"] == torch.__version__


def test_a_compiled_network_trains_to_the_same_numbers(data, tmp_path):
    options = {**FAMILIES["mlp"], "averages": ("0.9",)}
    plain = run(config(data, **options), tmp_path / "plain")
    compiled = run(config(data, **options, compile="eager"), tmp_path / "compiled")
    assert without_seconds(compiled["curve"]) == without_seconds(plain["curve"])


def test_killed_after_the_checkpoint_loses_nothing(data, tmp_path, monkeypatch):
    made, epochs = config(data, **FAMILIES["mlp"], epochs=3, test=True, averages=("0.9",)), []
    whole = run(made, tmp_path / "whole")
    write = train.write

    def killed(path, text):
        if path.name == "log.jsonl" and text.count('"epoch"') == 3:
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(train, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "hurt")
    monkeypatch.undo()
    assert told(run(made, tmp_path / "hurt", epochs.append)) == told(whole)
    assert epochs == []  # no epoch is run again
    assert told(run(made, tmp_path / "hurt")) == told(whole)


def test_the_test_set_is_judged_by_the_weights_that_validation_preferred():
    best, model = Best(max), torch.nn.Linear(1, 1, bias=False)
    for weight, value in ((1.0, 50.0), (2.0, 70.0), (3.0, 60.0), (4.0, math.nan)):
        model.weight.data.fill_(weight)
        assert best.update("", model, value) == value or math.isnan(value)
    again = Best(max)
    again.load_state_dict(best.state_dict())
    assert again.load("", model).weight.item() == 2.0
    assert again.load("never seen", model) is model


def test_names_and_folders_are_checked(data, tmp_path):
    for options, message in (
        ({"model": "vgg"}, "no model named 'vgg'; there are wrn-40-4"),
        ({"optimizer": "lion"}, "there are adagrad, adam, amsgrad, bpgrad, dfw"),
        ({"loss": "focal"}, "there are smooth-hinge, hinge, ce, l1"),
        ({"optimizer": "sgd", "schedule": "linear"}, "no schedule named 'linear'; there are wrn-paper"),
        ({"dataset": "mnist"}, "there are cifar10, cifar100, snli, california, bike, digits, lm, ocr-small"),
    ):
        with pytest.raises(ValueError, match=message):
            run(config(data, **options), tmp_path)
    assert not list(tmp_path.iterdir())  # nothing was begun
    run(config(data, epochs=1), tmp_path)
    with pytest.raises(ValueError, match="contains another run"):
        run(config(data, epochs=1, lr=1.0), tmp_path)
    (tmp_path / "config.json").write_bytes(b"{\xff")
    with pytest.raises(ValueError, match=r"config\.json is damaged .* delete it, if .* is the folder of this run"):
        run(config(data, epochs=1), tmp_path)


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def without_seconds(lines):
    return [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]


def told(result):
    return result | {"curve": without_seconds(result["curve"])}


def test_it_runs_under_torchrun_unchanged(data, tmp_path):
    options = f"--held 10 --images 32 --batch 16 --lr 0.05 --records 100 30 --epochs 2 --data {data} --out {tmp_path}"
    run_module("experiments", "train", *options.split(), ranks=2)
    log = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(log) == 2
    assert log[1]["train_loss"] < log[0]["train_loss"]
    assert 0 <= log[1]["val"] <= 100
