"""Draw the figures of the report as PNG files, from the results of the sweeps.

python -m experiments figure --list                       # what can be drawn from the results that are there
python -m experiments figure sensitivity-cifar10
python -m experiments figure all --out docs/pictures/experiments
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.report import names
from experiments.report.approximation import W_T, approximation
from experiments.report.results import Epoch, Results, Run, read
from experiments.report.selection import Candidate, best, candidates, choose, grid

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
}
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
        "legend.fontsize": 9,
    }
)
WIDTH = 5.2  # inches: narrow, so that the letters stay readable on a phone
FLOOR = 0.01  # per cent of error, where a logarithmic axis ends


def panels(count: int, height: float = 2.7) -> tuple[Figure, list[Axes]]:
    """Axes one above the other."""
    figure = Figure(figsize=(WIDTH, height * count + 0.5), layout="constrained")
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])


def style(candidate: Candidate) -> dict[str, Any]:
    """A colour for each optimizer; SGD without its schedule is dotted, DFW is drawn over all others."""
    method = candidate.method
    constant = method.optimizer == "sgd" and not method.scheduled
    first = method.optimizer == "dfw"
    return {
        "color": COLORS.get(method.optimizer, GREY),
        "ls": ":" if constant else DASHES.get(method.loss, "-"),
        "lw": 2.2 if first else 1.4,
        "zorder": 3 if first else 2,
    }


def label(candidate: Candidate, group: Iterable[Candidate]) -> str:
    """The optimizer's name, and the loss where the ``group`` has it with several."""
    method = candidate.method
    losses = {c.method.loss for c in group if c.method.optimizer == method.optimizer}
    return names.optimizer(method) + (f" ({names.loss(method)})" if len(losses) > 1 else "")


def legend(figure: Figure, axes: Axes) -> None:
    """One for all panels, below them, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max((len(text) for text in labels), default=0)
    figure.legend(handles, labels, loc="outside lower center", ncols=3 if longest < 17 else 2 if longest < 32 else 1)


def curve(axes: Axes, candidate: Candidate, value: Callable[[Epoch], float], **look: Any) -> None:
    """The mean over the seeds, and a band from the least to the greatest."""
    epochs = range(min(len(run.curve) for run in candidate.runs))
    seeds = np.array([[value(run.curve[k]) for k in epochs] for run in candidate.runs], dtype=float)
    seeds[~np.isfinite(seeds)] = np.nan
    x = [candidate.runs[0].curve[k].epoch for k in epochs]
    axes.plot(x, seeds.mean(0), **look)
    if len(seeds) > 1:
        axes.fill_between(x, seeds.min(0), seeds.max(0), color=look["color"], alpha=0.15, lw=0)


def by_epoch(*axes: Axes) -> None:
    """Whole numbers along the bottom, and a name for them under the lowest panel."""
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].set_xlabel("epoch")


def cut(axes: Axes, values: Iterable[float]) -> None:
    """End the axis at three times the least of the values: errors that exploded leave the picture."""
    finite = [value for value in values if np.isfinite(value)]
    if finite and axes.get_ylim()[1] > 3 * min(finite):
        axes.set_ylim(top=3 * min(finite))


# The figures. Each takes the runs of one task and returns a Figure.


@STYLE
def figure_1() -> Figure:
    """SGD's line and the loss-preserving approximation, without and with the proximal term."""
    a = approximation()
    figure, axes = panels(2, 3.0)
    at_t = np.interp(W_T, a.w, a.objective)
    for ax, added in zip(axes, (0 * a.proximal, a.proximal), strict=True):
        ax.plot(a.w, a.objective, color=BLACK, lw=2, label="the objective")
        ax.plot(a.w, a.sgd + added, color=COLORS["sgd"], lw=2, label="SGD: one line")
        ax.plot(a.w, a.preserving + added, color=COLORS["dfw"], lw=2, label="network linearised, loss kept")
        ax.axvline(a.w_best, color=GREY, lw=1, ls="--")
        ax.plot(W_T, at_t, "o", color=BLACK)
        ax.annotate("$w_t$", (W_T, at_t), textcoords="offset points", xytext=(9, -9), fontsize=12)
        ax.set(ylim=(-2.0, 5.2), xlim=(-1.9, 3.4), xticks=[], yticks=[])
    axes[0].annotate("$w_*$", (a.w_best, -1.8), textcoords="offset points", xytext=(4, 2), color=GREY, fontsize=12)
    for at, model, name, below in (
        (a.w_sgd, a.sgd, "sgd", (-14, -16)),
        (a.w_preserving, a.preserving, "dfw", (8, -14)),
    ):
        bottom = np.interp(at, a.w, model + a.proximal)
        axes[1].plot([at, at], [bottom, np.interp(at, a.w, a.objective)], ":", color=COLORS[name])
        axes[1].plot(at, bottom, "o", color=COLORS[name])
        axes[1].annotate(
            "$w_{t+1}$", (at, bottom), textcoords="offset points", xytext=below, color=COLORS[name], fontsize=12
        )
    axes[0].set_title("two models of the objective at $w_t$")
    axes[1].set_title("the same with the proximal term: where they step to")
    axes[1].set_xlabel("weight")
    legend(figure, axes[0])
    return figure


