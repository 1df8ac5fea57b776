"""``experiments train``: official files, every optimizer, resuming bit for bit, torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import cifar
from experiments.train import OPTIMIZERS, Config, run

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)


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
    return folder


def config(data, **options):
    return Config(**{"data": str(data), "epochs": 2, "batch": 32, "lr": 0.05, **options})


def test_the_loader_reads_official_files(data):
    train, val, test = cifar.load(data, "cifar10", None, seed=0)
    assert (len(train), len(val), len(test)) == (90, 10, 30)
    assert train.x.mean((0, 2, 3)).abs().max() < 1e-5
    torch.testing.assert_close(train.x.std((0, 2, 3), correction=0), torch.ones(3))
    assert torch.equal(test.y, torch.arange(30) % 10)
    fine, _, _ = cifar.load(data, "cifar100", 100, seed=0)
    assert len(fine) == 90
    assert fine.y.max() > 20  # the fine labels, not the coarse ones


def test_missing_and_truncated_files_are_named(data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_batch_1.bin is missing. Get the binary version"):
        cifar.load(tmp_path, "cifar10", None, 0)
    with pytest.raises(ValueError, match="there are cifar10, cifar100"):
        cifar.load(data, "mnist", None, 0)
    broken = tmp_path / "cifar-100-binary"
    broken.mkdir()
    (broken / "train.bin").write_bytes((data / "cifar-100-binary" / "train.bin").read_bytes()[:-1])
    with pytest.raises(ValueError, match="is it whole"):
        cifar.load(tmp_path, "cifar100", None, 0)


def test_augmentation_shifts_and_flips():
    x = torch.randn(200, 3, 32, 32)
    moved = cifar.augment(x, torch.Generator().manual_seed(0))
    assert moved.shape == x.shape
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    for i in range(20):
        crops = [
            source[i, :, r : r + 32, c : c + 32]
            for source in (padded, torch.nn.functional.pad(x.flip(3), (4, 4, 4, 4)))
            for r in range(9)
            for c in range(9)
        ]
        assert any(torch.equal(moved[i], crop) for crop in crops)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_trains(data, tmp_path, optimizer):
    lr = 0.05 if optimizer in ("dfw", "sgd") else 0.003
    line = run(config(data, optimizer=optimizer, lr=lr, augment=True), tmp_path)
    assert 0 <= line["test_accuracy"] <= 100
    log = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in log] == [1, 2]
    assert log[1]["train_loss"] < log[0]["train_loss"]
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["config"]["optimizer"] == optimizer
    assert saved["torch"] == torch.__version__


def test_names_and_folders_are_checked(data, tmp_path):
    with pytest.raises(ValueError, match=r"no model named 'vgg'; there are wrn-40-4"):
        run(config(data, model="vgg"), tmp_path)
    with pytest.raises(ValueError, match="there are dfw, sgd"):
        run(config(data, optimizer="lion"), tmp_path)
    run(config(data, epochs=1), tmp_path)
    with pytest.raises(ValueError, match="holds another run"):
        run(config(data, epochs=1, lr=1.0), tmp_path)


def command(data, out, *more):
    return [
        *more,
        "-m",
        "experiments",
        "train",
        "--data",
        str(data),
        "--out",
        str(out),
        "--batch",
        "16",
        "--lr",
        "0.05",
    ]


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def curve(out):
    lines = [json.loads(text) for text in (out / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_kill_9_and_resume_gives_the_same_curve_bit_for_bit(data, tmp_path):
    whole = run(config(data, batch=16, epochs=6, augment=True), tmp_path / "whole")
    words = [*command(data, tmp_path / "killed", sys.executable), "--epochs", "6", "--augment"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=ROOT, env=environment(), **pipes) as process:
        process.stdout.readline()  # the first epoch is done
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    before = len(curve(tmp_path / "killed"))
    assert before < 6
    subprocess.run(words, cwd=ROOT, env=environment(), check=True, capture_output=True, timeout=120)
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    assert whole["test_accuracy"] == curve(tmp_path / "killed")[-1]["test_accuracy"]
    again = subprocess.run(words, cwd=ROOT, env=environment(), check=True, capture_output=True, timeout=120)
    assert again.stdout == b""  # a finished run is not run again


def test_it_runs_under_torchrun_unchanged(data, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*command(data, tmp_path / "ranks", *torchrun), "--epochs", "2"]
    subprocess.run(words, cwd=ROOT, env=environment(), check=True, capture_output=True, timeout=120)
    log = curve(tmp_path / "ranks")
    assert len(log) == 2
    assert log[1]["train_loss"] < log[0]["train_loss"]
    assert "test_accuracy" in log[1]
