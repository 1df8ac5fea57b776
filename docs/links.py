"""List every external link of the project in docs/links.md, and check whether they answer.

python docs/links.py           # write the page
python docs/links.py --check   # request each address (needs internet), and list those that do not answer
"""

from __future__ import annotations

import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "links.md"
FILES = (
    "*.md",
    "*.cff",
    "pyproject.toml",
    "docs/**/*.md",
    "docs/**/*.ipynb",
    "proxsvm/**/*.py",
    "experiments/**/*.py",
    "experiments/*.csv",
)
LINK = re.compile(r"https?://[\w.-]+\.[a-z]{2,}(?:/[^\s\"'`<>()\[\]|\\,]*)?")
HEAD = """# External links

Every address in the docs, the docstrings and the experiments, and where it is used. `make links` writes this page;
`python docs/links.py --check` checks whether each address answers. Links within the site are checked by `make docs`.

| address | used in |
|---|---|
"""


def links() -> dict[str, list[str]]:
    """Where each address is named."""
    found: dict[str, list[str]] = {}
    for path in sorted({path for pattern in FILES for path in ROOT.glob(pattern)} - {PAGE}):
        for address in dict.fromkeys(LINK.findall(path.read_text(encoding="utf-8"))):
            address = address.rstrip(".:;")
            if "example.org" not in address:
                found.setdefault(address, []).append(str(path.relative_to(ROOT)))
    return dict(sorted(found.items()))


def page() -> str:
    """docs/links.md."""
    rows = (f"| <{address}> | {', '.join(f'`{place}`' for place in places)} |\n" for address, places in links().items())
    return HEAD + "".join(rows)


def answer(address: str) -> str | None:
    """None if it answers, else what is wrong."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0", "Range": "bytes=0-0"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return None
    except OSError as error:
        return str(error)


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
        return
    with ThreadPoolExecutor(8) as pool:
        told = dict(zip(links(), pool.map(answer, links()), strict=True))
    silent = [f"{address}: {error}" for address, error in told.items() if error]
    print("\n".join(silent) or f"all {len(told)} links answer")
    sys.exit(bool(silent))


if __name__ == "__main__":
    main()
