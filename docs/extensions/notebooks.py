"""Executed notebooks become pages: text as it stands, code with what it printed and drew.

The line ``<!-- notebook NAME.ipynb -->`` of a page stands for that notebook of docs/notebooks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
LINE = re.compile(r"<!-- notebook ([\w-]+\.ipynb) -->")


class Notebooks(Preprocessor):
    """Replaces that line before anything else is read."""

    def run(self, lines: list[str]) -> list[str]:
        return LINE.sub(lambda line: markdown(line[1]), "\n".join(lines)).split("\n")


def markdown(name: str) -> str:
    """The notebook as one Markdown text."""
    text = []
    for cell in nbformat.read(NOTEBOOKS / name, as_version=4).cells:
        if cell.cell_type == "markdown":
            text.append(cell.source)
        elif cell.cell_type == "code":
            text += [f"```python\n{cell.source}\n```", *_shown(cell.outputs)]
    title, _, rest = text[0].partition("\n")
    text[0] = f"{title}\n\n*An executed notebook: [download it]({name}){{ download }}.*\n{rest}"
    return "\n\n".join(text)


def _shown(outputs: list[Any]) -> list[str]:
    """What a cell printed, in one block, and what it drew."""
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    pictures = [o.data["image/png"].strip() for o in outputs if "image/png" in o.get("data", {})]
    blocks = [f'```text title="prints"\n{printed.rstrip()}\n```'] if printed else []
    return blocks + [f'<img class="drawn" alt="what the code draws" src="data:image/png;base64,{p}">' for p in pictures]


class NotebookExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Notebooks(md), "notebooks", priority=100)


def makeExtension(**options: Any) -> Extension:
    """Python-Markdown calls this."""
    return NotebookExtension(**options)
