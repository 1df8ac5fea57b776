"""Checkpoints: damage is refused, what could not be loaded is not saved, links and modes are the user's."""

import hashlib
import os
import random
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from proxsvm import checkpoint
from tests.optimizer.test_faults import same

PAGE = 512


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zero(rng: random.Random, data: bytearray) -> None:
    size = rng.choice((16, 64, PAGE))
    at = rng.randrange(0, len(data), size)
    data[at : at + size] = bytes(len(data[at : at + size]))


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.choice((rng.randrange(len(data)), -rng.randint(1, 100))) :]


def drop(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 100)]


DAMAGES = (flip, zero, truncate, drop)


def test_of_a_thousand_damages_none_loads_wrong_and_all_raise_value_errors(tmp_path):
    path = tmp_path / "last.pt"
    saved = {"first": torch.randn(60), "second": torch.randn(5, 4).half(), "epoch": 3, "name": "wrn", "lr": 0.1}
    checkpoint.save(path, **saved)
    whole, rng, refused = path.read_bytes(), random.Random(0), 0
    for k in range(1_000):
        data = bytearray(whole)
        DAMAGES[k % len(DAMAGES)](rng, data)
        path.write_bytes(data)
        try:
            loaded = checkpoint.load(path)
        except ValueError:
            refused += 1
        else:  # zeros where zeros were
            assert same(loaded, saved), (k, DAMAGES[k % len(DAMAGES)].__name__)
    assert refused > 950


def test_a_file_of_version_0_2_loads(tmp_path):
    """Its digest is the comment of the archive, whose length stands before it."""
    path = tmp_path / "last.pt"
    torch.save({"w": torch.ones(5000)}, path)
    data = path.read_bytes()[:-2] + (79).to_bytes(2, "little")
    path.write_bytes(data + b"proxsvm sha256 " + hashlib.sha256(data).hexdigest().encode())
    assert checkpoint.load(path)["w"].sum() == 5000


def test_whatever_is_saved_loads(tmp_path):
    saved = {
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "nested": OrderedDict(a=[(1, 2.5, None, True), {"x": "y"}]),
        "bytes": b"\x00\xff",
        "set": {1, 2},
        "large": 10**40,
    }
    checkpoint.save(tmp_path / "last.pt", **saved)
    assert checkpoint.load(tmp_path / "last.pt") == saved


def test_a_part_that_does_not_fit_leaves_everything_unchanged(tmp_path):
    """Neither a scheduler nor a GradScaler can check a state; the model, which comes first, must not be overwritten."""
    model = nn.Linear(2, 1)
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    checkpoint.save(tmp_path / "last.pt", model=nn.Linear(2, 1), scaler={"scale": 2.0}, schedule=3)
    before = model.weight.clone(), schedule.state_dict().copy(), scaler.state_dict()
    for parts in ({"schedule": schedule}, {"scaler": scaler}, {"schedule": schedule, "scaler": scaler}):
        with pytest.raises(ValueError, match=r"the checkpoint's 'sc.*' does not fit"):
            checkpoint.load(tmp_path / "last.pt", model=model, **parts)
    assert torch.equal(model.weight, before[0])
    assert (schedule.state_dict(), scaler.state_dict()) == before[1:]


def test_a_full_disk_is_named_and_the_old_checkpoint_stays(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    path = tmp_path / "last.pt"
    checkpoint.save(path, epoch=1)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not write .*last\.pt, the old checkpoint stays: .*No space left"):
        checkpoint.save(path, epoch=2)
    assert checkpoint.load(path) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_no_folder_is_opened(tmp_path, monkeypatch):
    """Windows refuses to: a save would raise after it has replaced the file."""
    open_file = os.open

    def open_as_on_windows(path, *args, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *args, **options)

    monkeypatch.setattr(os, "open", open_as_on_windows)
    checkpoint.save(tmp_path / "last.pt", epoch=1)
    assert checkpoint.load(tmp_path / "last.pt") == {"epoch": 1}


def test_a_later_save_removes_what_a_killed_one_has_left(tmp_path):
    path, other, young = tmp_path / "last.pt", tmp_path / ".best.pt.1.part", tmp_path / ".last.pt.2.part"
    for file in (tmp_path / ".last.pt.1.part", other, young):
        file.write_bytes(b"unfinished")
        os.utime(file, (0, 0))
    os.utime(young)  # another process is writing to it
    checkpoint.save(path, epoch=1)
    assert set(tmp_path.iterdir()) == {path, other, young}


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_keeps_its_mode(mode, tmp_path):
    path = tmp_path / "last.pt"
    checkpoint.save(path, epoch=1)
    path.chmod(mode)
    checkpoint.save(path, epoch=2)
    assert path.stat().st_mode & 0o777 == mode


def test_a_link_goes_on_pointing(tmp_path):
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    runs.mkdir()
    elsewhere.mkdir()
    link = runs / "last.pt"
    link.symlink_to("../elsewhere/real.pt")  # which does not exist yet
    for epoch in (1, 2):
        checkpoint.save(link, epoch=epoch)
        assert link.is_symlink()
        assert checkpoint.load(elsewhere / "real.pt") == checkpoint.load(link) == {"epoch": epoch}
    assert [file.name for file in elsewhere.iterdir()] == ["real.pt"]
    assert [file.name for file in runs.iterdir()] == ["last.pt"]


@pytest.mark.parametrize(
    "value",
    [np.float64(0.5), Path("a"), [1, {"at": Path("a")}], {np.int64(3): 1}, lambda: 2],
    ids=["numpy", "path", "nested", "key", "function"],
)
def test_what_could_not_be_loaded_is_not_saved(value, tmp_path):
    path = tmp_path / "last.pt"
    checkpoint.save(path, epoch=1)
    with pytest.raises(TypeError, match=r"cannot save epoch, best: .*float\(x\) for a NumPy scalar"):
        checkpoint.save(path, epoch=2, best=value)
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]
    assert checkpoint.load(path) == {"epoch": 1}
