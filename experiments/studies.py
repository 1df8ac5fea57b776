"""The studies: which runs answer which question, at the paper's scale and at one that two CPU cores can handle.

A study first tries a grid on the validation samples, then runs the chosen setting of every optimizer with new seeds
and the test set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
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
    a method grows while its best η is at an edge.
    """

    name: str
    grid: tuple[Config, ...]
    epochs: int
    seeds: tuple[int, ...] = (1, 2)
    by: tuple[str, ...] = ("",)
    growth: float = 0.0

    def with_seeds(self, seeds: Iterable[int]) -> Study:
        """The study with these seeds of the chosen runs; where nothing is chosen, with its runs of these seeds."""
        if self.seeds:
            return replace(self, seeds=tuple(seeds))
        return replace(self, grid=tuple(run for run in self.grid if run.seed in set(seeds)))

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


def grid(
    base: Config, tried: Iterable[dict[str, Any]], schedule: str, only: Collection[str] = (), **axes: Iterable
) -> tuple[Config, ...]:
    """The settings that are tried (``only`` these optimizers), at every point of ``axes``; SGD has the ``schedule``."""
    runs = []
    for setting in (setting for setting in tried if not only or setting["optimizer"] in only):
        own = {"schedule": schedule} if setting["optimizer"] == "sgd" else {}
        for point in product(*axes.values()):
            run = replace(base, **setting, **own, **dict(zip(axes, point, strict=True)))
            runs.append(replace(run, loss=loss_of(run)))
    return tuple(runs)


def etas(*values: float) -> list[dict[str, Any]]:
    return [{"optimizer": "dfw", "lr": lr} for lr in values]


def variants(base: Config, losses: Iterable[str]) -> tuple[Config, ...]:
    """proxsvm with each loss in each metric; in the diagonal one η is of Adam's size, and smaller with momentum."""
    runs: tuple[Config, ...] = ()
    for loss in losses:
        runs += grid(replace(base, loss=loss), etas(0.01, 0.1, 1.0, 10.0), "")
        diagonal = replace(base, loss=loss, metric="diagonal")
        runs += grid(diagonal, etas(1e-4, 1e-3, 1e-2, 1e-1), "", momentum=(0.0, 0.9))
        runs += grid(diagonal, etas(1e-5), "", momentum=(0.9,))
    return runs


MOST = 7  # values of η, in a grid that grows
TABLES = ("california", "bike")
STRUCTURED = ("ocr-small", "ocr-large", "chunking", "camvid")
PARSING = ("ce", *(f"{s}-{l}" for s in ("spanning", "projective") for l in ("likelihood", "hinge")))
LOWER = (*TABLES, "lm")  # their value is an error, or nats
AVERAGE = ("0.995",)
EPOCHS = {"ocr-small": 30, "camvid": 10, "segments": 3}  # of the first runs
AVERAGED = ("segments", "matching")  # there, the peers have an average, too
SETTINGS = Path(__file__).with_name("settings.csv")
NUMBERS = ("momentum", "weight_decay", "memory")
BOTH_LOSSES = ("adagrad", "adam", "amsgrad", "bpgrad", "sgd")  # Table 3 has them with the CE and with the SVM


# What has been run.


def cifar_small(name: str, data: str) -> Study:
    """WRN-10-1 on 10,000 images of CIFAR-10, or 9,000 of CIFAR-100; η is chosen by runs of 4 or 5 epochs."""
    dataset = name.removesuffix("-augmented")
    images, held = (10_000, 2_000) if dataset == "cifar10" else (9_000, 1_000)
    base = Config(data=data, dataset=dataset, epochs=5, images=images, held=held, averages=AVERAGE)
    if name != "cifar10":  # half the time of float32
        base = replace(base, epochs=4, precision="bfloat16", augment=name.endswith("-augmented"))
    tried = settings("cifar")
    runs = grid(base, tried, "wrn-jobs") + grid(base, tried, "", only=("sgd",))  # and without a schedule
    if dataset == "cifar100":  # what smoothing changes
        runs += grid(replace(base, loss="hinge"), etas(0.001, 0.01, 0.1, 1.0, 10.0), "")
    runs += variants(base, ("smooth-hinge", "ce"))
    return Study(name, tuple(dict.fromkeys(runs)), epochs=20, by=("", *AVERAGE))


