"""What the benchmarks of linear models share: the data sets, and the loosest tolerance that is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import Options, conll, fashion_mnist, snli, text_like

WITHIN = 1e-3
GRID = [10 ** (-k / 4) for k in range(21)]


def cases(options: Options) -> tuple[list[tuple[str, Any, np.ndarray, float]], list[str]]:
    """(title, X, y, C) of each case, the dense ones first; and the sets that are missing in --data."""
    n = 2000 if options.quick else 10_000
    X, y, name = fashion_mnist(options.fashion, n)
    sets: dict[str, Any] = {
        "text-like": text_like(n),
        "text-like 2": text_like(2 * n, features=100_000, words=200, classes=6, seed=1),
        "SNLI": snli(options.data / "snli_1.0", n),
        "CoNLL-2000": conll(options.data / "conll2000", n),
    }
    found = [(f"{name}, {n:,} × 784 dense", X, y, C) for C in (1e-3, 1e-2)]
    for title, there in sets.items():
        if there is not None:
            T, t = there
            size = f"{T.shape[0]:,} × {T.shape[1]:,} sparse, {t.max() + 1} classes"
            found += [(f"{title}, {size}", T, t, C) for C in (0.1, 1.0)]
    return found, [title for title, there in sets.items() if there is None]


def loosest(fit: Callable[[float], float], best: float) -> float:
    """The loosest tolerance whose ``fit``, which returns its objective, ends within reach of the best."""
    for tol in GRID:
        if fit(tol) <= best * (1 + WITHIN):
            return tol
    raise RuntimeError(f"no tolerance of {GRID} was enough")


def note(missing: list[str]) -> str:
    """How the seconds of the table were measured."""
    return (
        f"Seconds until the primal objective is within {WITHIN:g} of the best known, each solver at the loosest "
        "tolerance (a grid of quarter decades) that gets there; one thread, no intercept, compiling not included."
        + (f" Missing in --data, and so left out: {', '.join(missing)}." if missing else "")
    )


def draw_bars(ax: Any, rows: list[dict[str, Any]], labels: dict[str, str]) -> None:
    """Seconds as bars, a group for each row; ``labels`` names the columns."""
    at, width = np.arange(len(rows)), 0.8 / len(labels)
    for k, (key, label) in enumerate(labels.items()):
        bars = ax.bar(at + (k - (len(labels) - 1) / 2) * width, [r[key] for r in rows], width=0.93 * width, label=label)
        ax.bar_label(bars, fmt="%.2g", fontsize=8)
    titles = [r["data"].replace(", ", "\n").replace(" sparse", "\nsparse").replace(" dense", "\ndense") for r in rows]
    ax.set_xticks(at, [f"{title}\nC = {r['C']:g}" for title, r in zip(titles, rows, strict=True)], fontsize=8)
    ax.set(ylabel="seconds", title=f"Seconds to within {WITHIN:g} of the best known primal")
    ax.margins(y=0.1)
    ax.legend()
