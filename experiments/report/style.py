"""What the figures share: colours, panels, legends, and how a curve of several seeds is drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.report import names
from experiments.report.results import Epoch
from experiments.report.selection import Candidate

COLORS = {
    "dfw": "#d95f02",
    "multistep": "#8c2d04",
    "sgd": "#5e4fa2",
    "adam": "#1b9e77",
    "amsgrad": "#66a61e",
    "adagrad": "#d4a000",
    "bpgrad": "#a6761d",
    "alig": "#e7298a",
    "momo": "#1f78b4",
    "prodigy": "#666666",
    "schedulefree": "#00a6c0",
    "adamw": "#333333",
}
DIAGONAL = "#b2182b"  # ours in the diagonal metric
BLACK, GREY = "#222222", "#888888"
DASHES: dict[str, Any] = {"hinge": (0, (4, 1.5))}  # where an optimizer is run with several losses
STYLE = rc_context(
    {
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.formatter.min_exponent": 3,
        "grid.alpha": 0.2,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
    }
)
LINE = 0.2  # inches, of a legend
WIDTH = 5.2  # inches: narrow, so that the letters stay readable on a phone


def panels(count: int, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """Axes one above the other."""
    figure = Figure(figsize=(WIDTH, height * count), layout="constrained")
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])


def style(candidate: Candidate) -> dict[str, Any]:
    """A colour for each optimizer; without their schedule SGD and AdamW are dotted.

    Ours are drawn on top of all others, the two metrics in two colours, dotted with the cross-entropy.
    """
    method = candidate.method
    constant = method.optimizer in ("sgd", "adamw") and not method.scheduled
    first = method.optimizer == "dfw"
    dotted = constant or (first and method.loss == "ce")
    return {
        "color": DIAGONAL if method.metric == "diagonal" else COLORS.get(method.optimizer, GREY),
        "ls": ":" if dotted else DASHES.get(method.loss, "-"),
        "lw": 2.2 if first else 1.4,
        "zorder": 3 if first else 2,
    }


def label(candidate: Candidate, group: Iterable[Candidate]) -> str:
    """The optimizer's name, and the loss where the ``group`` has it with several."""
    method = candidate.method
    losses = {c.method.loss for c in group if c.method.optimizer == method.optimizer}
    return names.optimizer(method) + (f" ({names.loss(method)})" if len(losses) > 1 else "")


def legend(figure: Figure, axes: Axes) -> None:
    """One for all panels, below them, in as many columns as fit; the figure grows by its height."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max((len(text) for text in labels), default=0)
    columns = 3 if longest < 17 else 2 if longest < 35 else 1
    figure.set_figheight(figure.get_figheight() + LINE * math.ceil(len(labels) / columns))
    narrow = {"columnspacing": 1.0, "handlelength": 1.4, "handletextpad": 0.5}
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, **narrow)


def curve(axes: Axes, candidate: Candidate, value: Callable[[Epoch], float], **look: Any) -> None:
    """The mean over the seeds, and a band from the smallest to the largest."""
    epochs = range(min(len(run.curve) for run in candidate.runs))
    seeds = np.array([[value(run.curve[k]) for k in epochs] for run in candidate.runs], dtype=float)
    seeds[~np.isfinite(seeds)] = np.nan
    x = [candidate.runs[0].curve[k].epoch for k in epochs]
    axes.plot(x, seeds.mean(0), **look)
    if len(seeds) > 1:
        axes.fill_between(x, seeds.min(0), seeds.max(0), color=look["color"], alpha=0.15, lw=0)


def by_epoch(*axes: Axes) -> None:
    """Integers along the bottom, and a label for them under the lowest panel."""
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel("epoch")


def cut(axes: Axes, values: Iterable[float]) -> None:
    """End the axis at 1.5 times the smallest value: errors that exploded are cut off."""
    finite = [value for value in values if np.isfinite(value)]
    if finite and axes.get_ylim()[1] > 1.5 * min(finite):
        axes.set_ylim(top=1.5 * min(finite))


@STYLE
def png(figure: Figure) -> bytes:
    """The picture, with nothing in it that changes from day to day."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
