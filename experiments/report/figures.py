"""Draw the figures of the report as PNG files, from the results of the sweeps.

python -m experiments figure --list                       # what can be drawn from the existing results
python -m experiments figure sensitivity-cifar10
python -m experiments figure all --out docs/pictures/experiments
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from pandas import DataFrame

from experiments.report import names
from experiments.report.results import WORDS, Candidate, Results, best, candidates, choose, grid, read, unit

COLORS = ("#" + WORDS["colors"]).to_dict()
DIAGONAL, GREY = "#b2182b", "#888888"  # ours in the diagonal metric; methods without a colour
STYLE = style.context(Path(__file__).with_suffix(".mplstyle"))
WIDTH, LINE = 5.2, 0.2  # inches, of a figure (readable on a phone) and of a legend's line
AVERAGE = "0.995"  # the decay that all studies have
LOST = 10  # times the lowest error


# What the figures share.


def panels(rows: int, height: float, columns: int = 1, width: float = WIDTH, **share: Any) -> tuple[Figure, Any]:
    """A figure and its axes, ``[rows, columns]``."""
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **share)


def look_of(c: Candidate) -> dict[str, Any]:
    """A colour for each optimizer; without their schedule SGD and AdamW are dotted.

    Ours are drawn on top of all others, the two metrics in two colours, dotted with the cross-entropy.
    """
    first = c.optimizer == "dfw"
    dotted = (c.optimizer in ("sgd", "adamw") and not c.method.scheduled) or (first and c.method.loss == "ce")
    return {
        "color": DIAGONAL if c.method.metric == "diagonal" else COLORS.get(c.optimizer, GREY),
        "ls": ":" if dotted else (0, (4, 1.5)) if c.method.loss == "hinge" else "-",
        "lw": 2.2 if first else 1.4,
        "zorder": 3 if first else 2,
    }


def label(c: Candidate, group: Iterable[Candidate]) -> str:
    """The optimizer's name, and the loss where the ``group`` has it with several."""
    losses = {other.method.loss for other in group if other.optimizer == c.optimizer}
    return names.optimizer(c.method) + (f" ({names.loss(c.method.loss)})" if len(losses) > 1 else "")


def legend(figure: Figure, axes: Axes) -> None:
    """One for all panels, below them, in as many columns as fit; the figure grows by its height."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    columns = 3 if longest < 17 else 2 if longest < 35 else 1
    figure.set_figheight(figure.get_figheight() + LINE * math.ceil(len(labels) / columns))
    narrow = {"columnspacing": 1.0, "handlelength": 1.4, "handletextpad": 0.5}
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, **narrow)


def curve(axes: Axes, seeds: Iterable[Sequence[float]], **look: Any) -> None:
    """The mean over the seeds, and a band from the smallest to the largest, by epoch."""
    values = np.array(list(zip(*seeds, strict=False)), dtype=float)
    values[~np.isfinite(values)] = np.nan
    epochs = range(1, len(values) + 1)
    axes.plot(epochs, values.mean(1), **look)
    if values.shape[1] > 1:
        axes.fill_between(epochs, values.min(1), values.max(1), color=look["color"], alpha=0.15, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def cut(axes: Axes, values: Iterable[float]) -> None:
    """End the axis at 1.5 times the smallest value: errors that exploded are cut off."""
    finite = [value for value in values if np.isfinite(value)]
    if finite and axes.get_ylim()[1] > 1.5 * min(finite):
        axes.set_ylim(top=1.5 * min(finite))


def validated(c: Candidate) -> float:
    return float(c.runs.val.mean(skipna=False))


def trained(c: Candidate) -> float:
    """The same on the training samples, after the last epoch."""
    return float(c.runs.curve.map(lambda run: run[-1]["train"]).mean())


def along_eta(runs: DataFrame, averaged: bool = False) -> dict[str, list[Candidate]]:
    """The best candidate of each method at each η, in the order of η, by the method's label."""
    pool = candidates(runs, averaged)
    groups: dict[str, dict[float, list[Candidate]]] = {}
    for c in pool:
        groups.setdefault(label(c, pool), {}).setdefault(c.eta, []).append(c)
    return {name: [best(group) for _, group in sorted(line.items())] for name, line in groups.items()}


def plot_eta(ax: Axes, line: Sequence[Candidate], value: Callable[[Candidate], float] = validated, **look: Any) -> None:
    """A value against η; seeds are averaged, diverged runs are left out."""
    constant = line[0].optimizer == "sgd" and not line[0].method.scheduled
    ax.plot([c.eta for c in line], list(map(value, line)), marker="^" if constant else "o", ms=4, **look)


# The figures: each takes a title and the runs of one task.


