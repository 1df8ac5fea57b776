"""Tables and pictures that are wider than a phone scroll separately; long names in tables may be broken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor

DOCS = Path(__file__).parents[1]
TABLE = re.compile(r"(?s)<table>(.*?</table>)")
PICTURE = re.compile(r'<p>(<img [^>]*?src="(?:\.\./)*([^":]+\.(?:png|svg))"[^>]*>)</p>')
HEAD = re.compile(r"<th(?=[ >])")
CELL = re.compile(r"(?s)<td(?=[ >])(.*?</td>)")
CODE = re.compile(r"(?<=<code>)[^<]*")
TAG = re.compile(r"<[^>]*>")
JOINT = re.compile(r"::|\w\((?!\))|/|\w{24,}?_")
UNIT = re.compile(r"(?<=\d) (?=[%±])|(?<=±) ")  # 20.4 % and 67.6 ± 1.3 stay on one line
PANELS = 1.8  # a picture of two or more panels is at least this much wider than high,
LARGE = 1000  # or has this many pixels
MANY = 12  # columns of a table that is set smaller
PROSE = 25  # a cell with more characters needs a column that is not too narrow


class Wide(Postprocessor):
    """Adds the regions that site.css scrolls and scroll.js marks; a <wbr> shows nothing and is not copied."""

    def run(self, text: str) -> str:
        return PICTURE.sub(_picture, TABLE.sub(_table, text))


def _table(table: re.Match[str]) -> str:
    dense = " dense" if len(HEAD.findall(table[1])) >= MANY else ""
    return _scrolling("Table", f'<table class="data{dense}">' + CELL.sub(_cell, table[1]))


def _cell(cell: re.Match[str]) -> str:
    prose = ' class="prose"' if len(TAG.sub("", cell[0])) > PROSE else ""
    return f"<td{prose}" + CODE.sub(lambda code: JOINT.sub(r"\g<0><wbr>", code[0]), UNIT.sub("&nbsp;", cell[1]))


def _picture(picture: re.Match[str]) -> str:
    width, height = _size(DOCS / picture[2])
    return _scrolling("Picture", picture[1]) if width > min(PANELS * height, LARGE) else picture[0]


def _scrolling(what: str, inner: str) -> str:
    return f'<div class="wide"><div role="region" aria-label="{what}" tabindex="0">{inner}</div></div>'


def _size(path: Path) -> tuple[float, float]:
    if path.suffix == ".png":
        head = path.read_bytes()[16:24]  # PNG's first chunk
        return int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
    _, _, width, height = re.search(r'viewBox="([^"]+)"', path.read_text())[1].split()
    return float(width), float(height)


class WideExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.postprocessors.register(Wide(md), "wide", priority=1)


def makeExtension(**options: Any) -> Extension:
    """Python-Markdown calls this."""
    return WideExtension(**options)
