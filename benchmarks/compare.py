"""This tree and another commit, benchmarked in turn: ``python -m benchmarks step criterion --against HEAD~1``."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pandas import DataFrame, Series


def measured(folder: Path) -> Series:
    """The median of every number over all runs in a folder, by benchmark, row and column."""
    found = []
    for file in folder.rglob("*.json"):
        for row in json.loads(file.read_text())["rows"]:
            of = ", ".join(str(value) for value in row.values() if not isinstance(value, float))
            found += [(file.stem, of, what, value) for what, value in row.items() if isinstance(value, float)]
    frame = DataFrame(found, columns=["bench", "of", "what", "value"])
    return frame.groupby(["bench", "of", "what"]).value.median()


def compare(before: Path, after: Path) -> DataFrame:
    """A row for each number that is in both folders, with after / before."""
    both = DataFrame({"before": measured(before), "after": measured(after)}).dropna().query("before != 0")
    return both.assign(ratio=both.after / both.before).reset_index()


def run_in_turn(commit: str, rounds: int, out: Path, arguments: list[str]) -> DataFrame:
    """A noisy machine disturbs both; both are measured by the benchmarks of this tree, whatever that commit has."""
    trees = {"before": out / "tree", "after": Path.cwd()}
    subprocess.run(["git", "worktree", "add", "--detach", "--force", trees["before"], commit], check=True)
    try:
        shutil.copytree("benchmarks", trees["before"] / "benchmarks", dirs_exist_ok=True)
        for round in range(rounds):
            for label, tree in trees.items():
                command = [sys.executable, "-m", "benchmarks", *arguments, "--out", out / label / str(round)]
                subprocess.run(command, cwd=tree, check=True, env={**os.environ, "PYTHONPATH": str(tree)})
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", trees["before"]], check=True)
    return compare(out / "before", out / "after")
