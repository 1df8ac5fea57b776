"""Docstrings as the API pages show them: doctests as code blocks, :class:`roles` as links."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?m)(^>>> .*(?:\n.+)*)")
ROLE = re.compile(r":(?:class|meth|func):`(~?)([\w.]+)`")


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            text = DOCTEST.sub(lambda match: f"```pycon\n{match[1]}\n```", obj.docstring.value)
            obj.docstring.value = ROLE.sub(_link, text)


def _link(match: re.Match[str]) -> str:
    path = match[2]
    name = path.rsplit(".", 1)[-1]
    return f"[`{name}`][{path}]" if path.startswith("proxsvm.") else f"`{name}`"
