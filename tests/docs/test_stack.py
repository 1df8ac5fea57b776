"""docs/stack.md: its code runs; and every test that its table, or that of docs/averages.md, names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "stack.md").read_text()


@pytest.mark.parametrize("page", ["stack.md", "averages.md"])
def test_the_tests_of_the_table_exist(page):
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / page).read_text())
    assert len(named) > 20
    for file, name in named:
        source = (ROOT / file).read_text()
        assert not name or f"def {name}(" in source, f"{file}::{name}"


@pytest.mark.filterwarnings("ignore:.*is deprecated.*")
def test_the_code_runs(capsys):
    torch.set_default_dtype(torch.float32)
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.S):
        exec(compile(block, "docs/stack.md", "exec"), namespace)
    assert "{'epoch': 3}" in capsys.readouterr().out
    torch._dynamo.reset()
