"""Compare two runs of the benchmarks: ``python -m benchmarks.compare BEFORE AFTER``, two folders of results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.common import table


def named(row: dict[str, Any]) -> str:
    """What a row is about: its entries that are not measured."""
    return ", ".join(str(value) for value in row.values() if not isinstance(value, float) and " to " not in str(value))


def compare(before: Path, after: Path) -> list[dict[str, Any]]:
    """A row for each number that stands in both folders, with after / before."""
    rows = []
    for file in sorted(before.glob("*.json")):
        if not (after / file.name).exists():
            continue
        old, new = (
            {named(row): row for row in json.loads((folder / file.name).read_text())["rows"]}
            for folder in (before, after)
        )
        for name in old.keys() & new.keys():
            for key, value in old[name].items():
                other = new[name].get(key)
                if isinstance(value, float) and isinstance(other, float) and value:
                    ratio = other / value
                    rows.append(
                        {"bench": file.stem, "of": name, "what": key, "before": value, "after": other, "ratio": ratio}
                    )
    return sorted(rows, key=lambda row: (row["bench"], row["of"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    args = parser.parse_args()
    for folder in (args.before, args.after):
        if not list(folder.glob("*.json")):
            parser.error(f"{folder} has no results: run `make bench` there first (python -m benchmarks --out {folder})")
    print(table(compare(args.before, args.after)))


if __name__ == "__main__":
    main()
