"""What the structured experiments share: finished runs on disk, and seeds."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Runs:
    """Finished runs as JSON lines; an existing one is not repeated, so a stopped experiment can be resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.done: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def once(self, run: Callable[[], dict[str, Any]], **config: Any) -> dict[str, Any]:
        """The results of the run with this ``config``: from disk, or by running it now."""
        for line in self.done:
            if line["config"] == config:
                print(f"already done: {config}")
                return line
        print(f"running: {config}", flush=True)
        torch.manual_seed(config.get("seed", 0))
        line = {"config": config, **run()}
        self.done.append(line)
        after = self.path.with_suffix(".tmp")
        after.write_text("".join(json.dumps(x) + "\n" for x in self.done))
        os.replace(after, self.path)  # never half a file
        return line


def arguments(description: str, name: str) -> argparse.ArgumentParser:
    """The command-line options that all share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of the data set")
    parser.add_argument("--results", type=Path, default=Path(f"experiments/results/{name}.jsonl"))
    return parser


def need(path: Path, how: str) -> Path:
    """``path``, or an error that says how to get it."""
    if not path.exists():
        raise SystemExit(f"{path} is missing. {how} Then pass its folder: --data DIR")
    return path