@STYLE
def errors(title: str, runs: DataFrame) -> Figure:
    """Training and validation error at the chosen setting of each method (the paper's Figure 2).

    Mean over the seeds; the band goes from the smallest to the largest. Errors above 1.5 times the best are cut.
    """
    chosen, averaged, lower = choose(runs), choose(runs, averaged=True), bool(runs.lower.iloc[0])
    what = unit(runs) if lower else "error, %"
    shown: dict[str, tuple[list[Candidate], Any]] = {
        f"{title}: training {what}": (chosen, lambda c, epoch: epoch["train"]),
        f"validation {what}": (chosen, lambda c, epoch: epoch["val"]),
        f"validation {what}, averaged weights": (averaged, lambda c, epoch: epoch["val_averaged"][c.decay]),
    }
    figure, axes = panels(3 if averaged else 2, 2.5)
    for ax, (text, (group, value)) in zip(axes[:, 0], shown.items(), strict=False):
        for c in group:
            seeds = ([value(c, epoch) if lower else 100 - value(c, epoch) for epoch in run] for run in c.runs.curve)
            curve(ax, seeds, label=label(c, chosen), **look_of(c))
        ax.set_title(text)
        if lower:
            cut(ax, [trained(c) if ax is axes[0, 0] else validated(c) for c in chosen])
    axes[-1, 0].set_xlabel("epoch")
    legend(figure, axes[0, 0])
    return figure


@STYLE
def step_size(title: str, runs: DataFrame) -> Figure:
    """The mean step-size of each epoch: DFW's γη follows from the data, SGD's was designed (the paper's Figure 3)."""
    chosen = [c for c in choose(runs) if c.optimizer in ("dfw", "multistep", "sgd")]
    figure, ((ax,),) = panels(1, 3.0)
    for c in chosen:
        look = look_of(c) | {"label": f"{label(c, chosen)}, η = {c.eta:g}", "drawstyle": "steps-mid"}
        curve(ax, ([epoch["step_size"] or np.nan for epoch in run] for run in c.runs.curve), **look)
    ax.set(title=f"{title}: the step-size, γη for DFW", yscale="log", xlabel="epoch")
    legend(figure, ax)
    return figure


@STYLE
def sensitivity(title: str, runs: DataFrame) -> Figure:
    """Validation at the best epoch and training at the last against η, at the best of the other settings.

    (The paper's Figure 4.) Errors above 1.5 times the best are cut.
    """
    figure, ((val,), (train,)) = panels(2, 2.7)
    for name, line in along_eta(runs).items():
        if len(line) > 1:
            plot_eta(val, line, label=name, **look_of(line[0]))
            plot_eta(train, line, trained, **look_of(line[0]))
    val.set(title=f"{title}: validation {unit(runs)}, {runs.epochs.iloc[0]} epochs", xscale="log")
    train.set(title=f"training {unit(runs)}", xscale="log", xlabel="η (learning rate of the others)")
    if runs.lower.iloc[0]:
        cut(val, map(validated, candidates(runs)))
        cut(train, map(trained, candidates(runs)))
    legend(figure, val)
    return figure


@STYLE
def gamma(studies: Results) -> Figure:
    """Validation of averaged weights against η, with the exact γ (solid) and with γ ≡ 1 (dashed); one seed.

    The numbers are the mean γ of the last epoch. At the top, a ring for the exact γ and a cross for γ ≡ 1: diverged, or
    above ten times the lowest error. Errors have a logarithmic scale.
    """
    sides = (("", "Euclidean, momentum 0.9"), ("diagonal", "diagonal, no momentum"))
    figure, rows = panels(len(studies), 1.8 + 0.6 / len(studies), columns=2, width=1.5 * WIDTH, sharey="row")
    for k, (axes, (name, runs)) in enumerate(zip(rows, studies.items(), strict=True)):
        averaged = runs[runs.decay == AVERAGE]
        for ax, (metric, title) in zip(axes, sides, strict=True):
            mine = averaged[averaged.method.map(lambda method: method.metric) == metric]
            _exact_and_full(ax, mine, LOST * averaged.val.min())
            etas = sorted(set(mine.eta))
            ax.set(xscale="log", title="" if k else title)
            ax.set_xticks(etas, [f"{e:g}" if e >= 1e-3 else f"{e:.0e}".replace("-0", "-") for e in etas])
            if runs.lower.iloc[0]:
                ax.set_yscale("log")
                ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
                ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            ax.minorticks_off()
            ax.margins(0.08, 0.25)  # for the γ
        axes[0].set_ylabel(f"{names.study(name)}\n{unit(runs)}")
    for ax in rows[-1]:
        ax.set_xlabel("η")
    handles = {text: h for ax in rows.flat for h, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2)
    return figure


