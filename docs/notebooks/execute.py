"""Run the notebooks beside this file and keep what they print, without the times at which they did."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

for path in tqdm(sorted(Path(__file__).parent.glob("*.ipynb")), unit="notebook"):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, record_timing=False).execute()
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
    nbformat.write(notebook, path)
