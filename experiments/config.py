"""Everything that a run depends on, and the command-line options for it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, NamedTuple


class Method(NamedTuple):
    """What a row of a table compares. With and without a schedule are two methods: that is the paper's point.

    ``metric``, ``average`` (its own) and ``auto`` (automatic η) are proxsvm's.
    """

    optimizer: str
    loss: str
    scheduled: bool
    metric: str = ""
    average: str = ""
    auto: bool = False


def known(kind: str, name: str, names: Collection[str]) -> str:
    """``name``, or an error that lists the valid ones."""
    if name not in names:
        raise ValueError(f"no {kind} named {name!r}; there are {', '.join(names)}")
    return name


def option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Config:
    """A run. Two runs of the same config on the same machine give the same curve, bit for bit."""

    data: str = option("data", "the folder of the data sets; see python -m experiments download --help")
    dataset: str = option("cifar10", "cifar10, cifar100, snli, lm, california or bike")
    model: str = option("wrn-10-1", "a network from the data set's family")
    optimizer: str = option("dfw", "dfw, multistep, sgd, adam, ...")
    loss: str = option("", "smooth-hinge, hinge, cross-entropy or l1; empty: the paper's choice for this optimizer")
    lr: float | str = option(0.1, "η, or the step-size of other optimizers; 'auto' for proxsvm's own choice")
    metric: str = option("", "proxsvm's metric, euclidean (as empty), diagonal or kronecker")
    average: str = option("", "the decay of proxsvm's own average, which is then evaluated; empty: no average")
    momentum: float = option(0.9, "Nesterov momentum of dfw, sgd, bpgrad; the first-moment decay of others")
    memory: float = option(0.0, "proxsvm's memory, μ of the past batches; with it, momentum is 0")
    weight_decay: float = option(1e-4, "the l2 regularisation")
    schedule: str = option("", "wrn-paper, wrn-jobs, densenet, snli or cosine (with a warm-up); empty: none")
    epochs: int = option(20, "passes over the training samples")
    batch: int = option(128, "samples per step")
    images: int = option(0, "training samples; 0: all")
    held: int = option(5000, "samples held out of the training set for validation (snli has its own)")
    records: tuple[int, ...] = option((), "training and test images in CIFAR's files, if these are a subset")
    augment: bool = option(False, "flip and crop the images")
    averages: tuple[str, ...] = option((), "averages of the weights to evaluate, too: a decay, such as 0.995, or 1/4")
    seed: int = option(0, "for the initial weights and the order of the samples; not for the split")
    test: bool = option(False, "read the test set, once, at the end")
    device: str = option("cpu", "any torch device")
    precision: str = option("float32", "of the network's passes: float32, or bfloat16 with autocast")
    compile: str = option("", "a backend of torch.compile for the training passes, such as inductor; empty: none")

    @property
    def method(self) -> Method:
        return Method(self.optimizer, self.loss, bool(self.schedule), self.metric, self.average, self.lr == "auto")


def add_arguments(parser: argparse.ArgumentParser, changes: Collection[str] = ()) -> None:
    """An option for each entry of the config, or only for ``changes`` of another one: None if it is not given."""
    for entry in (entry for entry in fields(Config) if entry.name in changes or not changes):
        default, said = (None, "the study's") if changes else (entry.default, repr(entry.default))
        given: dict[str, Any] = {"action": "store_true"} if isinstance(entry.default, bool) else {"type": _kind(entry)}
        given |= {"nargs": 2 if entry.name == "records" else "*"} if isinstance(entry.default, tuple) else {}
        text = f"{entry.metadata['help']} (default: {said})"
        parser.add_argument(f"--{entry.name.replace('_', '-')}", default=default, help=text, **given)


def from_text(cells: Mapping[str, str]) -> dict[str, Any]:
    """Entries of a config from the cells of a table: an empty one is no entry, and a dash an empty text."""
    found = {}
    for entry in (entry for entry in fields(Config) if cells.get(entry.name)):
        values = [_kind(entry)(text) for text in cells[entry.name].strip("-").split() or [""]]
        found[entry.name] = tuple(filter(None, values)) if isinstance(entry.default, tuple) else values[0]
    return found


def _kind(entry: Field[Any]) -> Callable[[str], Any]:
    """What reads an entry, or one of several."""
    if isinstance(entry.default, tuple):
        return int if entry.name == "records" else str
    return _rate if entry.name == "lr" else type(entry.default)


def _rate(text: str) -> float | str:
    return text if text == "auto" else float(text)


def from_dict(entries: dict[str, Any]) -> Config:
    """The config of ``asdict`` or of JSON, which turns tuples into lists (older results have decays as numbers)."""
    if entries.get("loss") == "cross-entropy":
        entries = entries | {"loss": "ce"}  # as the results call it
    averages, records = tuple(map(str, entries.get("averages", ()))), tuple(entries.get("records", ()))
    if len(records) not in (0, 2):
        raise ValueError(f"records is {records}; expected two numbers, the training and the test images of the files")
    return Config(**entries | {"averages": averages, "records": records})


def asked(config: Config) -> Config:
    """What defines a run, without where and how it is computed."""
    return replace(config, data="", records=(), device="", precision="", compile="")
