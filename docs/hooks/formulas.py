"""Formulas become MathML while the site is built: no script, no font, nothing to fetch."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.S)


def on_page_content(content: str, **_: Any) -> str:
    """Replace what pymdownx.arithmatex marked."""
    return FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    tag, opening, latex = match.groups()
    block = opening == "["
    formula = convert(html.unescape(latex).strip(), display="block" if block else "inline")
    if "\\" in formula:
        raise PluginError(f"a command of this formula is not known to latex2mathml: {latex.strip()}")
    return f'<{tag} class="formula">{formula}</{tag}>' if block else formula
