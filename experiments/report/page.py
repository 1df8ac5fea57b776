"""Write one self-contained HTML page with all tables and figures, from the results of the sweeps.

python -m experiments report                              # out/report.html
python -m experiments report --markdown cifar10           # print a study's table
python -m experiments report --into docs/reproduction.md  # rewrite the tables of that page
"""

from __future__ import annotations

import argparse
import base64
import os
import platform
import re
import shlex
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments.folder import COMMIT
from experiments.report import names, tables
from experiments.report.figures import Drawing, drawings, png
from experiments.report.results import SCORES, Results, plain, read, together
from experiments.report.tables import Bold, Table
from experiments.studies import EVIDENCE, SMALL

TITLE = "Deep Frank-Wolfe: published and obtained"
HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "docs" / "style" / "scroll.js"  # a scroll hint for tables that are wider than the screen
SCALE = (
    "“Published” is what the paper printed, at its scale: WRN-40-4, DenseNet-40-40 and a BiLSTM of 47 M parameters, "
    "all of the data, 200 or 300 epochs on CIFAR. “Small scale” is what this code obtained with small members of the "
    "same families on a part of the data in few epochs. These are different problems: compare the order within a "
    f"column, never the numbers across. {tables.SEEDS} SGD* is what the paper quotes from others."
)


