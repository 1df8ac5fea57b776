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
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments import published
from experiments.report import names, paper_tables, study_tables
from experiments.report.gallery import Drawing, drawings
from experiments.report.paper_tables import Scales
from experiments.report.results import SCORES, Results, read, read_structured
from experiments.report.style import png
from experiments.report.table import Bold, Table
from experiments.studies import EVIDENCE, SMALL

TITLE = "Deep Frank-Wolfe: published and obtained"
HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "docs" / "style" / "scroll.js"  # a scroll hint for tables that are wider than the screen


@dataclass(frozen=True)
class Picture:
    """A figure in the page; shown at half its pixels, because screens have a higher resolution than they report."""

    name: str
    caption: str
    data: str
    width: int
    height: int

    @classmethod
    def of(cls, drawing: Drawing) -> Picture:
        """Draw it."""
        raw = png(drawing.draw())
        width, height = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20))  # of PNG's first chunk
        data = base64.b64encode(raw).decode()
        return cls(drawing.name, drawing.caption, data, width // 2, height // 2)


@dataclass
class Section:
    """A part of the page."""

    id: str
    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)


def render(scales: Scales, command: str) -> str:
    """The page."""
    sections = [section for scale, results in scales.items() for section in _overview(scale, results)]
    sections += [
        Section("idea", "The idea", pictures=[Picture.of(drawings({})["figure-1"])]),
        Section(
            "tables",
            "The paper's tables",
            [paper_tables.SCALE, f"{study_tables.SEEDS} SGD* is what the paper quotes from others."],
            [paper_tables.cifar(1, scales), paper_tables.cifar(2, scales), paper_tables.snli(scales)],
        ),
    ]
    for scale, results in scales.items():
        sections += _studies(scale, results)
    sections += [
        Section(
            "appendix",
            "The appendix: cross-validation",
            ["Each setting that the paper or we tried; in bold the best of each column.", paper_tables.SCALE],
            folded=[paper_tables.appendix(grid, scales) for grid in published.APPENDIX],
        ),
        Section("provenance", "Where this comes from", tables=provenance(scales, command)),
    ]
    absent = [name for name in SMALL if name not in scales["small"]]
    begun = set(map(_kind, scales["small"]))
    missing = dict.fromkeys(names.study(name if _kind(name) in begun else _kind(name)) for name in absent)
    said = [f"Not run yet, and so not on this page: {'; '.join(missing)}."] if missing else []
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    environment.tests["slanted"] = lambda cell: cell.startswith("*") and cell.endswith("*")  # as in Markdown
    environment.trim_blocks = environment.lstrip_blocks = True
    page = environment.get_template("page.html")
    return page.render(title=TITLE, sections=sections, missing=said, script=SCRIPT.read_text(encoding="utf-8"))


def _kind(study: str) -> str:
    """``fixed`` or ``ablation`` for their studies; else the study."""
    return re.sub("^(fixed|ablation)-.*", r"\1", study)


def _named(scale: str) -> tuple[str, str]:
    """What the sections of a scale begin with, and what their titles end with."""
    return ("", "") if scale == "small" else (f"{scale}-", f", at the {scale}'s scale")


def _overview(scale: str, results: Results) -> list[Section]:
    """What the page opens with: one setting for all tasks, everyone tuned, and what γ adds."""
    (prefix, tail), sections = _named(scale), []
    if fixed := {name: runs for name, runs in results.items() if _kind(name) == "fixed"}:
        whole = replace(study_tables.fixed(fixed, results), title="All rows, task by task")
        short = study_tables.ranks(fixed)
        sections.append(Section(f"{prefix}fixed", short.title + tail, tables=[short], folded=[whole]))
    tuned = study_tables.tuned({name: results[name] for name in (*EVIDENCE, *SCORES) if name in results})
    if tuned.rows:
        sections.append(Section(f"{prefix}tuned", tuned.title + tail, tables=[tuned]))
    if ablated := {name: runs for name, runs in results.items() if _kind(name) == "ablation"}:
        gamma = study_tables.ablation(ablated)
        pictures, whole = [Picture.of(drawings(results)["gamma"])], replace(gamma, title="Every setting")
        sections.append(Section(f"{prefix}gamma", gamma.title + tail, pictures=pictures, folded=[whole]))
    return sections


def _studies(scale: str, results: Results) -> list[Section]:
    """The paper's claims and the studies at one scale, their tables folded."""
    prefix, tail = _named(scale)
    claims = study_tables.claims(results)
    sections = [Section(f"{prefix}claims", claims.title + tail, tables=[claims])] if claims.rows else []
    drawn = [drawing for drawing in drawings(results).values() if drawing.study]
    for name in sorted(results, key=_place):
        runs = results[name]
        if _kind(name) != name:
            continue  # in the overview
        tasks = dict.fromkeys(names.task(run) for run in runs)
        tables = [study_tables.study(name, runs), study_tables.every_setting(name, runs)]
        sections.append(
            Section(
                prefix + name,
                names.study(name) + tail,
                [f"{'; '.join(tasks)}: {names.epochs(runs)}."],
                [study_tables.averages(name, runs)] if name == "averaging" else [],
                [Picture.of(replace(d, name=prefix + d.name)) for d in drawn if d.study == name],
                tables,
            )
        )
    return sections


