"""Draw the figures of the report as PNG files, from the results of the sweeps.

python -m experiments figure --list                       # what can be drawn from the existing results
python -m experiments figure sensitivity-cifar10
python -m experiments figure all --out docs/pictures/experiments
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from experiments.report import names
from experiments.report.figures import (
    along_eta,
    averaging,
    convergence,
    errors,
    figure_1,
    gamma,
    regression,
    sensitivity,
    step_size,
)
from experiments.report.results import Results, Run, read
from experiments.report.selection import grid
from experiments.report.style import png

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
    if ablated := {name: runs for name, runs in results.items() if name.startswith("ablation-")}:
        found.append(Drawing("gamma", "", CAPTIONS["gamma"], partial(gamma, ablated)))
    for study, runs in results.items():
        if study in ablated or study.startswith("fixed-"):
            continue  # they have tables in common
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
    if not any(math.isfinite(run.last.train) for run in runs):
        return {}  # the structured tasks measure nothing but validation
    if study == "sensitivity":
        alike = {
            _identity(run): run
            for other in results.values()
            for run in other
            if (run.task, run.epochs) == (tried[0].task, tried[0].epochs) and run.method.optimizer in COMPARED
        }
        return {"sensitivity": (sensitivity, list(alike.values()))}
    possible: Possible = {}
    if study != "averaging":
        if runs[0].lower_is_better:
            possible["regression"] = (regression, runs)
        else:
            possible |= {"errors": (errors, runs), "convergence": (convergence, runs)}
        if any(run.method.optimizer == "dfw" for run in runs):
            possible["step-size"] = (step_size, runs)
        if any(len(line) > 1 for line in along_eta(tried).values()):
            possible["sensitivity"] = (sensitivity, tried)
    averaged = [run for run in tried if run.last.val_averaged and run.method.optimizer in COMPARED]
    if any(len(line) > 1 for line in along_eta(averaged).values()):
        possible["averaging"] = (averaging, averaged)
    return possible


def _identity(run: Run) -> str:
    """The same training, whatever else was measured on the way."""
    beside = ("averages", "precision", "device", "data", "test")
    return json.dumps({k: v for k, v in run.config.items() if k not in beside}, sort_keys=True)


CAPTIONS = {
    "figure-1": "The paper's Figure 1, on a network of one weight under the multi-class hinge. SGD's model is a line; "
    "the loss-preserving linearisation keeps the pieces of the loss, and steps closer to the minimum w*. Drawn from "
    "the library's own linearisation and solver, η = 2.2.",
    "errors": "Training and validation error at the chosen setting of each method (the paper's Figure 2). Mean over "
    "the seeds; the band goes from the smallest to the largest.",
    "convergence": "Training loss by epoch. DFW minimises a hinge and most others the cross-entropy: each loss has its "
    "own panel, and only the training error below is comparable across all.",
    "step-size": "The step-size, as the mean of each epoch: DFW's γη follows from the data, SGD's "
    "staircase was designed by hand (the paper's Figure 3).",
    "sensitivity": "Validation at the best epoch and training at the last against η, at the best of the other "
    "settings (the paper's Figure 4). Errors above 1.5 times the best are cut.",
    "averaging": "Validation with an exponential average of the weights and without, at the best decay for each η; "
    "below, DFW with each decay, where several were tried.",
    "gamma": "Validation of averaged weights against η, with the exact γ (solid) and with γ ≡ 1 (dashed). The numbers "
    "are the mean γ of the last epoch. At the top, a ring for the exact γ and a cross for γ ≡ 1: diverged, or above "
    "ten times the lowest error. Errors have a logarithmic scale. One seed.",
    "regression": "The error by epoch at the chosen setting of each method. Errors above 1.5 times the best are cut.",
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