@dataclass
class Section:
    """A part of the page."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Drawing] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)


def render(scales: dict[str, Results], command: str) -> str:
    """The page."""
    sections = [section for scale, results in scales.items() for section in _overview(scale, results)]
    published = tables.published(scales)
    sections.append(Section("tables", "The paper's tables", [SCALE], published[:3]))
    sections += [section for scale, results in scales.items() for section in _studies(scale, results)]
    sections.append(Section("appendix", "The appendix: cross-validation", [SCALE], folded=published[3:]))
    sections.append(Section("provenance", "Where this comes from", tables=provenance(scales, command)))
    missing = dict.fromkeys(names.study(_kind(name)) for name in SMALL if name not in scales["small"])
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    environment.tests["slanted"] = lambda cell: cell.startswith("*") and cell.endswith("*")  # as in Markdown
    environment.filters["drawn"] = lambda drawing: base64.b64encode(png(drawing.draw())).decode()
    environment.trim_blocks = environment.lstrip_blocks = True
    script = SCRIPT.read_text(encoding="utf-8")
    page = environment.get_template("page.html")
    return page.render(title=TITLE, sections=sections, missing="; ".join(missing), script=script)


def _kind(study: str) -> str:
    """``fixed``, ``ablation`` or ``first`` for their studies; else the study."""
    return re.sub("^(fixed|ablation|first)-.*", r"\1", study)


def _named(scale: str) -> tuple[str, str]:
    """What the sections of a scale begin with, and what their titles end with."""
    return ("", "") if scale == "small" else (f"{scale}-", f", at the {scale}'s scale")


def _overview(scale: str, results: Results) -> list[Section]:
    """What the page opens with: one setting for all tasks, everyone tuned, and what γ adds."""
    (prefix, tail), sections = _named(scale), []
    fixed, ablated = ({n: runs for n, runs in results.items() if _kind(n) == kind} for kind in ("fixed", "ablation"))
    if fixed:
        whole = replace(tables.fixed(fixed, results), title="All rows, task by task")
        short = tables.ranks(fixed)
        sections.append(Section(f"{prefix}fixed", short.title + tail, tables=[short], folded=[whole]))
    tuned = tables.tuned({name: results[name] for name in (*EVIDENCE, *SCORES) if name in results})
    if tuned.rows:
        sections.append(Section(f"{prefix}tuned", tuned.title + tail, tables=[tuned]))
    if ablated:
        gamma, picture = tables.ablation(ablated), drawings(ablated)["gamma"]
        whole = replace(gamma, title="Every setting")
        sections.append(Section(f"{prefix}gamma", gamma.title + tail, pictures=[picture], folded=[whole]))
    return sections


def _studies(scale: str, results: Results) -> list[Section]:
    """The studies at one scale, their tables folded."""
    (prefix, tail), drawn = _named(scale), drawings(results).values()
    sections = []
    for name, runs in results.items():
        if _kind(name) in (name, "first"):  # the others are in the overview
            first = [tables.averages(name, runs)] if name == "averaging" else []
            pictures = [replace(d, name=prefix + d.name) for d in drawn if d.study == name]
            folded = [tables.study(name, runs), tables.every_setting(name, runs)]
            text = [names.runs(plain(runs))]
            sections.append(Section(prefix + name, names.study(name) + tail, text, first, pictures, folded))
    return sections


def provenance(scales: dict[str, Results], command: str) -> list[Table]:
    """What produced the page, and what the runs recorded about themselves."""
    made = Table("This page", ["", ""])
    made.rows = [
        ["command", command],
        ["made", f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"],
        ["commit", COMMIT or "unknown: not a git checkout"],
        ["machine", f"{names.count(os.cpu_count() or 1, 'core')}, {platform.machine()}"],
        ["versions", f"Python {platform.python_version()}, torch {torch.__version__}"],
    ]
    shown = [made]
    for scale, results in ((scale, results) for scale, results in scales.items() if results):
        runs = plain(together(results))
        hours = runs.curve.map(lambda run: sum(epoch["seconds"] for epoch in run)).sum() / 3600
        table = Table(f"The runs, {scale} scale", ["", ""])
        table.rows = [["runs", f"{len(runs)}, {hours:.1f} hours of training in all"]]
        table.rows += [[study, names.count(number, "run")] for study, number in runs.study.value_counts().items()]
        for key in dict.fromkeys(key for given in runs.provenance for key in given):
            values = sorted({str(given.get(key))[:40] for given in runs.provenance})
            few = ", ".join(values) if len(values) <= 4 else f"{values[0]} … {values[-1]} ({len(values)} different)"
            table.rows.append([key, few])
        shown.append(table)
    return shown


def filled(text: str, studies: Results) -> str:
    """A Markdown text with its tables rewritten, each between ``<!-- KIND STUDY… -->`` and ``<!-- end -->``."""
    marked = re.compile(rf"(<!-- ({'|'.join((*KINDS, *TOGETHER))}) (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda m: f"{m[1]}\n{_markdown(m[3], studies, m[2])}\n\n{m[4]}", text)


KINDS = {"study": tables.study, "settings": tables.every_setting, "averages": tables.averages}
TOGETHER = {  # tables of several studies
    "beside": tables.beside,
    "fixed": tables.fixed,
    "ranks": tables.ranks,
    "tuned": tables.tuned,
    "gammas": tables.gammas,
    "ablation": tables.ablation,
}


def _markdown(named: str, studies: Results, kind: str = "study") -> str:
    for name in named.split():
        if name not in studies:
            there = ", ".join(studies)
            raise SystemExit(f"there are no results of a study named {name!r}; there are results of: {there}")
    if kind in KINDS:
        table = KINDS[kind](named, studies[named])
        return f"{table.markdown()}\n\n{table.note}"
    asked = {name: studies[name] for name in named.split()}
    return (tables.fixed(asked, studies) if kind == "fixed" else TOGETHER[kind](asked)).markdown()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results = Path("experiments/results")
    parser.add_argument("--results", type=Path, default=results, help="the folder with small/ and paper/")
    parser.add_argument("--out", type=Path, default=Path("out/report.html"), help="default: %(default)s")
    parser.add_argument("--markdown", metavar="STUDY", help="print this study's table instead")
    parser.add_argument("--into", type=Path, metavar="FILE", help="rewrite the tables of a Markdown file")
    parser.add_argument("--scale", choices=["small", "paper"], default="small", help="for --markdown; default: small")


def main(args: argparse.Namespace) -> None:
    """Write the page, or print a table."""
    folder = args.results
    found = {"small": read(folder / "small", folder / "tuned"), "paper": read(folder / "paper")}
    if args.into:
        args.into.write_text(filled(args.into.read_text(encoding="utf-8"), found[args.scale]), encoding="utf-8")
        print(args.into)
        return
    if args.markdown:
        print(_markdown(args.markdown, found[args.scale]))
        return
    scales = {scale: results for scale, results in found.items() if results or scale == "small"}
    changed = [] if folder == Path("experiments/results") else ["--results", str(folder)]
    page = render(scales, shlex.join(["python", "-m", "experiments", "report", *changed]))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page, encoding="utf-8")
    print(args.out)
