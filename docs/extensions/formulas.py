"""Formulas become MathML while the site is built: no script, no font, nothing to fetch."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor

FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.S)


class Formulas(Postprocessor):
    """Replaces what pymdownx.arithmatex marked."""

    def run(self, text: str) -> str:
        return FORMULA.sub(_mathml, text)


def _mathml(match: re.Match[str]) -> str:
    block, latex = match[2] == "[", match[3]
    formula = convert(html.unescape(latex).strip(), display="block" if block else "inline")
    if "\\" in formula:
        raise ValueError(f"a command of this formula is not known to latex2mathml: {latex.strip()}")
    return f'<div class="wide formula"><div>{formula}</div></div>' if block else formula


class FormulaExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.postprocessors.register(Formulas(md), "formulas", priority=0)


def makeExtension(**options: Any) -> Extension:
    """Python-Markdown calls this."""
    return FormulaExtension(**options)
