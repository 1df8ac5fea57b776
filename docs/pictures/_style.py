"""What the pictures share: colours, axes, and files that are the same at every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
ORANGE, PURPLE, GREEN, GREY, BLACK = "#d95f02", "#7570b3", "#1b9e77", "#888888", "#222222"

plt.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 2,
        "svg.hashsalt": "proxsvm",
        "legend.frameon": False,
    }
)


def save(figure: Any, name: str) -> None:
    """Write ``name`` beside the drawings, with no date in it."""
    figure.savefig(HERE / name, facecolor="white", metadata={"Date": None})
    plt.close(figure)
    print(HERE / name)
