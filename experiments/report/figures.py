"""The figures. Each takes a title and the runs of one task, and returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.report import names
from experiments.report.approximation import W_T, approximation
from experiments.report.results import Results, Run
from experiments.report.selection import Candidate, best, candidates, choose
from experiments.report.style import (
    BLACK,
    COLORS,
    GREY,
    STYLE,
    WIDTH,
    by_epoch,
    curve,
    cut,
    label,
    legend,
    panels,
    style,
)

AVERAGE = "0.995"  # the decay that all studies have
LOST = 10  # times the lowest error
FLOOR = 0.01  # per cent of error, where a logarithmic axis ends


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
    """Training and validation error of every method, at the setting that validation chose (the paper's Figure 2).

    Below them, where there are any, the validation error of averaged weights.
    """
    chosen, averaged = choose(runs), choose(runs, averaged=True)
    figure, axes = panels(3 if averaged else 2, 2.2)
    train, val = axes[:2]
    for c in chosen:
        curve(train, c, lambda epoch: 100 - epoch.train, label=label(c, chosen), **style(c))
        curve(val, c, lambda epoch: 100 - epoch.val, **style(c))
    for c in averaged:
        curve(axes[2], c, lambda epoch: 100 - epoch.val_averaged[c.decay], **style(c))  # noqa: B023
    train.set_title(f"{title}: training error, %")
    val.set_title("validation error, %")
    if averaged:
        axes[2].set_title("validation error of the averaged weights, %")
    by_epoch(*axes)
    legend(figure, train)
    return figure


@STYLE
def convergence(title: str, runs: Sequence[Run]) -> Figure:
    """Training loss, in one panel per loss because their values are not comparable, and training error."""
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
    """DFW's γη, next to the staircase that was designed for SGD (the paper's Figure 3)."""
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
    """A value against η; seeds are averaged, diverged runs are left out."""
    y = np.array([value(c) for c in line], dtype=float)
    y[~np.isfinite(y)] = np.nan
    constant = any(c.method.optimizer == "sgd" and not c.method.scheduled for c in line)
    ax.plot([c.eta for c in line], y, marker="^" if constant else "o", ms=4, **look)


@STYLE
def sensitivity(title: str, runs: Sequence[Run]) -> Figure:
    """Validation accuracy of the best epoch, and training accuracy of the last, against η (the paper's Figure 4)."""
    figure, (val, train) = panels(2)
    for name, line in along_eta(runs).items():
        if len(line) > 1:
            plot_eta(val, line, lambda c: c.val.mean, label=name, **style(line[0]))
            plot_eta(train, line, trained, **style(line[0]))
    val.set(title=f"{title}: validation {unit(runs)}, {runs[0].epochs} epochs", xscale="log")
    train.set(title=f"training {unit(runs)}", xscale="log", xlabel="η (learning rate of the others)")
    if runs[0].lower_is_better:
        cut(val, [c.val.mean for c in candidates(runs)])
        cut(train, [trained(c) for c in candidates(runs)])
    legend(figure, val)
    return figure


def unit(runs: Sequence[Run]) -> str:
    """What validation measures."""
    return runs[0].unit


def trained(candidate: Candidate) -> float:
    """The same measure on the training samples, over the seeds."""
    return float(np.mean([run.last.train for run in candidate.runs]))


@STYLE
def averaging(title: str, runs: Sequence[Run]) -> Figure:
    """Validation with averaged weights and without, against η; below, DFW with each decay if there are several."""
    mine = [run for run in runs if run.method.optimizer == "dfw"]
    decays = sorted({decay for run in mine for decay in run.last.val_averaged}, key=Fraction)
    figure, axes = panels(2 if len(decays) > 1 else 1)
    plain = along_eta(runs)
    for name, line in along_eta(runs, averaged=True).items():
        look = style(line[0]) | {"ls": "-"}
        plot_eta(axes[0], plain[name], lambda c: c.val.mean, **look | {"ls": ":", "lw": 1.2})
        plot_eta(axes[0], line, lambda c: c.val.mean, label=name, **look)
    what = f"{title}: validation {unit(runs)}, {runs[0].epochs} epochs"
    axes[0].set(title=f"{what}\nsolid: averaged weights, dotted: without", xscale="log")
    for ax in axes[1:]:
        plot_eta(ax, at_each_eta(candidates(mine)), lambda c: c.val.mean, color=GREY, ls=":", label="none")
        for k, decay in enumerate(decays, 1):
            line = at_each_eta(c for c in candidates(mine, averaged=True) if c.decay == decay)
            look = {"color": COLORS["dfw"], "alpha": 0.2 + 0.8 * k / len(decays), "label": decay}
            plot_eta(ax, line, lambda c: c.val.mean, **look)
        ax.set(title="DFW, the decay of the average", xscale="log")
        ax.legend(ncols=3, frameon=True, framealpha=0.6, loc="lower center", edgecolor="none")
    axes[-1].set_xlabel("η (learning rate of the others)")
    for ax in axes if runs[0].lower_is_better else ():
        cut(ax, [c.val.mean for c in candidates(runs, averaged=True)])
    legend(figure, axes[0])
    return figure


@STYLE
def gamma(studies: Results) -> Figure:
    """What γ contributes on each task: validation of the averages with the exact γ and with γ ≡ 1, against η."""
    sides = (("", "Euclidean, momentum 0.9"), ("diagonal", "diagonal, no momentum"))
    figure = Figure(figsize=(1.5 * WIDTH, 1.8 * len(studies) + 0.6), layout="constrained")
    rows = figure.subplots(len(studies), 2, squeeze=False, sharey="row")
    for k, (axes, (name, runs)) in enumerate(zip(rows, studies.items(), strict=True)):
        for ax, (metric, title) in zip(axes, sides, strict=True):
            mine = [run for run in runs if run.method.metric == metric]
            _exact_and_full(ax, mine, LOST * np.nanmin([run.best(AVERAGE) for run in runs]))
            etas = sorted({run.config["lr"] for run in mine})
            ax.set(xscale="log", title="" if k else title)
            ax.set_xticks(etas, [f"{e:g}" if e >= 1e-3 else f"{e:.0e}".replace("-0", "-") for e in etas])
            if runs[0].lower_is_better:
                ax.set_yscale("log")
                ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
                ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            ax.minorticks_off()
            ax.margins(0.08, 0.25)  # room for the γ
        axes[0].set_ylabel(f"{names.study(name.removeprefix('ablation-'))}\n{runs[0].unit}")
    for ax in rows[-1]:
        ax.set_xlabel("η")
    handles = {text: h for ax in rows.flat for h, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=2)
    return figure


def _exact_and_full(ax: Axes, runs: Sequence[Run], lost: float) -> None:
    """Both lines of each loss; γ above, or below, the points of the exact one; errors above ``lost`` are at the top."""
    for run_loss in dict.fromkeys(run.method.loss for run in runs):
        smooth = run_loss in ("ce", "likelihood")
        kind, color = ("cross-entropy, likelihood", COLORS["adam"]) if smooth else ("hinge, ℓ1", COLORS["dfw"])
        for optimizer, ls, what, gone in (("dfw", "-", "γ exact", "o"), ("dfw-full", "--", "γ ≡ 1", "x")):
            line = sorted(
                (run for run in runs if (run.method.loss, run.method.optimizer) == (run_loss, optimizer)),
                key=lambda run: run.config["lr"],
            )
            x, y = [run.config["lr"] for run in line], [run.best(AVERAGE) for run in line]
            y = [np.inf if run.lower_is_better and value > lost else value for run, value in zip(line, y, strict=True)]
            ax.plot(x, y, ls, marker="o", ms=4, color=color, label=f"{kind}: {what}")
            for at, value, run in zip(x, y, line, strict=True):
                if not np.isfinite(value):
                    ax.plot(at, 1, gone, color=color, mfc="none", transform=ax.get_xaxis_transform(), clip_on=False)
                elif optimizer == "dfw":
                    place = {"y": 1, "va": "top"} if "hinge" in run_loss else {"y": 0.02, "va": "bottom"}
                    place |= {"transform": ax.get_xaxis_transform(), "ha": "center", "fontsize": 7}
                    ax.text(at, s=f"{run.last.gamma:.2f}", color=color, **place)


@STYLE
def regression(title: str, runs: Sequence[Run]) -> Figure:
    """The error on validation and on training samples."""
    chosen = choose(runs)
    figure, (val, train) = panels(2)
    for c in chosen:
        curve(val, c, lambda epoch: epoch.val, label=label(c, chosen), **style(c))
        curve(train, c, lambda epoch: epoch.train, **style(c))
    cut(val, [c.val.mean for c in chosen])
    cut(train, [trained(c) for c in chosen])
    val.set_title(f"{title}: validation {unit(runs)}")
    train.set_title(f"training {unit(runs)}")
    by_epoch(val, train)
    legend(figure, val)
    return figure
