"""Benchmark this tree and another commit in turn: ``python -m benchmarks.compare step criterion --against HEAD~1``."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pandas import DataFrame, Series

from benchmarks.common import table


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


def run_in_turn(commit: str, names: list[str], rounds: int, out: Path, options: list[str]) -> None:
    """Benchmark ``commit``, in a worktree of its own, and this tree in turn, so that a noisy machine disturbs both.

    Both are measured by the benchmarks of this tree: the same questions, whatever that commit asked.
    """
    out = out.resolve()
    trees = {"before": out / "tree", "after": Path.cwd()}
    subprocess.run(["git", "worktree", "add", "--detach", "--force", trees["before"], commit], check=True)
    try:
        shutil.copytree("benchmarks", trees["before"] / "benchmarks", dirs_exist_ok=True)
        for round in range(rounds):
            for label, tree in trees.items():
                command = [sys.executable, "-m", "benchmarks", *names, "--out", out / label / str(round), *options]
                subprocess.run(command, cwd=tree, check=True, env={**os.environ, "PYTHONPATH": str(tree)})
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", trees["before"]], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["step", "criterion", "training_step"], help="benchmarks")
    parser.add_argument("--against", default="HEAD~1", metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a smaller variant of each benchmark")
    parser.add_argument("--threads", default="1", help="torch's threads, as in python -m benchmarks")
    parser.add_argument("--out", type=Path, default=Path("out/compare"))
    args = parser.parse_args()
    options = ["--threads", args.threads, *(["--quick"] if args.quick else [])]
    run_in_turn(args.against, args.names, args.rounds, args.out, options)
    print(table(compare(args.out / "before", args.out / "after")))


if __name__ == "__main__":
    main()
