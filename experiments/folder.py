"""The folder of a run: config.json, log.jsonl, last.pt and the checkpoint before it.

A checkpoint contains the lines of the log as well: whenever the process dies, resuming restores both.
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


def read_log(out: Path) -> list[Line]:
    """The lines of the log, up to the first incomplete one."""
    log, lines = out / "log.jsonl", []
    text = log.read_text(errors="replace") if log.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or found.get("epoch") != number:
                raise ValueError(f"expected the line of epoch {number}")
        except ValueError as error:
            print(f"{log}, line {number} is incomplete ({error}): continuing without it", flush=True)
            break
        lines.append(found)
    return lines


def write_log(out: Path, lines: list[Line]) -> None:
    write(out / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def keep(out: Path, parts: dict[str, Any], epoch: int, lines: list[Line]) -> None:
    """Save a checkpoint after an epoch, and then the log."""
    last = out / "last.pt"
    if last.exists():
        os.replace(last, out / "previous.pt")
    checkpoint.save(last, **parts, epoch=epoch, lines=lines)
    write_log(out, lines)


def resume(out: Path, parts: dict[str, Any], logged: list[Line]) -> tuple[int, list[Line]]:
    """Load the newest complete checkpoint; returns its number of epochs, and their lines."""
    for file in (out / "last.pt", out / "previous.pt"):
        if file.exists():
            try:
                rest = checkpoint.load(file, **parts)
            except ValueError as error:
                print(f"{error}\nContinuing from the checkpoint before it, or from the start", flush=True)
            else:
                return rest["epoch"], rest.get("lines", logged[: rest["epoch"]])  # older checkpoints have no lines
    return 0, []


def same_run(config: Config, out: Path) -> bool:
    """Whether ``out`` contains this very run; raise an error if it contains another one."""
    file = out / "config.json"
    if not file.exists():
        return False
    try:
        theirs, mine = asdict(from_dict(json.loads(file.read_text())["config"])), asdict(config)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): delete it, if {out} is the folder of this run") from error
    odd = {name: (theirs[name], value) for name, value in mine.items() if theirs[name] != value}
    if odd:
        raise ValueError(f"{out} contains another run (there, here): {odd}. Choose another --out")
    return True


def claim(config: Config, out: Path) -> None:
    """Write the config, and what it ran on, next to the results."""
    if not same_run(config, out):
        out.mkdir(parents=True, exist_ok=True)
        write(out / "config.json", json.dumps({"config": asdict(config), "provenance": provenance(config)}, indent=1))


def provenance(config: Config) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "proxsvm": __version__, "commit": COMMIT}
    return versions | {"device": config.device, "threads": torch.get_num_threads()}


def write(file: Path, text: str) -> None:
    """Completely or not at all."""
    beside = file.with_name(f".{file.name}.part")
    with beside.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(beside, file)
