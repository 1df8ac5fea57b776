"""A table of text, for Markdown and for the page."""

from __future__ import annotations

from dataclasses import dataclass, field


class Bold(str):
    """A cell that is the best of its column."""

    __slots__ = ()


@dataclass
class Table:
    """A header and rows of cells; a row of one cell is a heading over the rows below it.

    >>> print(Table("t", ["a", "b"], [["1", Bold("2")]]).markdown())
    | a | b |
    |---|---|
    | 1 | **2** |
    """

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        """As a Markdown table."""
        lines = [self.header, ["---"] * len(self.header)]
        for row in self.rows:
            cells = [f"**{cell}**" if isinstance(cell, Bold) else cell for cell in row]
            lines.append(cells if len(row) > 1 else [f"*{row[0]}*", *[""] * (len(self.header) - 1)])
        text = ["| " + " | ".join(cells) + " |" for cells in lines]
        text[1] = text[1].replace(" ", "")
        return "\n".join(text)


def embolden(rows: list[list[str]], column: int, lower: bool = False) -> None:
    """Mark the best number of a column, as it is printed."""
    numbers = {
        k: float(row[column].split()[0].replace(",", "")) for k, row in enumerate(rows) if row[column][0].isdigit()
    }
    if len(numbers) > 1:
        top = (min if lower else max)(numbers.values())
        for k in (k for k, number in numbers.items() if number == top):
            rows[k][column] = Bold(rows[k][column])
