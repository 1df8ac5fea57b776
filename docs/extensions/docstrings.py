"""Docstrings as the API pages show them: doctests as code blocks, :class:`roles` as links."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?m)(^>>> .*(?:\n.+)*)")
ROLE = re.compile(r":(?:class|meth|func|attr):`~?([\w.]+)`")


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            text = DOCTEST.sub(lambda match: f"```pycon\n{match[1]}\n```", obj.docstring.value)
            obj.docstring.value = ROLE.sub(_link, text)


def _link(match: re.Match[str]) -> str:
    """A link where the API pages show the target, its name where they do not."""
    path = match[1]
    name = path.rsplit(".", 1)[-1]
    if not path.startswith("proxsvm."):
        return f"`{name}`"
    return f'<autoref identifier="{path}" optional><code>{name}</code></autoref>'