@STYLE
def decades(studies: Results, averaged: bool = True) -> Figure:
    """Validation against η over five decades: ours, also with γ ≡ 1 and with nothing set (a line), and four peers.

    Errors, or 100 minus the accuracy; what diverged is left out.
    """
    figure, rows = panels(math.ceil(len(studies) / 2), 2.6, columns=min(len(studies), 2), width=1.5 * WIDTH)
    for ax, (name, runs) in zip(rows.flat, studies.items(), strict=False):
        lower = bool(runs.lower.iloc[0])
        runs = runs.assign(val=runs.val if lower else 100 - runs.val, lower=True)
        for line in along_eta(runs, averaged).values():
            optimizer, look = line[0].optimizer, look_of(line[0]) | {"ls": "-"}
            if optimizer == "dfw-full":
                look["ls"] = ":"
            if not line[0].method.auto:
                ours = {"dfw": "proxsvm at this η", "dfw-full": "proxsvm, γ ≡ 1"}
                plot_eta(ax, line, label=ours.get(optimizer, names.OPTIMIZERS[optimizer]), **look)
            elif optimizer == "dfw":
                ax.axhline(validated(line[0]), label="proxsvm, nothing set", **look | {"ls": (0, (4, 1.5))})
        ax.set(title=names.study(name), xscale="log", yscale="log", xlabel="η, or learning rate")
        ax.set_ylabel(unit(runs) if lower else "validation error, %")
        low, high = ax.get_ylim()
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 20 * low else (1, 2, 3, 4, 5, 7)))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        ax.minorticks_off()
    for ax in rows.flat[len(studies) :]:
        ax.remove()
    legend(figure, rows[0, 0])
    return figure


def _exact_and_full(ax: Axes, runs: DataFrame, lost: float) -> None:
    """Both lines of each loss; γ above, or below, the points of the exact one; errors above ``lost`` are at the top."""
    for (loss, optimizer), line in runs.groupby([runs.method.map(lambda m: m.loss), "optimizer"], sort=False):
        if optimizer == "multistep":
            continue
        smooth, exact = loss in ("ce", "likelihood"), optimizer == "dfw"
        kind, color = ("cross-entropy, likelihood", COLORS["adam"]) if smooth else ("hinge, ℓ1", COLORS["dfw"])
        line = line.sort_values("eta")
        y = line.val.where(~line.lower | (line.val <= lost), np.inf)
        what = f"{kind}: {'γ exact' if exact else 'γ ≡ 1'}"
        ax.plot(line.eta, y, "-" if exact else "--", marker="o", ms=4, color=color, label=what)
        for at, value, run in zip(line.eta, y, line.curve, strict=True):
            where = {"transform": ax.get_xaxis_transform()}
            if not np.isfinite(value):
                ax.plot(at, 1, "o" if exact else "x", color=color, mfc="none", clip_on=False, **where)
            elif exact:
                where |= {"y": 1, "va": "top"} if "hinge" in loss else {"y": 0.02, "va": "bottom"}
                ax.text(at, s=f"{run[-1]['gamma']:.2f}", color=color, ha="center", fontsize=7, **where)


# Which can be drawn.


class Drawing(NamedTuple):
    """A figure that can be drawn, and the study it belongs to, if there is one."""

    study: str
    draw: partial[Figure]


def drawings(results: Results) -> dict[str, Drawing]:
    """All figures that can be drawn from these results, by name."""
    found = {}
    ablations, etas = ({n: results[n] for n in results if names.kind(n) == kind} for kind in ("ablation", "decades"))
    first = ("decades-digits", "decades-california")  # an interpolating task and one that is not
    etas = {name: etas[name] for name in (*first, *etas) if name in etas}
    if ablations:
        found["gamma"] = Drawing("", partial(gamma, ablations))
    if etas:
        found["decades"] = Drawing("", partial(decades, dict(list(etas.items())[:2])))
        found["decades-all"] = Drawing("", partial(decades, etas))
        found["decades-last"] = Drawing("", partial(decades, etas, averaged=False))
    for study, runs in results.items():
        title, tried = names.study(study), grid(runs)
        if names.kind(study) or not runs.curve.map(lambda run: np.isfinite(run[-1]["train"])).any():
            continue  # they have tables in common; the structured tasks measure nothing but validation
        if any(len(line) > 1 for line in along_eta(tried).values()):
            name = "sensitivity" if study == "sensitivity" else f"sensitivity-{study}"
            found[name] = Drawing(study, partial(sensitivity, title, tried))
        if study != "sensitivity":
            found[f"errors-{study}"] = Drawing(study, partial(errors, title, runs))
            if (runs.optimizer == "dfw").any():
                found[f"step-size-{study}"] = Drawing(study, partial(step_size, title, runs))
    return found


@STYLE
def png(figure: Figure) -> bytes:
    """The picture, with nothing in it that changes from day to day."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", default="all", help="a figure's name, or all (default)")
    parser.add_argument("--list", action="store_true", help="print the names of the figures that can be drawn")
    parser.add_argument("--results", type=Path, default=Path("experiments/results/small"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("out/figures"), help="default: %(default)s")


def main(args: argparse.Namespace) -> None:
    """Write PNG files."""
    possible = drawings(read(args.results))
    if args.name != "all" and args.name not in possible:
        raise SystemExit(f"no figure named {args.name!r} from {args.results}; there are {', '.join(possible)}, all")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in possible if args.name == "all" else [args.name]:
        file = args.out / f"{name}.png"
        if not args.list:
            file.write_bytes(png(possible[name].draw()))
        print(name if args.list else file)
