"""The structured tasks at one setting for all tasks: ours, and what each peer's authors recommend. Nothing is tuned.

    python -m experiments.structured.fixed ocr-large --data DIR      # chunking, camvid

The settings are those of the other tasks (``FIXED`` in ``experiments/studies.py``), and so is the protocol: all train
with the likelihood; held-out data choose the epoch; ours evaluate their own average, and every peer has a second row
with the same average. Results: experiments/results/small/fixed-TASK.jsonl, in the form of a sweep's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiments.config import Config
from experiments.structured.study import run
from experiments.structured.tuned import Task
from experiments.studies import AVERAGE, FIXED


def settings(_: Task, base: Config) -> Iterator[Config]:
    """One run per optimizer; ours have an average of their own."""
    for setting in FIXED:
        yield replace(base, loss="likelihood", **setting, averages=() if "average" in setting else AVERAGE)


def main() -> None:
    description = "Structured tasks, every method at one setting for all tasks"
    run("fixed", description, settings, seeds=[1, 2, 3], test=True)


if __name__ == "__main__":
    main()
