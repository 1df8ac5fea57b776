"""The studies: which runs answer which question, at the paper's scale and at one that two CPU cores can bear.

A study first tries a grid on the validation samples, then runs what they chose of every optimizer again, with new seeds
and the test set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from experiments.config import Config, known
from experiments.optimizers import loss_of

Line = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """``grid``: the runs of the cross-validation. The best of each method then runs ``epochs`` long with every seed.

    A method is an optimizer with its loss and schedule. ``by`` is the decay of the average whose value is compared;
    empty: the weights' own.
    """

    name: str
    grid: tuple[Config, ...]
    epochs: int
    seeds: tuple[int, ...] = (1, 2)
    by: str = ""

    def chosen(self, curves: dict[Config, list[Line]]) -> tuple[Config, ...]:
        """The runs that validation chose: by the best epoch of each run of the grid, as the paper does."""
        better, worst = (min, math.inf) if self.grid[0].dataset in TABLES else (max, -math.inf)
        value: dict[Config, float] = {}
        for run, curve in curves.items():
            seen = [line["val_averaged"][self.by] if self.by else line["val"] for line in curve]
            value[run] = better(seen) if all(map(math.isfinite, seen)) else worst  # what diverged is not chosen
        best: dict[tuple[str, ...], Config] = {}
        for run in self.grid:
            method = (run.optimizer, run.loss, run.schedule)
            best[method] = better((best.get(method, run), run), key=value.__getitem__)
        runs = product(self.seeds, best.values())  # a whole table of the first seed comes first
        return tuple(replace(run, epochs=self.epochs, seed=seed, test=True) for seed, run in runs)


def grid(base: Config, powers: dict[str, Iterable[float]], schedule: str, **axes: Iterable) -> tuple[Config, ...]:
    """Every optimizer at every η of its own, and at every point of ``axes``; SGD alone has a schedule."""
    runs = []
    for name, etas in powers.items():
        for lr, *point in product(etas, *axes.values()):
            entries = dict(zip(axes, point, strict=True))
            run = replace(base, optimizer=name, lr=lr, schedule=schedule if name == "sgd" else "", **entries)
            runs.append(replace(run, loss=loss_of(run)))
    return tuple(runs)


TABLES = ("california", "bike")
PAPER_POWERS = {  # the grids of the appendix
    "dfw": (0.01, 0.1, 1.0, 10.0),
    "sgd": (0.1,),
    "adagrad": (0.001, 0.01, 0.1, 1.0),
    "adam": (1e-5, 1e-4, 1e-3, 1e-2),
    "amsgrad": (1e-5, 1e-4, 1e-3, 1e-2),
    "bpgrad": (0.001, 0.01, 0.1, 1.0),
}
POWERS = {  # around each method's published setting
    "dfw": (0.01, 0.1, 1.0),
    "sgd": (0.01, 0.1, 1.0),
    "adagrad": (0.001, 0.01, 0.1),
    "adam": (1e-4, 1e-3, 1e-2),
    "amsgrad": (1e-4, 1e-3, 1e-2),
    "bpgrad": (0.01, 0.1, 1.0),
    "alig": (0.01, 0.1, 1.0),
    "momo": (0.1, 1.0, 10.0),
    "prodigy": (1.0,),  # its authors' for every task
    "schedulefree": (0.1, 1.0, 10.0),
}
BOTH_LOSSES = ("adagrad", "adam", "amsgrad", "bpgrad", "sgd")  # Table 3 has them with the CE and with the SVM


# What runs here.


def cifar_small(name: str, data: str) -> Study:
    """WRN-10-1 on 10,000 images of CIFAR-10, or 9,000 of CIFAR-100; η is chosen by runs of 4 or 5 epochs."""
    dataset = name.removesuffix("-augmented")
    images, held = (10_000, 2_000) if dataset == "cifar10" else (9_000, 1_000)
    base = Config(data=data, dataset=dataset, epochs=5, images=images, held=held, averages=("0.995",))
    if name != "cifar10":  # half the time of float32
        base = replace(base, epochs=4, precision="bfloat16", augment=name.endswith("-augmented"))
    runs = grid(base, POWERS, "wrn-jobs")
    if dataset == "cifar100":  # what smoothing does
        runs += grid(replace(base, loss="hinge"), {"dfw": POWERS["dfw"]}, "")
    return Study(name, runs, epochs=20)


def snli_small(name: str, data: str) -> Study:
    """A BiLSTM of 128 units on 21,605 sentence pairs. Runs of one epoch would choose too small an η."""
    base = Config(data=data, dataset="snli", model="bilstm-128", batch=64, epochs=5, momentum=0.0, weight_decay=0.0)
    base = replace(base, precision="bfloat16")
    powers = {
        "dfw": (0.01, 0.1, 1.0, 10.0),
        "sgd": (0.01, 0.1, 1.0),
        "adagrad": (0.001, 0.01, 0.1),
        "adam": (1e-4, 1e-3, 1e-2),
        "amsgrad": (1e-4, 1e-3, 1e-2),
        "bpgrad": (0.01, 0.1, 1.0),
    }
    again = {optimizer: powers[optimizer] for optimizer in BOTH_LOSSES}
    return Study(name, grid(base, powers, "snli") + grid(replace(base, loss="hinge"), again, "snli"), epochs=5)


def regression_small(name: str, data: str) -> Study:
    """An MLP on a table with the ℓ1 loss; SGD without a schedule and with one."""
    base = Config(data=data, dataset=name, model="mlp", epochs=50, averages=("0.995",))
    etas = (0.001, 0.01, 0.1, 1.0)
    powers = {"dfw": etas, "sgd": etas, "adam": (1e-4, 1e-3, 1e-2, 1e-1)}
    return Study(name, grid(base, powers, "") + grid(base, {"sgd": etas}, "wrn-jobs"), epochs=50, seeds=(1, 2, 3))


def sensitivity_small(name: str, data: str) -> Study:
    """How far η may be off: 4 epochs of 3,000 images over five decades. Validation only."""
    base = Config(data=data, epochs=4, images=3_000, held=2_000)
    etas = (0.001, 0.01, 0.1, 1.0, 10.0)
    powers = {"dfw": etas, "sgd": etas, "adam": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1), "multistep": etas}
    return Study(name, grid(base, powers, "wrn-jobs"), epochs=4, seeds=())


def averaging_small(name: str, data: str) -> Study:
    """Which average of the weights, and which η with it, of DFW and of three others: the average chooses."""
    base = Config(data=data, epochs=20, images=10_000, held=2_000, averages=("0.98", "0.99", "0.995", "1/4", "1/2"))
    base = replace(base, precision="bfloat16")
    etas = (0.1, 0.3, 1.0)
    powers = {"dfw": etas, "adam": (0.001, 0.003, 0.01), "bpgrad": etas, "alig": (0.3, 1.0, 3.0)}
    return Study(name, grid(base, powers, ""), epochs=20, by="0.995")


# What the paper ran.


def cifar_paper(name: str, data: str) -> Study:
    """``cifar10-wrn``, ``cifar100-densenet-augmented``, …: the paper's sections 5.1 and B."""
    dataset, network, *rest = name.split("-")
    wrn = network == "wrn"
    base = Config(
        data=data,
        dataset=dataset,
        model="wrn-40-4" if wrn else "densenet-40-40",
        epochs=200 if wrn else 300,
        batch=128 if wrn else 64,
        augment=bool(rest),
        device="cuda",
    )
    decays = (1e-4, 5e-4) if wrn else (1e-4,)
    schedule = "wrn-paper" if wrn else "densenet"
    if not rest:
        return Study(name, grid(base, PAPER_POWERS, schedule, weight_decay=decays), base.epochs)
    batches = tuple(base.batch * times for times in (1, 2, 4))
    adaptive = {optimizer: PAPER_POWERS[optimizer] for optimizer in ("dfw", "amsgrad")}
    runs = grid(base, adaptive, schedule, weight_decay=decays, batch=batches)
    return Study(name, runs + grid(base, {"sgd": (0.1,)}, schedule, weight_decay=decays), base.epochs)


