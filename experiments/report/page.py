"""Write one self-contained HTML page with all tables and figures, from the results of the sweeps.

python -m experiments report                              # out/report.html
python -m experiments report --markdown cifar10           # print a study's table
python -m experiments report --into docs/reproduction.md  # rewrite the tables of that page
"""

from __future__ import annotations

import argparse
import base64
import inspect
import re
import shlex
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pandas import DataFrame, concat

from experiments.report import names, tables
from experiments.report.figures import drawings, png
from experiments.report.results import Results, plain, read, read_costs
from experiments.report.tables import Bold
from experiments.studies import EVIDENCE, SCALES, STRUCTURED
from experiments.train import COMMIT

TITLE = "Deep Frank-Wolfe: published and obtained"
HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "docs" / "style" / "scroll.js"  # a scroll hint for tables that are wider than the screen


def render(scales: dict[str, Results], command: str, costs: DataFrame) -> str:
    """The page: the template asks for the tables and figures that it shows."""
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    environment.tests["slanted"] = lambda cell: cell.startswith("*") and cell.endswith("*")  # as in Markdown
    environment.filters["drawn"] = lambda drawing: base64.b64encode(png(drawing.draw())).decode()
    environment.filters["caption"] = lambda drawing: inspect.getdoc(drawing.draw.func)
    environment.filters["together"] = lambda found: plain(concat(found.values()))
    environment.filters |= {"drawings": drawings, "kind": of_kind}
    environment.filters["sections"] = lambda body: re.findall(r'<section id="(.*?)">\n<h2>(.*?)</h2>', body)
    there = {names.kind(name) or name for name in scales["small"]}
    small = SCALES["small"]
    missing = dict.fromkeys(names.study(kind) for name in small if (kind := names.kind(name) or name) not in there)
    return environment.get_template("page.html").render(
        title=TITLE,
        scales=scales,
        costs=costs,
        tables=tables,
        names=names,
        published=tables.published(scales),
        made=[command, f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC", COMMIT or "not a git checkout"],
        missing="; ".join(missing),
        script=SCRIPT.read_text(encoding="utf-8"),
    )


def of_kind(results: Results, kind: str) -> Results:
    """The studies of a kind; "evidence" are those in which everyone is tuned."""
    tuned = (*EVIDENCE, *STRUCTURED, "parsing")
    wanted = tuned if kind == "evidence" else [name for name in results if names.kind(name) == kind]
    return {name: results[name] for name in wanted if name in results}


OF_ONE = ("study", "structured", "progress", "settings", "averages")  # tables of one study; the others are of several
ALIASES: dict[str, Callable[..., tables.Table]] = {
    "settings": tables.every_setting,
    "last": partial(tables.fixed, value="test_last"),
    "best-epoch": partial(tables.fixed, value="val"),
    "last-epoch": partial(tables.fixed, value="last"),
}


def filled(text: str, studies: Results, costs: DataFrame) -> str:
    """A Markdown text with its tables rewritten, each between ``<!-- KIND STUDY… -->`` and ``<!-- end -->``."""
    marked = re.compile(r"(<!-- ([a-z-]+) (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda m: f"{m[1]}\n{_markdown(m[3], studies, costs, m[2])}\n\n{m[4]}", text)


def _markdown(named: str, studies: Results, costs: DataFrame, kind: str) -> str:
    if missing := [name for name in named.split() if name not in studies]:
        there = ", ".join(studies)
        raise SystemExit(f"there are no results of a study named {missing[0]!r}; there are results of: {there}")
    asked = {name: studies[name] for name in named.split()}
    make = ALIASES.get(kind) or getattr(tables, kind)
    if kind in OF_ONE:
        table = make(named, asked[named])
        return f"{table.markdown()}\n\n{table.note}".rstrip()
    return make(asked, **{"fixed": {"tuned": studies}, "timed": {"costs": costs}}.get(kind, {})).markdown()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results = Path("experiments/results")
    parser.add_argument("--results", type=Path, default=results, help="the folder with small/ and paper/")
    parser.add_argument("--out", type=Path, default=Path("out/report.html"), help="default: %(default)s")
    parser.add_argument("--markdown", metavar="STUDY", help="print this study's table instead")
    parser.add_argument("--into", type=Path, metavar="FILE", help="rewrite the tables of a Markdown file")
    parser.add_argument("--scale", choices=["small", "paper"], default="small", help="for --markdown; default: small")


def main(args: argparse.Namespace) -> None:
    """Write the page, or print a table."""
    folder, costs = args.results, read_costs(args.results / "cost.csv")
    found = {"small": read(folder / "small", folder / "tuned"), "paper": read(folder / "paper")}
    if args.markdown:
        kind = "progress" if names.kind(args.markdown) == "night" else "study"
        print(_markdown(args.markdown, found[args.scale], costs, kind))
        return
    if args.into:
        file, text = args.into, filled(args.into.read_text(encoding="utf-8"), found[args.scale], costs)
    else:
        scales = {scale: results for scale, results in found.items() if results or scale == "small"}
        changed = [] if folder == Path("experiments/results") else ["--results", str(folder)]
        file, text = args.out, render(scales, shlex.join(["python", "-m", "experiments", "report", *changed]), costs)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    print(file)