@STYLE
def errors(title: str, runs: Sequence[Run]) -> Figure:
    """Training and validation error of every method, at the setting that validation chose (the paper's Figure 2)."""
    chosen = choose(runs)
    figure, (train, val) = panels(2)
    for c in chosen:
        curve(train, c, lambda epoch: 100 - epoch.train, label=label(c, chosen), **style(c))
        curve(val, c, lambda epoch: 100 - epoch.val, **style(c))
    train.set(title=f"{title}: training error, %", ylim=(0, None))
    val.set_title("validation error, %")
    by_epoch(train, val)
    legend(figure, train)
    return figure


@STYLE
def convergence(title: str, runs: Sequence[Run]) -> Figure:
    """Training loss, in a panel for each kind of loss since their values do not compare, and training error."""
    chosen = choose(runs)
    kinds = {"hinge": ("smooth-hinge", "hinge"), "cross-entropy": ("ce",)}
    shown = {kind: mine for kind, l in kinds.items() if (mine := [c for c in chosen if c.method.loss in l])}
    figure, axes = panels(len(shown) + 1, 2.4)
    for ax, (kind, mine) in zip(axes, shown.items(), strict=False):
        for c in mine:
            curve(ax, c, lambda epoch: max(epoch.train_loss, 1e-6), **style(c))
        ax.set(title=f"training loss: {kind}", yscale="log")
    for c in chosen:
        curve(axes[-1], c, lambda epoch: max(100 - epoch.train, FLOOR), label=label(c, chosen), **style(c))
    axes[0].set_title(f"{title}: {axes[0].get_title()}")
    axes[-1].set(title="training error, %, comparable across losses", yscale="log")
    by_epoch(*axes)
    legend(figure, axes[-1])
    return figure


@STYLE
def step_size(title: str, runs: Sequence[Run]) -> Figure:
    """γη as DFW takes it, beside the staircase that was designed for SGD (the paper's Figure 3)."""
    chosen = [c for c in choose(runs) if c.method.optimizer in ("dfw", "multistep", "sgd")]
    figure, (ax,) = panels(1, 3.0)
    for c in chosen:
        look = style(c) | {"label": f"{label(c, chosen)}, η = {c.eta:g}", "drawstyle": "steps-mid"}
        curve(ax, c, lambda epoch: epoch.step_size or np.nan, **look)
    ax.set(title=f"{title}: the step-size, γη for DFW", yscale="log")
    by_epoch(ax)
    legend(figure, ax)
    return figure


def at_each_eta(pool: Iterable[Candidate]) -> list[Candidate]:
    """The best candidate at each η, by validation, in the order of η."""
    groups: dict[float, list[Candidate]] = {}
    for c in pool:
        groups.setdefault(c.eta, []).append(c)
    return [best(group) for _, group in sorted(groups.items())]


def along_eta(runs: Sequence[Run], averaged: bool = False) -> dict[str, list[Candidate]]:
    """``at_each_eta`` for each method, by its label."""
    pool = candidates(runs, averaged)
    lines: dict[str, list[Candidate]] = {}
    for c in pool:
        lines.setdefault(label(c, pool), []).append(c)
    return {name: at_each_eta(line) for name, line in lines.items()}


