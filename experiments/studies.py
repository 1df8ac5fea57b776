"""The studies: which runs answer which question, at the paper's scale and at one that two CPU cores can handle.

A study first tries a grid on the validation samples, then runs the chosen setting of every optimizer with new seeds
and the test set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from pandas import read_csv

from experiments.config import Config, known
from experiments.optimizers import loss_of

Line = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """``grid``: the runs of the cross-validation. The best of each method then runs for ``epochs`` with every seed.

    ``by`` names the values that decide: the weights' own (""), those of averages, by their decay, or the best of all
    ("any"). Where they do not agree, the choice of each is run. With ``growth``, the factor between two η, the grid of
    a method grows while its best η is at an edge. With ``turns`` the runs take turns, an epoch each: whenever the study
    is stopped, all have had the same time.
    """

    name: str
    grid: tuple[Config, ...]
    epochs: int
    seeds: tuple[int, ...] = (1, 2)
    by: tuple[str, ...] = ("",)
    growth: float = 0.0
    turns: bool = False

    def with_seeds(self, seeds: Iterable[int]) -> Study:
        """The study with these seeds of the chosen runs; where nothing is chosen, with its runs of these seeds."""
        if self.seeds:
            return replace(self, seeds=tuple(seeds))
        return replace(self, grid=tuple(run for run in self.grid if run.seed in set(seeds)))

    def changed(self, **entries: Any) -> Study:
        """The study with these entries of the configs of its grid, those that are given."""
        given = {name: value for name, value in entries.items() if value}
        epochs = given.get("epochs", self.epochs)
        return replace(self, grid=tuple(replace(run, **given) for run in self.grid), epochs=epochs)

    def chosen(self, curves: dict[Config, list[Line]]) -> tuple[Config, ...]:
        """The runs that validation chose: by the best epoch of each run of the grid, as the paper does."""
        best = dict.fromkeys(run for value in self.by for run in self._best(curves, value))
        runs = product(self.seeds, best)  # the complete table of the first seed comes first
        return tuple(replace(run, epochs=self.epochs, seed=seed, test=True) for seed, run in runs)

    def beyond(self, curves: dict[Config, list[Line]]) -> list[Config]:
        """The next runs of a grid that grows."""
        found = []
        for best in self._best(curves, "any") if self.growth else ():
            etas = [run.lr for run in curves if run.method == best.method]
            if best.lr != "auto" and len(etas) < MOST and best.lr in (min(etas), max(etas)):
                lr = best.lr * self.growth if best.lr == max(etas) else best.lr / self.growth
                found.append(replace(best, lr=float(f"{lr:.2g}")))
        return found

    def _best(self, curves: dict[Config, list[Line]], by: str) -> Iterable[Config]:
        """The best run of each method, by the value of its best epoch; diverged runs are not chosen."""
        better, worst = (min, math.inf) if self.grid[0].dataset in LOWER else (max, -math.inf)

        def value(run: Config) -> float:
            seen = [_values(line)[by] if by != "any" else better(_values(line).values()) for line in curves[run]]
            return better(seen) if all(map(math.isfinite, seen)) else worst

        best: dict[tuple[str, ...], Config] = {}
        for run in curves:
            best[run.method] = better((best.get(run.method, run), run), key=value)
        return best.values()


def _values(line: Line) -> dict[str, float]:
    """Validation of the weights (""), and of their averages."""
    return {"": line["val"], **line.get("val_averaged", {})}


@cache
def settings(name: str) -> list[dict[str, Any]]:
    """The settings of a grid in settings.csv, as entries of a config, one for each η."""
    table = read_csv(SETTINGS, comment="#", dtype=str, keep_default_na=False)
    found = []
    for row in table[table.grid == name].drop(columns="grid").to_dict("records"):
        given = {key: float(cell) if key in NUMBERS else cell for key, cell in row.items() if cell}
        found += [given | {"lr": lr if lr == "auto" else float(lr)} for lr in row["lr"].split()]
    return found


def grid(base: Config, *names: str, **axes: Iterable) -> tuple[Config, ...]:
    """The settings of these grids at every point of ``axes``; the loss is the paper's choice where none is given.

    Our own average of the weights is what is evaluated: no other one is made.
    """
    runs = []
    for point in product(*axes.values()):
        for setting in (setting for name in names for setting in settings(name)):
            run = replace(base, **setting | dict(zip(axes, point, strict=True)))
            runs.append(replace(run, loss=run.loss or loss_of(run), averages=() if run.average else run.averages))
    return tuple(dict.fromkeys(runs))


MOST = 7  # values of η, in a grid that grows
TABLES = ("california", "bike")
STRUCTURED = ("ocr-small", "ocr-large", "chunking", "camvid")
PARSING = ("ce", *(f"{s}-{l}" for s in ("spanning", "projective") for l in ("likelihood", "hinge")))
LOWER = (*TABLES, "lm")  # their value is an error, or nats
AVERAGE = ("0.995",)
SETTINGS = Path(__file__).with_name("settings.csv")
NUMBERS = ("momentum", "weight_decay", "memory")


# What has been run: everyone tuned on a task.


@dataclass(frozen=True)
class Plan:
    """The task of a study and the length of the runs that choose η; the length and the seeds of the chosen runs.

    ``losses``: those in which proxsvm is tried in both metrics; in the diagonal one η is of Adam's size, and smaller
    with momentum.
    """

    task: dict[str, Any]
    losses: tuple[str, ...]
    epochs: int
    seeds: tuple[int, ...] = (1, 2)
    grids: tuple[str, ...] = ()  # beside the one that is named after the study


WRN = {"images": 10_000, "held": 2_000}  # WRN-10-1 on a part of the images
HALF = {"epochs": 4, "precision": "bfloat16"}  # half the time of float32
BILSTM = {"model": "bilstm-128", "batch": 64, "momentum": 0.0, "weight_decay": 0.0, "precision": "bfloat16"}
CIFAR100 = {"dataset": "cifar100", "images": 9_000, "held": 1_000, **HALF}
GPT = {"dataset": "lm", "model": "gpt-2-128", "batch": 64, "held": 2000}  # windows of 64 characters, 1,000 steps
PLANS = {
    "cifar10": Plan(WRN | {"epochs": 5}, ("smooth-hinge", "ce"), 20, grids=("cifar",)),
    "cifar10-augmented": Plan(WRN | HALF | {"augment": True}, ("smooth-hinge", "ce"), 20, grids=("cifar",)),
    "cifar100": Plan(CIFAR100, ("smooth-hinge", "ce"), 20, grids=("cifar", "smoothing")),
    "cifar100-augmented": Plan(CIFAR100 | {"augment": True}, ("smooth-hinge", "ce"), 20, grids=("cifar", "smoothing")),
    # On 21,605 sentence pairs, runs of one epoch would choose too small an η.
    "snli": Plan({"dataset": "snli", "epochs": 5, **BILSTM}, ("hinge", "ce"), 5),
    "lm": Plan(GPT | {"epochs": 2}, ("smooth-hinge", "ce"), 2, (1, 2, 3)),
}
PLANS |= {k: Plan({"dataset": k, "model": "mlp", "epochs": 50}, ("l1",), 50, (1, 2, 3), ("tables",)) for k in TABLES}
EVIDENCE = tuple(PLANS)
DIGITS = {"dataset": "digits", "model": "mlp", "batch": 64, "epochs": 30}  # an MLP that interpolates
PLANS["digits"] = Plan(DIGITS, ("ce",), 30, (1, 2, 3), ("tables",))


def evidence(name: str, data: str) -> Study:
    """Every method's grid, and proxsvm with each loss in each metric."""
    plan = PLANS[name]
    base = Config(data=data, averages=AVERAGE, **plan.task)
    runs = grid(base, name, *plan.grids) + grid(base, "variants", loss=plan.losses)
    return Study(name, tuple(dict.fromkeys(runs)), plan.epochs, plan.seeds, by=("", *AVERAGE))