def snli_small(name: str, data: str) -> Study:
    """A BiLSTM of 128 units on 21,605 sentence pairs. Runs of one epoch would choose too small an η."""
    base = Config(data=data, dataset="snli", model="bilstm-128", batch=64, epochs=5, momentum=0.0, weight_decay=0.0)
    base = replace(base, precision="bfloat16", averages=AVERAGE)
    tried = settings("snli")
    runs = grid(base, tried, "snli") + grid(replace(base, loss="hinge"), tried, "snli", only=BOTH_LOSSES)
    runs += variants(base, ("hinge", "ce"))
    return Study(name, tuple(dict.fromkeys(runs)), epochs=5, by=("", *AVERAGE))


def regression_small(name: str, data: str) -> Study:
    """An MLP on a table with the ℓ1 loss; SGD without a schedule and with one."""
    base = Config(data=data, dataset=name, model="mlp", epochs=50, averages=AVERAGE)
    tried = settings("tables")
    runs = grid(base, tried, "") + grid(base, tried, "wrn-jobs", only=("sgd",))
    runs += variants(base, ("l1",))
    return Study(name, tuple(dict.fromkeys(runs)), epochs=50, seeds=(1, 2, 3), by=("", *AVERAGE))


def lm_small(name: str, data: str) -> Study:
    """A GPT of two layers on SNLI's sentences: two epochs of 64 windows of 64 characters, about 1,000 steps."""
    base = Config(data=data, dataset="lm", model="gpt-2-128", epochs=2, batch=64, held=2000, averages=AVERAGE)
    runs = grid(base, settings("lm"), "") + variants(base, ("smooth-hinge", "ce"))
    finer = replace(base, loss="ce", metric="diagonal")  # half decades, as the others have
    runs += grid(finer, etas(3e-4, 3e-3), "")
    return Study(name, tuple(dict.fromkeys(runs)), epochs=2, seeds=(1, 2, 3), by=("", *AVERAGE))


def unchosen(name: str, data: str) -> Study:
    """Nothing is chosen. ``fixed-bike``, …: one setting for all tasks, not tuned; every run is complete.

    ``factors-bike``, …: what each part of "nothing set" is worth; ``decades-bike``, …: the error against η. Validation
    only; the long tasks are cut short.
    """
    kind, (base, epochs) = name.partition("-")[0], _base(name, data)
    base = replace(base, epochs=SHORT.get(base.dataset, base.epochs), loss=_likelihood(base))
    seeds = (0,)
    if kind == "fixed":
        base, seeds = replace(base, epochs=epochs, test=True), (1, 2, 3)
    runs = [replace(base, **setting, seed=seed) for seed in seeds for setting in settings(kind)]
    runs = [replace(run, averages=()) if run.average else run for run in runs]  # ours is evaluated itself
    return Study(name, tuple(runs), base.epochs, seeds=())


def _likelihood(base: Config) -> str:
    """The loss that everyone can train with: the cross-entropy, ℓ1 on the tables."""
    return "l1" if base.dataset in TABLES else "likelihood" if base.dataset in STRUCTURED else "ce"


def ablation_small(name: str, data: str) -> Study:
    """``ablation-cifar10``, …: γ exact and γ ≡ 1, one and three inner steps, hinge and cross-entropy, averages or not.

    At the paper's setting (Euclidean, momentum 0.9) and in the diagonal metric without momentum; of three η the middle
    one has three inner steps. Validation only; the long tasks are cut short.
    """
    base, _ = _base(name, data)
    base = replace(base, epochs=SHORT.get(base.dataset, base.epochs), weight_decay=0.0)
    hinge = "hinge" if base.dataset == "snli" else "smooth-hinge"
    losses = ("l1",) if base.dataset in TABLES else (hinge, "ce")
    starts = STARTS.get(base.dataset) or dict.fromkeys(losses, 0.1)
    runs = []
    for loss, eta in starts.items():
        for metric, momentum, tried in (("", 0.9, (eta, 10 * eta, 100 * eta)), ("diagonal", 0.0, (1e-3, 1e-2, 1e-1))):
            setting = replace(base, loss=loss, metric=metric, momentum=momentum)
            for optimizer, lrs in {"dfw": tried, "dfw-full": tried, "multistep": tried[1:2]}.items():
                runs += [replace(setting, optimizer=optimizer, lr=lr) for lr in lrs]
    return Study(name, tuple(runs), base.epochs, seeds=())


