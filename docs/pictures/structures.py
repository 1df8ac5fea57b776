"""One labelling of each structure: what is drawn in colour are its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _style import BLACK, GREEN, GREY, ORANGE, PURPLE, plt, save
from matplotlib.patches import Rectangle

Points = list[tuple[float, float]]


def nodes(axes: Any, at: Points, colors: list[str], size: float = 130) -> None:
    axes.scatter(*zip(*at, strict=True), s=size, c=colors, edgecolors=BLACK, linewidths=1, zorder=3)


def lines(axes: Any, at: Points, pairs: list[tuple[int, int]], color: str = GREY) -> None:
    for i, j in pairs:
        axes.plot(*zip(at[i], at[j], strict=True), color=color, lw=1.5, zorder=1)


def words(axes: Any, text: str, y: float = 0.0) -> None:
    for x, word in enumerate(text.split()):
        axes.text(x, y, word, ha="center", va="top", fontsize=9)


def chain(axes: Any) -> None:
    at = [(float(x), 0.6) for x in range(5)]
    lines(axes, at, [(i, i + 1) for i in range(4)])
    nodes(axes, at, [GREEN, GREEN, ORANGE, PURPLE, PURPLE])
    words(axes, "the cat sat on it", 0.2)


def tree(axes: Any) -> None:
    at = [(2, 1.6), (1, 0.9), (3, 0.9), (0.3, 0.2), (1.5, 0.2), (3, 0.2)]
    lines(axes, at, [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5)])
    nodes(axes, at, [GREEN, GREEN, ORANGE, GREEN, PURPLE, ORANGE])


def label_tree(axes: Any) -> None:
    at = [(1, 1.4), (3, 1.4), (0.3, 0.5), (1.7, 0.5), (2.4, 0.5), (3.6, 0.5)]
    lines(axes, at, [(0, 2), (0, 3), (1, 4), (1, 5)])
    nodes(axes, at, [ORANGE, "white", "white", ORANGE, "white", "white"])
    for (x, y), name in zip(at, ("animal", "vehicle", "cat", "dog", "car", "bus"), strict=True):
        axes.text(x, y - 0.13 if y < 1 else y + 0.1, name, ha="center", va="top" if y < 1 else "bottom", fontsize=9)
    axes.set_ylim(-0.2, 2.2)


def segments(axes: Any) -> None:
    for start, end, color in ((0, 2, GREEN), (2, 3, ORANGE), (3, 6, PURPLE)):
        axes.add_patch(Rectangle((start - 0.42, 0.25), end - start - 0.16, 0.75, fc=color, alpha=0.45, ec=BLACK))
    words(axes, "the cat sat on the mat", 0.75)


def arcs(axes: Any, heads: list[int]) -> None:
    """heads of the words 1, 2, …; 0 is the root."""
    for word, head in enumerate(heads):
        if head == 0:
            axes.annotate("", (word, 0.1), (word, 2.0), arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1.5})
            continue
        bend = 0.7 if word < head - 1 else -0.7  # an arc above the words
        style = {"arrowstyle": "->", "color": ORANGE, "lw": 1.5, "connectionstyle": f"arc3,rad={bend}"}
        axes.annotate("", (word, 0.1), (head - 1, 0.1), arrowprops=style)


def projective_tree(axes: Any) -> None:
    arcs(axes, [2, 3, 0, 6, 6, 3])
    words(axes, "the cat sat on the mat")


def spanning_tree(axes: Any) -> None:
    arcs(axes, [2, 3, 0, 3, 6, 2])
    words(axes, "a cat sat today that purred")


def spans(axes: Any) -> None:
    for height, (start, end) in enumerate([(0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (2, 3), (0, 3)]):
        y = 0.25 if height < 4 else 0.75 if height < 6 else 1.25
        axes.plot([start - 0.35, start - 0.35, end + 0.35, end + 0.35], [y - 0.15, y, y, y - 0.15], color=ORANGE)
    words(axes, "the cat sat down")


def alignment(axes: Any) -> None:
    for x in range(5):
        axes.plot([x, x], [0, 3], color=GREY, lw=0.6)
    for y in range(4):
        axes.plot([0, 4], [y, y], color=GREY, lw=0.6)
    path = [(0, 3), (1, 2), (2, 2), (3, 1), (3, 0), (4, 0)]
    axes.plot(*zip(*path, strict=True), color=ORANGE, lw=3)
    nodes(axes, [(float(x), float(y)) for x, y in path], [ORANGE] * len(path), 40)


def matching(axes: Any) -> None:
    at = [(0.5, y) for y in (2.0, 1.0, 0.0)] + [(3.0, y) for y in (2.4, 1.6, 0.6, -0.2)]
    lines(axes, at, [(i, j) for i in range(3) for j in range(3, 7)], "#dddddd")
    lines(axes, at, [(0, 4), (1, 6), (2, 3)], ORANGE)
    nodes(axes, at, [GREEN] * 3 + [PURPLE] * 4)


def grid(axes: Any) -> None:
    at = [(float(x), float(y)) for y in range(4) for x in range(5)]
    lines(axes, at, [(i, i + 1) for i in range(20) if i % 5 < 4] + [(i, i + 5) for i in range(15)])
    nodes(axes, at, [ORANGE if y < 1 or (y < 2 and x > 1) or (y < 3 and x > 3) else "white" for x, y in at], 90)


PANELS: dict[str, Callable[[Any], None]] = {
    "Chain": chain,
    "Tree": tree,
    "LabelTree": label_tree,
    "Segments": segments,
    "ProjectiveTree": projective_tree,
    "SpanningTree": spanning_tree,
    "Spans": spans,
    "Alignment": alignment,
    "Matching": matching,
    "Grid": grid,
}


def main() -> None:
    figure, cells = plt.subplots(2, 5, figsize=(14, 5), layout="constrained")
    for axes, (name, draw) in zip(cells.flat, PANELS.items(), strict=True):
        draw(axes)
        axes.set_title(name, family="monospace")
        axes.margins(0.15)
        axes.axis("off")
        if draw in (chain, segments, projective_tree, spanning_tree, spans):
            axes.set(xlim=(-0.7, 5.7 if draw not in (chain, spans) else 4.7), ylim=(-0.8, 2.2))
    save(figure, "structures.svg")


if __name__ == "__main__":
    main()