def base_of(task: str, data: str) -> tuple[Config, int]:
    """A task as the studies of all tasks have it, with a loss that everyone can train with; and its complete length.

    The loss is the cross-entropy, ℓ1 on the tables, the likelihood of a structure.
    """
    if task in LENGTHS:
        loss, (short, epochs) = "spanning-likelihood" if task == "parsing" else "likelihood", LENGTHS[task]
        return structured(task, data, loss=loss, epochs=short, averages=AVERAGE), epochs
    plan = PLANS[task]
    return Config(data=data, averages=AVERAGE, loss="l1" if task in TABLES else "ce", **plan.task), plan.epochs


SHORT = {"snli": 2, "lm": 1, "california": 20, "bike": 20}  # epochs, where the long tasks are cut short


def unchosen(name: str, data: str) -> Study:
    """Nothing is chosen. ``fixed-bike``, …: one setting for all tasks, not tuned; every run is complete.

    ``factors-bike``, …: what each part of "nothing set" is worth; ``decades-bike``, …: the error against η;
    ``decay-bike``, …: what weight decay adds to it, in complete runs. Validation only.
    """
    kind, _, task = name.partition("-")
    base, whole = base_of(task, data)
    epochs = whole if kind in ("fixed", "decay") else SHORT.get(task, base.epochs)
    seeds = {"fixed": (1, 2, 3), "decay": (1,)}.get(kind, (base.seed,))
    return Study(name, grid(replace(base, epochs=epochs, test=kind == "fixed"), kind, seed=seeds), epochs, seeds=())