SHORT = {"snli": 2, "lm": 1, "california": 20, "bike": 20}  # epochs


def _base(name: str, data: str) -> tuple[Config, int]:
    """The task of a study named after it, and the length of its final runs."""
    task = name.partition("-")[2]
    study = (tuned if task in STRUCTURED else SMALL[task])(task, data)
    return replace(study.grid[0], loss="", schedule="", averages=AVERAGE), study.epochs


# The structured tasks, whose networks and batches are their own.

STARTS = {  # where the grid of a loss starts in the Euclidean metric; CamVid's hinge is a sum over 10,800 pixels
    **{task: {"hinge": 0.03, "likelihood": 0.03} for task in ("ocr-small", "ocr-large", "chunking")},
    "camvid": {"hinge": 1e-5, "likelihood": 0.1},
}
LENGTHS = {"ocr-small": (15, 30), "ocr-large": (3, 6), "chunking": (2, 6), "camvid": (4, 10)}  # to choose η, and chosen


def tuned(name: str, data: str) -> Study:
    """Hinge and likelihood in both metrics, and the likelihood with five peers: three η each, growing."""
    base = Config(data=data, dataset=name, model="", batch=0, held=0, epochs=LENGTHS[name][0], weight_decay=0.0)
    base, step = replace(base, averages=("0.99",)), 10**0.5
    starts = [(loss, "dfw", "", eta) for loss, eta in STARTS[name].items()]
    starts += [(loss, "dfw", "diagonal", 1e-3) for loss in STARTS[name]]
    starts += [("likelihood", peer, "", 1e-3 * step) for peer in ("adam", "adamw", "nadamw", "soap", "muon")]
    runs = [
        replace(base, loss=loss, optimizer=optimizer, metric=metric, lr=float(f"{eta * step**k:.2g}"))
        for loss, optimizer, metric, eta in starts
        for k in (-1, 0, 1)
    ]
    runs = [replace(run, weight_decay=0.01) if run.optimizer not in ("dfw", "adam") else run for run in runs]
    return Study(name, tuple(runs), LENGTHS[name][1], seeds=(1, 2, 3), by=("any",), growth=step)


def first(name: str, data: str) -> Study:
    """``first-chunking``, …: what was measured before everyone was tuned alike; nothing is chosen."""
    task = name.partition("-")[2]
    base = Config(data=data, dataset=task, model="", held=0, weight_decay=0.0, test=True)
    base = replace(base, batch=128 if task == "sentences" else 0, epochs=EPOCHS.get(task, 6))
    seeds, tried = (0, 1) if task in ("camvid", "sentences") else (0,), settings("-".join(name.split("-")[:2]))
    runs = [replace(base, seed=seed, **setting) for seed in seeds for setting in tried]
    runs = [replace(run, averages=("0.99",)) if task in AVERAGED and not run.average else run for run in runs]
    return Study(name, tuple(runs), base.epochs, seeds=())


def sensitivity_small(name: str, data: str) -> Study:
    """How far η may be off: 4 epochs of 3,000 images over five decades. Validation only."""
    base = Config(data=data, epochs=4, images=3_000, held=2_000)
    return Study(name, grid(base, settings("sensitivity"), "wrn-jobs"), epochs=4, seeds=())


def averaging_small(name: str, data: str) -> Study:
    """Which average of the weights, and which η with it, of DFW and of three others: the average chooses."""
    base = Config(data=data, epochs=20, images=10_000, held=2_000, averages=("0.98", "0.99", "0.995", "1/4", "1/2"))
    base = replace(base, precision="bfloat16")
    return Study(name, grid(base, settings("averaging"), ""), epochs=20, by=AVERAGE)


