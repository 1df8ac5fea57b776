"""The site builds without a warning, is whole by itself, and shows every public name."""

import html
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("zensical", reason="the extra 'docs' is not installed")
ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome, which is not installed")
MATHS, REST = ("losses", "structures", "solvers", "metrics", "linearization"), ("optimizer", "verification")
PARTS = (*MATHS, *REST, "estimators", "checkpoint")
PUBLIC = ("proxsvm", *(f"proxsvm.{part}" for part in PARTS))


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


def seen(page: Path, script: str, width: int = 1400) -> object:
    """What ``script``, an async function's body, returns in a real browser that opened the page from its folder."""
    probe, frame = page.with_name("probe.html"), page.with_name("frame.html")
    report = f"const look = async () => {{{script}}}\n"
    report += "addEventListener('load', async () => parent.postMessage(JSON.stringify(await look()), '*'))"
    probe.write_text(page.read_text().replace("</body>", f"<script>{report}</script></body>"))
    frame.write_text(  # Chromium's own window is never narrower than 500 pixels
        "<body><script>addEventListener('message', event => { document.body.dataset.seen = event.data })</script>"
        f"<iframe src='probe.html' style='border: 0; width: {width}px; height: 800px'></iframe></body>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"]
    command = [CHROMIUM, *options, f"--user-data-dir={page.parent}/user", "--dump-dom", frame.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    return json.loads(html.unescape(re.search(r'data-seen="([^"]*)"', dom)[1]))


@browser
def test_search_works_from_a_folder(site):
    script = """
        const pause = () => new Promise(done => setTimeout(done, 1000))
        const all = root => [...root.querySelectorAll("*")].flatMap(e => e.shadowRoot ? [e, ...all(e.shadowRoot)] : [e])
        await pause()
        document.querySelector("[data-md-component=search] button, .md-search__button").click()
        await pause()
        const input = all(document).find(e => e.matches("input:not([type=checkbox], [type=radio])"))
        input.value = "CorrectiveFW"
        input.dispatchEvent(new InputEvent("input", { bubbles: true, composed: true }))
        await pause()
        return all(document).filter(e => e.matches("a[href*='CorrectiveFW']")).map(e => e.href)"""
    assert any("api/solvers.html" in link for link in seen(site / "get-started.html", script))


@browser
@pytest.mark.parametrize("width", [375, 1400])
def test_no_page_scrolls_sideways_and_what_is_wider_says_so(site, width):
    script = """
        const wide = [...document.querySelectorAll(".wide > div")].filter(e => e.scrollWidth > e.clientWidth + 2)
        await new Promise(done => setTimeout(done, 500))
        return [document.documentElement.scrollWidth, wide.length, document.querySelectorAll(".wide.more").length]"""
    for name in ("index", "benchmarks", "how-it-works"):
        page, wide, hints = seen(site / f"{name}.html", script, width)
        assert page <= width, name
        assert wide == hints, name
        assert wide == 0 or width < 500, name


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
