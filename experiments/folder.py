"""The folder of a run: config.json, log.jsonl with a line for each epoch, and the checkpoint last.pt.

Every file is written completely or not at all, and a checkpoint contains the lines of the log: whenever the process
dies, resuming loses at most the current epoch.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from experiments.config import Config, from_dict
from proxsvm import __version__, checkpoint

GIT = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
COMMIT = subprocess.run(GIT, capture_output=True, text=True, check=False).stdout.strip() or None  # of the loaded code
Line = dict[str, Any]
Result = dict[str, Any]


def claim(config: Config, out: Path) -> Result | None:
    """The result of this very run, if it is finished; otherwise write the config, and what it runs on, into ``out``.

    Raises ValueError if ``out`` contains another run.
    """
    file = out / "config.json"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        versions = {"torch": torch.__version__, "proxsvm": __version__, "commit": COMMIT}
        provenance = versions | {"device": config.device, "threads": torch.get_num_threads()}
        write(file, json.dumps({"config": asdict(config), "provenance": provenance}, indent=1))
    try:
        theirs, mine = asdict(from_dict(json.loads(file.read_text())["config"])), asdict(config)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): delete it, if {out} is the folder of this run") from error
    if odd := {name: (theirs[name], value) for name, value in mine.items() if theirs[name] != value}:
        raise ValueError(f"{out} contains another run (there, here): {odd}. Choose another --out")
    return result(out)


def done(result: Result) -> bool:
    return len(result["curve"]) == result["config"]["epochs"]


def result(out: Path) -> Result | None:
    """Of a run that is finished."""
    found = so_far(out)
    return found if found is not None and done(found) else None


def so_far(out: Path) -> Result | None:
    """The config, what it ran on, the curve after the epochs so far and, where it was read, the test value."""
    file = out / "log.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    if not lines:
        return None
    curve = [{k: v for k, v in line.items() if not k.startswith("test")} for line in lines]
    tests = dict.fromkeys(("test", "test_averaged", "test_last"))
    tests |= {name: value for name, value in lines[-1].items() if name.startswith("test")}
    return json.loads((out / "config.json").read_text()) | {"curve": curve} | tests


def keep(out: Path, parts: dict[str, Any], lines: list[Line]) -> None:
    """Save a checkpoint after an epoch, and then the log."""
    checkpoint.save(out / "last.pt", **parts, lines=lines)
    log(out, lines)


def resume(out: Path, parts: dict[str, Any]) -> list[Line]:
    """Load the checkpoint, if there is one; returns the lines of its epochs."""
    return checkpoint.load(out / "last.pt", **parts)["lines"] if (out / "last.pt").exists() else []


def log(out: Path, lines: list[Line]) -> None:
    write(out / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def write(file: Path, text: str) -> None:
    """Completely or not at all."""
    beside = file.with_name(f".{file.name}.part")
    with beside.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(beside, file)
