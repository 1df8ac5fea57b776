"""Executed notebooks become pages: text as it stands, code with what it printed and drew."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """A page for each notebook; the notebook itself stays, to download."""
    for file in list(files):
        path = PurePosixPath(file.src_uri)
        if path.suffix == ".ipynb" and file.abs_src_path:
            notebook = nbformat.read(file.abs_src_path, as_version=4)
            files.append(File.generated(config, str(path.with_suffix(".md")), content=markdown(notebook, path.name)))
    return files


def markdown(notebook: Any, name: str) -> str:
    """The notebook as one Markdown text."""
    text = []
    for cell in notebook.cells:
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