def parsing_small(name: str, data: str) -> Study:
    """Every loss with nothing set, and with three η of proxsvm and of AdamW, growing, in runs of half the length."""
    base = Config(data=data, dataset=name, model="", batch=0, held=0, epochs=3, averages=("0.99",))
    runs = [replace(base, loss=loss, **setting) for loss in PARSING for setting in settings(name)]
    runs = [replace(run, averages=()) if run.average else run for run in runs]
    return Study(name, tuple(runs), epochs=6, seeds=(1, 2, 3), by=("any",), growth=10**0.5)


# What the paper ran.


def cifar_paper(name: str, data: str) -> Study:
    """``cifar10-wrn``, ``cifar100-densenet-augmented``, …: the paper's sections 5.1 and B."""
    dataset, network, *rest = name.split("-")
    wrn = network == "wrn"
    model, epochs, batch = ("wrn-40-4", 200, 128) if wrn else ("densenet-40-40", 300, 64)
    base = Config(data=data, dataset=dataset, model=model, epochs=epochs, batch=batch, augment=bool(rest))
    base = replace(base, device="cuda")
    decays = (1e-4, 5e-4) if wrn else (1e-4,)
    schedule = "wrn-paper" if wrn else "densenet"
    tried = settings("paper")
    if not rest:
        return Study(name, grid(base, tried, schedule, weight_decay=decays), base.epochs)
    batches = tuple(base.batch * times for times in (1, 2, 4))
    runs = grid(base, tried, schedule, only=("dfw", "amsgrad"), weight_decay=decays, batch=batches)
    return Study(name, runs + grid(base, tried, schedule, only=("sgd",), weight_decay=decays), base.epochs)


def snli_paper(name: str, data: str) -> Study:
    """The paper's section 5.2: InferSent's protocol, 20 epochs of batches of 64."""
    base = Config(data=data, dataset="snli", model="bilstm-2048", batch=64, momentum=0.0, weight_decay=0.0)
    base = replace(base, device="cuda")
    tried = settings("paper-snli")
    again = grid(replace(base, loss="hinge"), tried, "snli", only=BOTH_LOSSES)
    return Study(name, grid(base, tried, "snli") + again, epochs=20)


def lm_paper(name: str, data: str) -> Study:
    """nanoGPT's network for characters on one GPU: the grid of the small study, ten times its steps."""
    small = lm_small(name, data)
    bigger = {"model": "gpt-6-384", "epochs": 5, "held": 0, "device": "cuda"}
    return replace(small, grid=tuple(replace(run, **bigger) for run in small.grid), epochs=5)


Maker = Callable[[str, str], Study]
SMALL: dict[str, Maker] = {
    **dict.fromkeys(("cifar10", "cifar10-augmented", "cifar100", "cifar100-augmented"), cifar_small),
    "snli": snli_small,
    **dict.fromkeys(TABLES, regression_small),
    "sensitivity": sensitivity_small,
    "averaging": averaging_small,
    "lm": lm_small,
    "parsing": parsing_small,
}
EVIDENCE = ("cifar10", "cifar10-augmented", "cifar100", "cifar100-augmented", "snli", "lm", *TABLES)
SMALL |= {f"{kind}-{task}": unchosen for kind in ("fixed", "factors", "decades") for task in (*EVIDENCE, *STRUCTURED)}
SMALL |= {f"first-{task}": first for task in (*STRUCTURED, "sentences", *AVERAGED)}
SMALL |= {f"ablation-{task}": ablation_small for task in (*EVIDENCE, *STRUCTURED)}
PAPER: dict[str, Maker] = {
    **{
        f"{dataset}-{network}{augmented}": cifar_paper
        for dataset, network, augmented in product(("cifar10", "cifar100"), ("wrn", "densenet"), ("", "-augmented"))
    },
    "snli": snli_paper,
    "lm": lm_paper,
}
SCALES = {"small": SMALL, "paper": PAPER, "tuned": dict.fromkeys(STRUCTURED, tuned)}


def study_of(name: str, scale: str, data: str) -> Study:
    studies = SCALES[known("scale", scale, SCALES)]
    return studies[known("study", name, studies)](name, data)