def plot_eta(ax: Axes, line: Sequence[Candidate], value: Callable[[Candidate], float], **look: Any) -> None:
    """A value against η; seeds are averaged, what diverged is left out."""
    y = np.array([value(c) for c in line], dtype=float)
    y[~np.isfinite(y)] = np.nan
    ax.plot([c.eta for c in line], y, marker="o", ms=4, **look)


@STYLE
def sensitivity(title: str, runs: Sequence[Run]) -> Figure:
    """Validation and training accuracy after the last epoch against η (the paper's Figure 4)."""
    figure, (val, train) = panels(2)
    for name, line in along_eta(runs).items():
        if len(line) > 1:
            plot_eta(val, line, lambda c: c.val.mean, label=name, **style(line[0]))
            plot_eta(train, line, trained, **style(line[0]))
    val.set(title=f"{title}: validation {unit(runs)}, {runs[0].epochs} epochs", xscale="log")
    train.set(title=f"training {unit(runs)}", xscale="log", xlabel="η (learning rate of the others)")
    if runs[0].is_regression:
        cut(val, [c.val.mean for c in candidates(runs)])
        cut(train, [trained(c) for c in candidates(runs)])
    legend(figure, val)
    return figure


def unit(runs: Sequence[Run]) -> str:
    """What validation measures."""
    return "error (MAE)" if runs[0].is_regression else "accuracy, %"


def trained(candidate: Candidate) -> float:
    """The same measure on the training samples, over the seeds."""
    return float(np.mean([run.last.train for run in candidate.runs]))


@STYLE
def averaging(title: str, runs: Sequence[Run]) -> Figure:
    """Validation of averaged weights beside that of the last ones, against η; below, DFW with each decay."""
    figure, (top, bottom) = panels(2)
    plain = along_eta(runs)
    for name, line in along_eta(runs, averaged=True).items():
        look = style(line[0]) | {"ls": "-"}
        plot_eta(top, plain[name], lambda c: c.val.mean, **look | {"ls": ":", "lw": 1.2})
        plot_eta(top, line, lambda c: c.val.mean, label=name, **look)
    mine = [run for run in runs if run.method.optimizer == "dfw"]
    decays = sorted({decay for run in mine for decay in run.last.val_averaged}, key=float)
    plot_eta(bottom, at_each_eta(candidates(mine)), lambda c: c.val.mean, color=GREY, ls=":", label="none")
    for k, decay in enumerate(decays, 1):
        line = at_each_eta(c for c in candidates(mine, averaged=True) if c.decay == decay)
        plot_eta(
            bottom, line, lambda c: c.val.mean, color=COLORS["dfw"], alpha=0.2 + 0.8 * k / len(decays), label=decay
        )
    what = f"{title}: validation {unit(runs)}, {runs[0].epochs} epochs"
    top.set(title=f"{what}\nsolid: averaged weights, dotted: last weights", xscale="log")
    bottom.set(title="DFW, the decay of the average", xscale="log", xlabel="η (learning rate of the others)")
    bottom.legend(ncols=2)
    legend(figure, top)
    return figure


@STYLE
def regression(title: str, runs: Sequence[Run]) -> Figure:
    """Mean absolute error on validation and on training samples."""
    chosen = choose(runs)
    figure, (val, train) = panels(2)
    for c in chosen:
        curve(val, c, lambda epoch: epoch.val, label=label(c, chosen), **style(c))
        curve(train, c, lambda epoch: epoch.train, **style(c))
    cut(val, [c.val.mean for c in chosen])
    cut(train, [trained(c) for c in chosen])
    val.set_title(f"{title}: validation MAE")
    train.set_title("training MAE")
    by_epoch(val, train)
    legend(figure, val)
    return figure


# Which of them the results allow.

COMPARED = ("dfw", "multistep", "sgd", "adam")  # in the sensitivity study, and with averaged weights


@dataclass(frozen=True)
class Drawing:
    """A figure that can be drawn, the study it belongs to, and what it shows."""

    name: str
    study: str
    caption: str
    draw: Callable[[], Figure]


