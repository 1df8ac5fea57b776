"""The site builds without a warning, is whole by itself, and shows every public name."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("zensical", reason="the extra 'docs' is not installed")
ROOT = Path(__file__).parents[2]
PUBLIC = (
    "proxsvm",
    "proxsvm.losses",
    "proxsvm.solvers",
    "proxsvm.metrics",
    "proxsvm.optimizer",
    "proxsvm.verification",
    "proxsvm.estimators",
    "proxsvm.checkpoint",
    "proxsvm.linearization",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site, of a copy: the build writes beside its configuration."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("docs", "proxsvm"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "out" / "site"


def test_every_page_is_built_and_in_the_contents(site):
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert named == pages  # the build itself is silent about an entry without a page
    assert {page.replace(".md", ".html") for page in pages} <= {str(p.relative_to(site)) for p in site.rglob("*.html")}


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        html = page.read_text()
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]+', html), page
        assert not re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//', html), page


def test_formulas_notebooks_and_tables_arrive(site):
    how, eta = (site / "how-it-works.html").read_text(), (site / "notebooks/train-without-a-schedule.html").read_text()
    assert "<math" in how
    assert 'src="data:image/png;base64,' in eta
    for page in site.rglob("*.html"):
        html = page.read_text()
        assert "arithmatex" not in html, f"a formula was left in {page}"
        assert "<!-- notebook" not in html, f"a notebook was left in {page}"
        assert "<table>" not in html, f"a table of {page} does not scroll"


def test_search_works_from_a_folder(site):
    assert (site / "search.js").read_text().startswith("var __index")
    shim = "style/iframe-worker.js"
    assert (site / shim).exists()
    assert f'src="./{shim}"' in (site / "index.html").read_text()


def public(module: ModuleType) -> list[str]:
    """What a package exports, or a module defines."""
    defined = inspect.getmembers(module, lambda it: getattr(it, "__module__", None) == module.__name__)
    names = getattr(module, "__all__", [name for name, _ in defined])
    return [name for name in names if not name.startswith("_")]


@pytest.mark.parametrize("module", PUBLIC)
def test_the_api_pages_show_every_public_name(site, module):
    from mkdocstrings import Inventory

    with (site / "objects.inv").open("rb") as file:
        shown = Inventory.parse_sphinx(file)
    package = importlib.import_module(module)
    homes = {name: getattr(getattr(package, name), "__module__", module) for name in public(package)}
    assert homes
    assert not [name for name, home in homes.items() if not {f"{module}.{name}", f"{home}.{name}"} & shown.keys()]