def _place(study: str) -> tuple[int, str]:
    """The order of the studies on the page."""
    known, dataset = list(names.STUDIES), study.split("-")[0]
    return (known.index(dataset) if dataset in known else len(known)), study


def provenance(scales: Scales, command: str) -> list[Table]:
    """What produced the page, and what the runs recorded about themselves."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "matplotlib", "numpy"))
    made = Table("This page", ["", ""])
    made.rows = [
        ["command", command],
        ["made", f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"],
        ["commit", _commit()],
        ["machine", f"{os.cpu_count()} cores, {_processor()}"],
        ["versions", f"Python {platform.python_version()}, {packages}"],
    ]
    shown = [made]
    for scale, results in scales.items():
        runs = [run for study in results.values() for run in study]
        table = Table(f"The runs, {scale} scale", ["", ""])
        hours = sum(epoch.seconds for run in runs for epoch in run.curve) / 3600
        table.rows = [["runs", f"{len(runs)}, {hours:.1f} hours of training in all"]]
        table.rows += [[names.study(name), f"{len(results[name])} runs"] for name in sorted(results, key=_place)]
        for key in dict.fromkeys(key for run in runs for key in run.provenance):
            table.rows.append([key, _distinct(run.provenance.get(key) for run in runs)])
        shown.append(table)
    return shown


def filled(text: str, studies: Results) -> str:
    """A Markdown text with its tables rewritten, each between ``<!-- KIND STUDY -->`` and ``<!-- end -->``.

    A table of a kind in ``TOGETHER`` covers several studies.
    """
    marked = re.compile(rf"(<!-- ({'|'.join((*KINDS, *TOGETHER))}) (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda m: f"{m[1]}\n{_markdown(m[3], studies, m[2])}\n\n{m[4]}", text)


KINDS = {"study": study_tables.study, "settings": study_tables.every_setting, "averages": study_tables.averages}
TOGETHER = {
    "beside": study_tables.beside,
    "fixed": study_tables.fixed,
    "ranks": study_tables.ranks,
    "tuned": study_tables.tuned,
    "gammas": study_tables.gammas,
    "ablation": study_tables.ablation,
}


def _markdown(named: str, studies: Results, kind: str = "study") -> str:
    for name in named.split():
        if name not in studies:
            there = ", ".join(studies)
            raise SystemExit(f"there are no results of a study named {name!r}; there are results of: {there}")
    if kind in TOGETHER:
        asked = {name: studies[name] for name in named.split()}
        return (study_tables.fixed(asked, studies) if kind == "fixed" else TOGETHER[kind](asked)).markdown()
    table = KINDS[kind](named, studies[named])
    return f"{table.markdown()}\n\n{table.note}"


def _distinct(values: Iterable[Any]) -> str:
    """All values if they are few, else the first and the last."""
    texts = sorted({"unknown" if value is None else str(value)[:40] for value in values})
    return ", ".join(texts) if len(texts) <= 4 else f"{texts[0]} … {texts[-1]} ({len(texts)} different)"


def _commit() -> str:
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not a git checkout"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which results, and what to do with them."""
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("experiments/results"),
        help="the folder with small/ and paper/; default: %(default)s",
    )
    parser.add_argument("--out", type=Path, default=Path("out/report.html"), help="default: %(default)s")
    parser.add_argument("--markdown", metavar="STUDY", help="print this study's table instead")
    parser.add_argument("--into", type=Path, metavar="FILE", help="rewrite the tables of a Markdown file")
    parser.add_argument("--scale", choices=["small", "paper"], default="small", help="for --markdown; default: small")


def main(args: argparse.Namespace) -> None:
    """Write the page, or print a table."""
    found: dict[str, Results] = {scale: read(args.results / scale) for scale in ("small", "paper")}
    found["small"] |= read_structured(args.results / "tuned")
    if args.into:
        args.into.write_text(filled(args.into.read_text(encoding="utf-8"), found[args.scale]), encoding="utf-8")
        print(args.into)
        return
    if args.markdown:
        print(_markdown(args.markdown, found[args.scale]))
        return
    scales = {scale: results for scale, results in found.items() if results or scale == "small"}
    changed = [] if args.results == Path("experiments/results") else ["--results", str(args.results)]
    page = render(scales, shlex.join(["python", "-m", "experiments", "report", *changed]))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page, encoding="utf-8")
    print(args.out)
