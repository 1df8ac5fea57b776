"""The code of docs/solvers.md runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import torch


def test_the_code_blocks_run():
    torch.set_default_dtype(torch.float32)  # as a reader has it
    page = Path(__file__).parents[2] / "docs" / "solvers.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert len(blocks) >= 3
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
