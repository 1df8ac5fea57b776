"""The README's code runs, block after block, as a reader would paste it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_blocks_run(page, capsys):
    torch.set_default_dtype(torch.float32)  # as a reader has it
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
    assert "verdict" in capsys.readouterr().out


def test_links_and_commands_exist():
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (ROOT / link).exists(), link
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"make (\w+)", text):
        assert f"\n{command}:" in makefile, command
