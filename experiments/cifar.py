"""CIFAR-10 and CIFAR-100 in the authors' binary format, split, normalised and augmented as tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from experiments.config import known
from experiments.task import need

PIXELS = 3 * 32 * 32
RECORDS = (50_000, 10_000)  # training and test images of the official files
FILES = {  # folder, training files, test file, bytes before the pixels (the last one is the label)
    "cifar10": ("cifar-10-batches-bin", [f"data_batch_{k}.bin" for k in range(1, 6)], "test_batch.bin", 1),
    "cifar100": ("cifar-100-binary", ["train.bin"], "test.bin", 2),
}
CLASSES = {"cifar10": 10, "cifar100": 100}


def read(file: Path, header: int, records: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``[n, 3, 32, 32]`` in uint8 and labels ``[n]`` of one file of n = ``records`` images."""
    raw = np.fromfile(need(file, "cifar"), np.uint8)
    if len(raw) != records * (header + PIXELS):
        raise ValueError(
            f"{file} has {len(raw)} bytes, {len(raw) / (header + PIXELS):g} images; expected {records}: is it whole, "
            "and binary? A subset has to be declared, by the training and test images of all files: --records 10000 "
            "10000"
        )
    table = raw.reshape(-1, header + PIXELS)
    return table[:, header:].reshape(-1, 3, 32, 32), table[:, header - 1].astype(np.int64)


def load(
    data: Path, name: str, images: int | None = None, held: int = 5000, records: tuple[int, ...] = ()
) -> tuple[TensorDataset, ...]:
    """Training, validation and test images ``[n, 3, 32, 32]`` and labels, normalised by channel as the training images.

    The training images are shuffled in one order for every run; the first ``held`` of them are for validation, the next
    ``images`` (None: all others) for training: 45,000 / 5,000 / 10,000 on the whole set. ``records`` are the training
    and test images of the files, where these are not the official ones.
    """
    folder, train_files, test_file, header = FILES[known("data set", name, FILES)]
    in_train, in_test = records or RECORDS
    pieces = [read(data / folder / file, header, in_train // len(train_files)) for file in train_files]
    pixels, labels = (np.concatenate(column) for column in zip(*pieces, strict=True))
    wanted = held + (images or 1)
    if wanted > len(labels):
        raise ValueError(f"{name} has {len(labels)} training images here; {held} were to be held out and {images} used")
    order = np.random.default_rng(0).permutation(len(labels))
    at_val, at_train = order[:held], order[held:][:images]
    mean, std = (f(pixels[at_train] / np.float32(255), axis=(0, 2, 3)) for f in (np.mean, np.std))

    def normalised(pixels: np.ndarray, labels: np.ndarray) -> TensorDataset:
        x = (pixels / np.float32(255) - mean[:, None, None]) / np.maximum(std, 1e-6)[:, None, None]
        return TensorDataset(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(labels))

    test = read(data / folder / test_file, header, in_test)
    return normalised(pixels[at_train], labels[at_train]), normalised(pixels[at_val], labels[at_val]), normalised(*test)


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """A random flip, and a crop of the image padded by 4 pixels, all images at once."""
    n, _, height, width = x.shape
    flip = torch.rand(n, generator=generator) < 0.5
    x = torch.where(flip.to(x.device)[:, None, None, None], x.flip(3), x)
    corner = torch.randint(9, (2, n, 1), generator=generator).to(x.device)
    rows = corner[0] + torch.arange(height, device=x.device)
    columns = corner[1] + torch.arange(width, device=x.device)
    padded = F.pad(x, (4, 4, 4, 4)).permute(0, 2, 3, 1)
    sample = torch.arange(n, device=x.device)[:, None, None]
    return padded[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