def drawings(results: Results) -> dict[str, Drawing]:
    """All figures that can be drawn from these results, by name."""
    found = [Drawing("figure-1", "", CAPTIONS["figure-1"], figure_1)]
    for study, runs in results.items():
        for k, task in enumerate(dict.fromkeys(run.task for run in runs)):
            mine = [run for run in runs if run.task == task]
            title = names.study(study) + (f", {mine[0].config['model']}" if k else "")
            for kind, (draw, shown) in _possible(study, mine, results).items():
                name = "-".join([kind, *([study] if study != kind else []), *([str(k + 1)] if k else [])])
                found.append(Drawing(name, study, CAPTIONS[kind], partial(draw, title, shown)))
    return {drawing.name: drawing for drawing in found}


Possible = dict[str, tuple[Callable[[str, list[Run]], Figure], list[Run]]]


def _possible(study: str, runs: list[Run], results: Results) -> Possible:
    """The kinds of figures that the runs of a task allow, with the runs that each shows."""
    tried = grid(runs)
    if study == "sensitivity":
        alike = {
            _identity(run): run
            for other in results.values()
            for run in other
            if (run.task, run.epochs) == (tried[0].task, tried[0].epochs) and run.method.optimizer in COMPARED
        }
        return {"sensitivity": (sensitivity, list(alike.values()))}
    several = any(len(line) > 1 for line in along_eta(tried).values())
    possible: Possible = {}
    if study != "averaging":
        if runs[0].is_regression:
            possible["regression"] = (regression, runs)
        else:
            possible |= {"errors": (errors, runs), "convergence": (convergence, runs)}
            if any(run.method.optimizer == "dfw" for run in runs):
                possible["step-size"] = (step_size, runs)
        if several:
            possible["sensitivity"] = (sensitivity, tried)
    averaged = [run for run in tried if run.last.val_averaged and run.method.optimizer in COMPARED]
    if averaged and several:
        possible["averaging"] = (averaging, averaged)
    return possible


def _identity(run: Run) -> str:
    """The same training, whatever else was measured on the way."""
    beside = ("averages", "device", "data", "test")
    return json.dumps({k: v for k, v in run.config.items() if k not in beside}, sort_keys=True)


CAPTIONS = {
    "figure-1": "The paper's Figure 1, on a network of one weight under the multi-class hinge. SGD believes in a line; "
    "the loss-preserving linearisation keeps the pieces of the loss, and steps closer to the minimum w*. Drawn from "
    "the library's own linearisation and solver, η = 2.2.",
    "errors": "Training and validation error at the chosen setting of each method (the paper's Figure 2). Mean over "
    "the seeds; the band goes from the least to the greatest.",
    "convergence": "Training loss by epoch. DFW minimises a hinge and most others the cross-entropy: each loss has its "
    "own panel, and only the training error below compares all.",
    "step-size": "The step-size that was taken, the mean of each epoch: γη of DFW follows from the data, SGD's "
    "staircase was designed by hand (the paper's Figure 3).",
    "sensitivity": "Training and validation after the last epoch against η, at the best of the other settings (the "
    "paper's Figure 4). Errors above three times the best are cut.",
    "averaging": "Validation with an exponential average of the weights against that of the last weights, at the best "
    "decay for each η; below, DFW with each decay.",
    "regression": "Mean absolute error by epoch at the chosen setting of each method. Errors above three times the "
    "best are cut.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which figures, from which results, to where."""
    parser.add_argument("name", nargs="?", default="all", help="a figure's name, or all (default)")
    parser.add_argument("--list", action="store_true", help="print the names of the figures that can be drawn")
    parser.add_argument("--results", type=Path, default=Path("experiments/results/small"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("out/figures"), help="default: %(default)s")


def main(args: argparse.Namespace) -> None:
    """Write PNG files."""
    possible = drawings(read(args.results))
    if args.list:
        print("\n".join(possible))
        return
    if args.name != "all" and args.name not in possible:
        raise SystemExit(f"no figure named {args.name!r} from {args.results}; there are {', '.join(possible)}, all")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in possible if args.name == "all" else [args.name]:
        file = args.out / f"{name}.png"
        file.write_bytes(png(possible[name].draw()))
        print(file)


@STYLE
def png(figure: Figure) -> bytes:
    """The picture, with nothing in it that changes from day to day."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
