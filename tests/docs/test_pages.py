"""The code of the README and of every page and notebook of docs/ runs, and prints what the page says it prints.

A page's ```python blocks run one after another in one namespace. A block titled "prints" that follows one is what it
must print: the words exactly, the numbers roughly (other machines round otherwise), "..." for anything. Code of other
systems stands in ```py blocks, which are shown and not run.
"""

import re
import sys
from pathlib import Path

import matplotlib
import pytest
import torch

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r'^```python\n(.*?)^```(?:\n+^```text title="prints"\n(.*?)^```)?', re.S | re.M)
PAGES = [page for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if BLOCK.search(page.read_text())]
NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")
ROUGHLY, TINY = 0.25, 1e-4


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def agrees(expected: str, printed: str) -> bool:
    """Whether the two have the same words, and numbers that are close or both tiny."""
    pattern, told = "", []
    for part in re.split(rf"({NUMBER.pattern}|\.\.\.|\s+)", expected.strip()):
        if NUMBER.fullmatch(part):
            pattern += f"({NUMBER.pattern})"
            told.append(float(part))
        else:
            pattern += ".*?" if part == "..." else r"\s+" if part.isspace() else re.escape(part)
    match = re.fullmatch(pattern, printed.strip(), re.S)
    pairs = zip(told, map(float, match.groups()), strict=True) if match else ()
    close = (abs(b - a) <= ROUGHLY * abs(a) or max(abs(a), abs(b)) <= TINY for a, b in pairs)
    return match is not None and all(close)


@pytest.fixture(autouse=True)
def as_a_reader_has_it():
    """float32, and pictures that open no window."""
    torch.set_default_dtype(torch.float32)
    matplotlib.use("Agg")
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_pages_code_runs_and_prints_what_it_says(page, capsys):
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "page"}
    for match in BLOCK.finditer(text):
        code, expected = match.groups()
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
        printed = capsys.readouterr().out
        assert "VIOLATED" not in printed  # what verify() says of a step that breaks its bounds
        if expected is not None:
            assert agrees(expected, printed), f"{name(page)}:{line} prints\n{printed}\nand not\n{expected}"


def test_agreement_can_fail():
    assert agrees("γ is 0.50, gap 1.0e-09\n", "γ  is 0.51, gap 2.0e-08")
    assert agrees("tol=1, ...) done", "tol=1, fraction=0.0) done")
    assert not agrees("γ is 0.50", "γ is 0.9")
    assert not agrees("γ is 0.50", "gamma is 0.50")
    assert not agrees("optimal", "not optimal")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_runs_and_was_executed(path):
    nbformat = pytest.importorskip("nbformat", reason="the extra 'docs' is not installed")
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    namespace: dict[str, object] = {"__name__": "notebook"}
    for cell in cells:
        exec(compile(cell.source, path.name, "exec"), namespace)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run `make notebooks`"
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_every_picture_has_its_drawing():
    used = set(re.findall(r"pictures/([\w-]+)\.svg", "".join(page.read_text() for page in DOCS.rglob("*.md"))))
    drawn = {path.stem.replace("_", "-") for path in DOCS.glob("pictures/[a-z]*.py")}
    kept = {path.stem for path in DOCS.glob("pictures/*.svg")}
    assert used == drawn == kept


@pytest.mark.parametrize("page", ["stack.md", "averages.md"])
def test_the_tests_that_a_table_names_exist(page):
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (DOCS / page).read_text())
    assert named
    for file, test in named:
        assert f"def {test}" in (ROOT / file).read_text(), f"{file}::{test}"