def snli_paper(name: str, data: str) -> Study:
    """The paper's section 5.2: InferSent's protocol, 20 epochs of batches of 64."""
    base = Config(data=data, dataset="snli", model="bilstm-2048", batch=64, momentum=0.0, weight_decay=0.0)
    base = replace(base, device="cuda")
    powers = PAPER_POWERS | {
        "dfw": (0.1, 1.0, 10.0),
        "sgd": (0.01, 0.1, 1.0, 10.0),
        "adagrad": (0.001, 0.01, 0.1),
        "bpgrad": (0.001, 0.01, 0.1, 1.0, 10.0),
    }
    again = {optimizer: powers[optimizer] for optimizer in BOTH_LOSSES}
    return Study(name, grid(base, powers, "snli") + grid(replace(base, loss="hinge"), again, "snli"), epochs=20)


Maker = Callable[[str, str], Study]
SMALL: dict[str, Maker] = {
    **dict.fromkeys(("cifar10", "cifar10-augmented", "cifar100", "cifar100-augmented"), cifar_small),
    "snli": snli_small,
    **dict.fromkeys(TABLES, regression_small),
    "sensitivity": sensitivity_small,
    "averaging": averaging_small,
}
PAPER: dict[str, Maker] = {
    **{
        f"{dataset}-{network}{augmented}": cifar_paper
        for dataset, network, augmented in product(("cifar10", "cifar100"), ("wrn", "densenet"), ("", "-augmented"))
    },
    "snli": snli_paper,
}
SCALES = {"small": SMALL, "paper": PAPER}


def study_of(name: str, scale: str, data: str) -> Study:
    studies = SCALES[known("scale", scale, SCALES)]
    return studies[known("study", name, studies)](name, data)
