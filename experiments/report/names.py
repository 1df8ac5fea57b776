"""The names of optimizers, losses, studies and settings in tables and figures."""

from __future__ import annotations

from collections.abc import Iterable

from pandas import DataFrame

from experiments import optimizers
from experiments.config import Config, Method
from experiments.report.results import WORDS, Candidate
from experiments.studies import KINDS, settings

OPTIMIZERS = {key: recipe.name for key, recipe in optimizers.OPTIMIZERS.items()} | {"sgd*": "SGD*"}
LOSSES, STUDIES = WORDS["losses"].to_dict(), WORDS["studies"].to_dict()
FIELDS = {"lr": "η", "weight_decay": "l₂"}
AVERAGED = " + average"
BASELINE = "AdamW, constant"  # whose training time the others have


def optimizer(method: Method) -> str:
    """``DFW``, ``proxsvm, diagonal``, ``SGD, schedule``, ``SGD, constant``: SGD and AdamW say which of the two it is.

    DFW is the paper's single step in the Euclidean metric.
    """
    ours = method.optimizer == "dfw" and method.metric
    name = "proxsvm" if ours else OPTIMIZERS.get(method.optimizer, method.optimizer)
    rate = "schedule" if method.scheduled else "constant" if method.optimizer in ("sgd", "adamw") else ""
    return ", ".join(filter(None, (name, rate, method.metric, "η = auto" if method.auto else "")))


def method(method: Method, averaged: bool = False) -> str:
    """``DFW + average, hinge``: the optimizer, with its loss where that is not the usual one."""
    ours = method.optimizer in ("dfw", "dfw-full", "multistep")
    usual = ("smooth-hinge", "l1") if ours else ("ce", "l1", "likelihood")
    unusual = f", {loss(method.loss)}" if method.loss not in usual else ""
    return optimizer(method) + AVERAGED * averaged + unusual


def recommended(config: Config, averaged: bool = False) -> str:
    """``proxsvm, nothing set``, ``proxsvm, diagonal, η = 0.01, no momentum``, ``AdamW, constant + average``.

    A method at one fixed setting; of several η of a peer, all but the first are named.
    """
    said, method = optimizer(config.method), config.method
    if method.optimizer != "dfw":
        fixed = (s for s in settings("fixed") if s["optimizer"] == method.optimizer)
        first = next((s["lr"] for s in fixed if s.get("schedule", "") == config.schedule), config.lr)
        said += f", lr = {config.lr:g}" * (config.lr != first)
    elif config.memory:
        said = "proxsvm, nothing set" if (method.metric, method.auto) == ("kronecker", True) else f"{said}, memory"
    elif not method.auto:
        said += f", η = {config.lr:g}, " + (f"momentum {config.momentum:g}" if config.momentum else "no momentum")
    return said + AVERAGED * averaged


def loss(name: str) -> str:
    return LOSSES.get(name, name)


def study(name: str) -> str:
    """The title of a study; those of the paper's scale also name the network.

    >>> study("cifar10"), study("cifar100-wrn-augmented"), study("fixed-lm")
    ('CIFAR-10', 'CIFAR-100, WRN, with augmentation', 'Language model')
    """
    task = name.partition("-")[2] if kind(name) else ""
    return ", ".join(STUDIES.get(part, part) for part in (task or name).split("-"))


def kind(study: str) -> str:
    """``fixed``, ``ablation``, … for the studies that have tables and figures in common."""
    first = study.partition("-")[0]
    return first if first in (*KINDS, "night") else ""


def count(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number} {noun}{'s' * (number != 1)}"


def runs(found: DataFrame) -> str:
    """``28 runs of 5 epochs, 20 runs of 20 epochs``."""
    lengths = found[found.decay == ""].epochs.value_counts().sort_index().items()
    return ", ".join(f"{count(number, 'run')} of {count(length, 'epoch')}" for length, number in lengths)


def setting(candidate: Candidate, group: Iterable[Candidate]) -> str:
    """``η = 0.1, l₂ = 0.0001, decay = 0.995``: η, and what else differs in the ``group`` it was chosen from."""
    others = [dict(other.setting) for other in group if other.method == candidate.method]
    said = []
    for name, value in sorted(candidate.setting, key=lambda entry: entry[0] != "lr"):
        if name == "lr" or (value not in ("", None) and any(other.get(name) != value for other in others)):
            said.append(f"{FIELDS.get(name, name)} = {f'{value:g}' if isinstance(value, float) else value}")
    if decay := candidate.decay:
        said.append(f"over {decay}" if "/" in decay else f"decay = {decay}")
    return ", ".join(said)
