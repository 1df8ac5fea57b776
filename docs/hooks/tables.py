"""Long names in tables may be broken where they have joints: after :: and after the bracket of a call."""

from __future__ import annotations

import re
from typing import Any

CELL = re.compile(r"(?s)<td[^>]*>.*?</td>")
JOINT = re.compile(r"(<code>[^<]*?(?:::|\w\())(?=[^<)])")


def on_page_content(content: str, **_: Any) -> str:
    """Add a <wbr>, which shows nothing and is not copied."""
    return CELL.sub(lambda cell: JOINT.sub(r"\1<wbr>", cell[0]), content)