def ablation(name: str, data: str) -> Study:
    """``ablation-cifar10``, …: γ exact and γ ≡ 1, one and three inner steps, hinge and cross-entropy, averages or not.

    At the paper's setting (Euclidean, momentum 0.9) and in the diagonal metric without momentum; of three η the middle
    one has three inner steps. Validation only.
    """
    task = name.partition("-")[2]
    base, _ = base_of(task, data)
    base = replace(base, epochs=SHORT.get(task, base.epochs), weight_decay=0.0)
    hinge = "hinge" if task == "snli" else "smooth-hinge"
    starts = STARTS.get(task) or dict.fromkeys(("l1",) if task in TABLES else (hinge, "ce"), 0.1)
    runs = []
    for loss, eta in starts.items():
        for metric, momentum, tried in (("", 0.9, (eta, 10 * eta, 100 * eta)), ("diagonal", 0.0, (1e-3, 1e-2, 1e-1))):
            setting = replace(base, loss=loss, metric=metric, momentum=momentum)
            for optimizer, lrs in {"dfw": tried, "dfw-full": tried, "multistep": tried[1:2]}.items():
                runs += [replace(setting, optimizer=optimizer, lr=lr) for lr in lrs]
    return Study(name, tuple(runs), base.epochs, seeds=())


def sensitivity(name: str, data: str) -> Study:
    """How far η may be off: 4 epochs of 3,000 images over five decades. Validation only."""
    return Study(name, grid(Config(data=data, epochs=4, images=3_000, held=2_000), name), epochs=4, seeds=())


def averaging(name: str, data: str) -> Study:
    """Which average of the weights, and which η with it, of DFW and of three others: the average chooses."""
    base = Config(data=data, epochs=20, averages=("0.98", "0.99", "0.995", "1/4", "1/2"), precision="bfloat16", **WRN)
    return Study(name, grid(base, name), epochs=20, by=AVERAGE)


# The structured tasks, whose networks and batches are their own.

STARTS = {  # where the grid of a loss starts in the Euclidean metric; CamVid's hinge is a sum over 10,800 pixels
    **{task: {"hinge": 0.03, "likelihood": 0.03} for task in ("ocr-small", "ocr-large", "chunking")},
    "camvid": {"hinge": 1e-5, "likelihood": 0.1},
}
LENGTHS = {"ocr-small": (15, 30), "ocr-large": (3, 6), "chunking": (2, 6), "camvid": (4, 10)}  # to choose η, and chosen
LENGTHS |= {"parsing": (3, 6)}


def structured(task: str, data: str, **options: Any) -> Config:
    given: dict[str, Any] = {"batch": 0, "weight_decay": 0.0, **options}
    return Config(data=data, dataset=task, model="", held=0, **given)


def tuned(name: str, data: str) -> Study:
    """Hinge and likelihood in both metrics, and the likelihood with five peers: three η each, growing."""
    base, step = structured(name, data, epochs=LENGTHS[name][0], averages=("0.99",)), 10**0.5
    starts = [(loss, "dfw", "", 0.0, eta) for loss, eta in STARTS[name].items()]
    starts += [(loss, "dfw", "diagonal", 0.0, 1e-3) for loss in STARTS[name]]
    starts += [("likelihood", "adam", "", 0.0, 1e-3 * step)]
    starts += [("likelihood", peer, "", 0.01, 1e-3 * step) for peer in ("adamw", "nadamw", "soap", "muon")]
    runs = [
        replace(base, loss=loss, optimizer=peer, metric=metric, weight_decay=l2, lr=float(f"{eta * step**k:.2g}"))
        for loss, peer, metric, l2, eta in starts
        for k in (-1, 0, 1)
    ]
    return Study(name, tuple(runs), LENGTHS[name][1], seeds=(1, 2, 3), by=("any",), growth=step)


FIRST: dict[str, dict[str, Any]] = {  # where they are not one seed of 6 epochs; the new structures' peers have averages
    "ocr-small": {"epochs": 30},
    "camvid": {"epochs": 10, "seed": (0, 1)},
    "sentences": {"batch": 128, "seed": (0, 1)},
    "segments": {"epochs": 3, "averages": ("0.99",)},
    "matching": {"averages": ("0.99",)},
}


