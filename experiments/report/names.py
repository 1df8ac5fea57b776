"""The names of optimizers, losses, studies and settings in tables and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from experiments.report.results import Method, Run, Setting
from experiments.report.selection import Candidate

OPTIMIZERS = {
    "dfw": "DFW",
    "dfw-full": "DFW, γ ≡ 1",
    "multistep": "Multi-step FW",
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "amsgrad": "AMSGrad",
    "adagrad": "Adagrad",
    "bpgrad": "BPGrad",
    "alig": "ALI-G",
    "momo": "MoMo",
    "momo-adam": "MoMo-Adam",
    "dog": "DoG",
    "prodigy": "Prodigy",
    "schedulefree": "Schedule-Free",
    "schedulefree-adamw": "Schedule-Free AdamW",
    "sgd*": "SGD*",
}
LOSSES = {
    "smooth-hinge": "smoothed hinge",
    "hinge": "hinge",
    "ce": "cross-entropy",
    "likelihood": "likelihood",
    "l1": "ℓ1",
}
STUDIES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "snli": "SNLI",
    "california": "California housing",
    "bike": "Bike sharing",
    "sensitivity": "Sensitivity to η",
    "averaging": "Averaged weights",
    "lm": "Language model",
    "ocr": "OCR letters",
    "chunking": "Chunking",
    "camvid": "CamVid",
    "fixed": "One fixed setting",
    "ablation": "Ablation",
}
PARTS = {"wrn": "WRN", "densenet": "DenseNet", "augmented": "with augmentation"} | STUDIES
FIELDS = {"lr": "η", "weight_decay": "l₂", "batch": "batch", "momentum": "momentum", "schedule": "schedule"}


def optimizer(method: Method) -> str:
    """``DFW``, ``proxsvm, diagonal``, ``SGD, schedule``, ``SGD, constant``: SGD and AdamW say which of the two it is.

    DFW is the paper's single step in the Euclidean metric.
    """
    ours = method.optimizer == "dfw" and method.metric
    said = ["proxsvm" if ours else OPTIMIZERS.get(method.optimizer, method.optimizer)]
    said += ["schedule"] if method.scheduled else ["constant"] if method.optimizer in ("sgd", "adamw") else []
    said += [method.metric] if method.metric else []
    said += ["η = auto"] if method.auto else []
    return ", ".join(said)


def method(method: Method, averaged: bool = False) -> str:
    """``DFW + average, hinge``: the optimizer, with its loss where that is not the usual one."""
    ours = method.optimizer in ("dfw", "dfw-full", "multistep")
    usual = ("smooth-hinge", "l1") if ours else ("ce", "l1", "likelihood")
    return (
        optimizer(method)
        + (" + average" if averaged else "")
        + (f", {loss(method)}" if method.loss not in usual else "")
    )


def recommended(run: Run, averaged: bool = False) -> str:
    """``proxsvm, diagonal, η = 0.01, no momentum``, ``AdamW, constant + average``: a method at one fixed setting."""
    ours, said = run.method.optimizer == "dfw", optimizer(run.method)
    if ours and not run.method.auto:
        said += f", η = {run.config['lr']:g}, " + (
            f"momentum {mu:g}" if (mu := run.config["momentum"]) else "no momentum"
        )
    return said + (" + average" if averaged else "")


def loss(method: Method) -> str:
    """``cross-entropy``."""
    return LOSSES.get(method.loss, method.loss)


def study(name: str) -> str:
    """The title of a study; those of the paper's scale also name the network.

    >>> study("cifar10"), study("cifar100-wrn-augmented")
    ('CIFAR-10', 'CIFAR-100, WRN, with augmentation')
    """
    dataset, *rest = name.split("-")
    return ", ".join([STUDIES.get(dataset, dataset), *(PARTS.get(part, part) for part in rest)])


def task(run: Run) -> str:
    """``wrn-10-1, 10,000 training samples``."""
    images = run.config.get("images")
    return str(run.config["model"]) + (f", {images:,} training samples" if images else "")


def epochs(runs: Iterable[Run]) -> str:
    """``28 runs of 5 epochs, 20 runs of 20 epochs``."""
    counts = Counter(run.epochs for run in runs)
    return ", ".join(f"{counts[length]} runs of {length} epochs" for length in sorted(counts))


def setting(candidate: Candidate, group: Iterable[Candidate]) -> str:
    """``η = 0.1, l₂ = 0.0001, decay = 0.995``: η, and what else differs in the ``group`` it was chosen from."""
    settings = [dict(other.setting) for other in group]
    mine: Setting = tuple(sorted(candidate.setting, key=lambda entry: entry[0] != "lr"))
    said = [
        f"{FIELDS.get(name, name)} = {value:g}" if isinstance(value, float) else f"{FIELDS.get(name, name)} = {value}"
        for name, value in mine
        if name == "lr" or (value not in ("", None) and any(other.get(name) != value for other in settings))
    ]
    if candidate.decay:
        said.append(f"over {candidate.decay}" if "/" in candidate.decay else f"decay = {candidate.decay}")
    return ", ".join(said)
