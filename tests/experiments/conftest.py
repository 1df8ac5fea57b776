"""The experiments run in float32, on tiny data in the official formats."""

import json

import pytest
import torch


def write_housing(folder, rows):
    """California housing: eight features and the target."""
    text = "".join(",".join(f"{cell:.6f}" for cell in row) + "\n" for row in rows)
    (folder / "cal_housing.data").write_text(text)


def write_pairs(folder, split, pairs):
    """A split of SNLI, of (sentence, sentence, label)."""
    (folder / "snli_1.0").mkdir(exist_ok=True)
    rows = ({"gold_label": y, "sentence1": a, "sentence2": b, "captionID": "7"} for a, b, y in pairs)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "snli_1.0" / f"snli_1.0_{split}.jsonl").write_text(text)


@pytest.fixture(autouse=True)
def float32(float64):
    torch.set_default_dtype(torch.float32)
