"""Results as they are read from the files of a sweep."""

from __future__ import annotations

import json
import re

import pytest

from experiments.report import study_tables
from experiments.report.results import read, read_structured
from tests.experiments.report.lines import line, write


def test_runs_are_read_by_study_and_a_later_line_counts(tmp_path):
    write(tmp_path, line(val=50.0), line(val=60.0), line("snli"))
    results = read(tmp_path)
    assert {name: len(found) for name, found in results.items()} == {"cifar10": 1, "snli": 1}
    assert results["cifar10"][0].last.val == 60.0
    assert read(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ('{"study": "cifar10", "con', "Unterminated"),
        (json.dumps({**line(), "curve": []}), "its curve is empty"),
        (json.dumps({k: v for k, v in line().items() if k != "test"}), "'test' is missing"),
        (json.dumps({**line(), "config": {"lr": 1.0}}), "'config.dataset' is missing"),
        (json.dumps({**line(), "curve": [{"epoch": 1}]}), "'train_loss' is missing"),
        ("[1, 2]", "not a finished run"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(tmp_path, broken, said):
    write(tmp_path, line())
    with (tmp_path / "cifar10.jsonl").open("a") as file:
        file.write(broken + "\n")
    with pytest.raises(ValueError, match=rf"cifar10\.jsonl, line 2: .*{re.escape(said)}"):
        read(tmp_path)


def test_structured_runs_are_read_in_the_form_of_a_sweep(tmp_path):
    config = {"loss": "likelihood", "how": "diagonal", "eta": 0.001, "epochs": 1, "seed": 1}
    trace = [{"epoch": 1, "weights": "last", "val": 90.0}, {"epoch": 1, "weights": "average", "val": 92.0}]
    tested = {"config": config, "seconds": 1.0, "trace": trace, "test_last": 80.0, "test_average": 81.0}
    peer = tested | {"config": config | {"how": "AdamW"}, "test_average": 82.0}
    tried = {"config": config | {"seed": 0, "eta": 1.0}, "seconds": 1.0, "trace": trace}
    (tmp_path / "ocr-large.jsonl").write_text("\n".join(map(json.dumps, (tested, peer, tried))))
    studies = read_structured(tmp_path)
    ours = "proxsvm, diagonal + average, likelihood"
    row = ["OCR letters, large", ours, "81.0", "AdamW, constant + average", "82.0", "behind"]
    assert study_tables.tuned(studies).rows[0] == row
    (tmp_path / "chunking.jsonl").write_text(json.dumps({"config": config}))
    with pytest.raises(ValueError, match=r"chunking.jsonl, line 1: not a finished run: 'trace' is missing"):
        read_structured(tmp_path)