def first(name: str, data: str) -> Study:
    """``first-chunking``, …: what was measured before everyone was tuned alike; nothing is chosen."""
    task = name.partition("-")[2]
    options = {"epochs": 6, "seed": (0,), **FIRST.get(task, {})}
    seeds, tried = options.pop("seed"), "-".join(name.split("-")[:2])  # both sizes of OCR have the same settings
    base = structured(task, data, test=True, **options)
    return Study(name, grid(base, tried, seed=seeds), base.epochs, seeds=())


def parsing(name: str, data: str) -> Study:
    """Every loss with nothing set, and with three η of proxsvm and of AdamW, growing, in runs of half the length."""
    base = structured(name, data, epochs=3, averages=("0.99",), weight_decay=1e-4)
    return Study(name, grid(base, name, loss=PARSING), epochs=6, seeds=(1, 2, 3), by=("any",), growth=10**0.5)


# What the paper ran.


def cifar_paper(name: str, data: str) -> Study:
    """``cifar10-wrn``, ``cifar100-densenet-augmented``, …: the paper's sections 5.1 and B."""
    dataset, network, *augmented = name.split("-")
    wrn = network == "wrn"
    model, epochs, batch = ("wrn-40-4", 200, 128) if wrn else ("densenet-40-40", 300, 64)
    base = Config(data, dataset, model, epochs=epochs, augment=bool(augmented), device="cuda")
    decays = (1e-4, 5e-4) if wrn else (1e-4,)
    tried, batches = ("paper-augmented", (batch, 2 * batch, 4 * batch)) if augmented else ("paper", (batch,))
    runs = grid(base, tried, weight_decay=decays, batch=batches)
    scheduled = replace(base, schedule="wrn-paper" if wrn else "densenet", batch=batch)
    return Study(name, runs + grid(scheduled, "paper-sgd", weight_decay=decays), epochs)


def snli_paper(name: str, data: str) -> Study:
    """The paper's section 5.2: InferSent's protocol, 20 epochs of batches of 64; the baselines with both losses."""
    base = Config(data=data, dataset="snli", **BILSTM | {"model": "bilstm-2048", "precision": "float32"}, device="cuda")
    return Study(name, grid(base, "paper-snli"), epochs=20)


def lm_paper(name: str, data: str) -> Study:
    """nanoGPT's network for characters on one GPU: the grid of the small study, ten times its steps."""
    small = evidence(name, data)
    bigger = {"model": "gpt-6-384", "epochs": 5, "held": 0, "device": "cuda"}
    return replace(small, grid=tuple(replace(run, **bigger) for run in small.grid), epochs=5)


NIGHTS = {  # the paper's networks and batches, on as much data as a night on two cores allows
    "night-wrn": {"dataset": "cifar10", "model": "wrn-40-4", **WRN, "epochs": 20},
    "night-bilstm": {"dataset": "snli", **BILSTM, "model": "bilstm-2048-100", "images": 20_000, "epochs": 10},
}


def night(name: str, data: str) -> Study:
    """DFW and SGD at the paper's setting, and ours with nothing set, in turns, on a CPU; nothing is chosen."""
    base = Config(data=data, averages=AVERAGE, seed=1, test=True, **NIGHTS[name] | {"precision": "float32"})
    return Study(name, grid(base, name), base.epochs, seeds=(), turns=True)


Maker = Callable[[str, str], Study]
TASKS = (*PLANS, *STRUCTURED)
SMALL: dict[str, Maker] = dict.fromkeys(PLANS, evidence)
SMALL |= {"sensitivity": sensitivity, "averaging": averaging, "parsing": parsing}
SMALL |= {f"{kind}-{task}": unchosen for kind in ("fixed", "factors", "decades", "decay") for task in TASKS}
SMALL |= {f"first-{task}": first for task in (*STRUCTURED, "sentences", "segments", "matching")}
SMALL |= {f"ablation-{task}": ablation for task in TASKS} | {"fixed-parsing": unchosen}
PAPER: dict[str, Maker] = {
    f"{dataset}-{network}{augmented}": cifar_paper
    for dataset, network, augmented in product(("cifar10", "cifar100"), ("wrn", "densenet"), ("", "-augmented"))
}
PAPER |= {"snli": snli_paper, "lm": lm_paper} | dict.fromkeys(NIGHTS, night)
SCALES = {"small": SMALL, "paper": PAPER, "tuned": dict.fromkeys(STRUCTURED, tuned)}


def study_of(name: str, scale: str, data: str) -> Study:
    studies = SCALES[known("scale", scale, SCALES)]
    return studies[known("study", name, studies)](name, data)
