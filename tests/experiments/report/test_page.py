"""The report as a page, in a real browser, and as tables in a text."""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from experiments.report import gallery, page
from experiments.report.results import read, read_structured
from tests.experiments.report.lines import everything, line, runs, write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(folder / "results" / "small", *everything())
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    out = folder / "report.html"
    page.main(parser.parse_args(["--results", str(folder / "results"), "--out", str(out)]))
    return out


def test_the_page_holds_every_figure_and_table_and_asks_for_nothing_outside(report):
    text = report.read_text()
    drawn = gallery.drawings(read(report.parent / "results" / "small"))
    kinds = {"figure-1", "errors-cifar10", "convergence-cifar10", "step-size-snli", "sensitivity", "averaging"}
    assert kinds | {"regression-california", "sensitivity-cifar10", "averaging-cifar10"} <= set(drawn)
    assert all(f'<figure id="{name}">' in text for name in drawn)
    assert all(f"Table {number}:" in text for number in range(1, 22))
    assert not re.search(r'(?:src|href)="(?!#|data:)|<link|<script\s|@import|url\(', text)
    missing = "CIFAR-10, with augmentation; CIFAR-100; CIFAR-100, with augmentation; Bike sharing; Language model"
    missing += "; One fixed setting; Ablation"
    assert f"Not run yet, and so not on this page: {missing}." in text


def test_the_papers_scale_has_its_own_studies_on_the_page():
    results = {"cifar10": runs(line(test=58.0), line(optimizer="sgd", test=59.0))}
    text = page.render({"small": {}, "paper": results}, "python -m experiments report")
    assert '<section id="paper-cifar10">' in text
    assert '<figure id="paper-errors-cifar10">' in text


def test_without_results_the_page_says_what_is_missing_and_shows_the_published_numbers(tmp_path):
    text = page.render({"small": {}}, "python -m experiments report")
    assert "Not run yet, and so not on this page: CIFAR-10; " in text
    assert "90.18" in text
    assert '<figure id="figure-1">' in text


def test_the_page_opens_with_one_setting_for_all_tasks():
    fixed = {"metric": "diagonal", "average": "0.995"}
    results = {
        "fixed-cifar10": runs(
            line("fixed-cifar10", test=58.0, **fixed), line("fixed-cifar10", optimizer="adamw", test=5)
        ),
        "cifar10": runs(line(test=58.0), line(optimizer="sgd", test=59.0)),
        "camvid": runs(
            line("camvid", dataset="camvid", test=58.0), line("camvid", dataset="camvid", optimizer="adam", test=1)
        ),
        "ablation-bike": runs(line("ablation-bike", averaged={"0.995": 1.0}, dataset="bike")),
    }
    text = page.render({"small": results}, "python -m experiments report")
    sections = re.findall('<section id="(.*?)">', text)
    assert sections[:4] == ["fixed", "tuned", "gamma", "idea"]
    assert not [name for name in sections if name.startswith(("fixed-", "ablation-"))]
    assert "1 of 2" in text
    assert "<i>first or level</i>" in text
    assert '<th scope="col">proxsvm is</th>' in text


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome, which is not installed")
@pytest.mark.parametrize("width", [375, 1280])
def test_a_real_browser_loads_every_picture_and_the_page_never_scrolls_sideways(report, tmp_path, width):
    # Chromium's own window is never narrower than 500 pixels, so the page is looked at in a frame.
    measure = """<script>addEventListener("load", () => {
        document.querySelectorAll("details").forEach(each => each.open = true)
        const images = [...document.images]
        parent.postMessage(JSON.stringify({
            images: images.length, loaded: images.filter(each => each.complete && each.naturalWidth > 500).length,
            tables: document.querySelectorAll(".wide > div > table").length, window: innerWidth,
            wide: document.documentElement.scrollWidth}), "*")})</script></body>"""
    (tmp_path / "page.html").write_text(report.read_text().replace("</body>", measure))
    frame = tmp_path / "frame.html"
    frame.write_text(
        "<body><script>addEventListener('message', event => { document.body.dataset.seen = event.data })</script>"
        f"<iframe src='page.html' style='border: 0; width: {width}px; height: 800px'></iframe></body>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path}/user"]
    command = [CHROMIUM, *options, "--virtual-time-budget=20000", "--dump-dom", frame.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    seen = json.loads(html.unescape(re.search(r'data-seen="([^"]*)"', dom)[1]))
    assert seen["window"] == width
    assert seen["loaded"] == seen["images"] == len(gallery.drawings(read(report.parent / "results" / "small")))
    assert seen["tables"] > 30
    assert seen["wide"] <= width


def test_a_study_as_markdown(tmp_path, capsys):
    write(
        tmp_path / "small",
        line(lr=0.1, val=60.0, averaged={"0.99": 64.0}, test=58.0, test_averaged={"0.99": 63.0}),
        line(lr=0.1, val=61.0, seed=1, averaged={"0.99": 65.0}, test=60.0, test_averaged={"0.99": 63.0}),
        line(lr=1.0, val=59.0),
        line(optimizer="sgd", val=62.0, weight_decay=5e-4),
        line(optimizer="sgd", val=61.0, weight_decay=1e-4),
    )
    parser = argparse.ArgumentParser()
    page.add_arguments(parser)
    page.main(parser.parse_args(["--results", str(tmp_path), "--markdown", "cifar10"]))
    assert capsys.readouterr().out.splitlines() == [
        "| optimizer | loss | setting | validation (accuracy, %) | test (accuracy, %) | seeds |",
        "|---|---|---|---|---|---|",
        "| DFW | smoothed hinge | η = 0.1 | 60.5 ± 0.7 | 59.0 ± 1.4 | 2 |",
        "| SGD, schedule | cross-entropy | η = 0.1, l₂ = 0.0005 | **62.0** | — | 1 |",
        "| *Averaged weights* |  |  |  |  |  |",
        "| DFW + average | smoothed hinge | η = 0.1, decay = 0.99 | 64.5 ± 0.7 | 63.0 ± 0.0 | 2 |",
        "",
        "Settings were chosen by the validation value of the best epoch. Mean ± sample standard deviation over the "
        "seeds.",
    ]
    with pytest.raises(SystemExit, match=r"no results of a study named 'cifar'; there are results of: cifar10"):
        page.main(parser.parse_args(["--results", str(tmp_path), "--markdown", "cifar"]))


def test_a_text_gets_the_kind_of_table_that_it_asks_for(tmp_path):
    found = {"cifar10": runs(line(lr=0.1), line(lr=1.0, averaged={"1/4": 62.0}))}
    text = "a\n<!-- study cifar10 -->\nold\n<!-- end -->\nb\n<!-- settings cifar10 -->\n<!-- end -->\nc"
    new = page.filled(text, found)
    assert new.startswith("a\n<!-- study cifar10 -->\n\n| optimizer | loss | setting |")
    assert "old" not in new
    assert "62.0 (1/4)" in new[new.index("<!-- settings") :]
    assert page.filled(new, found) == new


@pytest.mark.parametrize(
    ("file", "kind"), [("docs/reproduction.md", "study"), ("README.md", "ranks"), ("docs/index.md", "ranks")]
)
def test_the_docs_show_what_the_results_say(file, kind):
    root = Path(__file__).parents[3]
    text = (root / file).read_text(encoding="utf-8")
    assert f"<!-- {kind} " in text
    results = root / "experiments" / "results"
    assert page.filled(text, read(results / "small") | read_structured(results / "tuned")) == text
