"""All that a run depends on, and the options of the command line that are made from it."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


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

    data: str = option("data", "the folder of the data sets, see: python -m experiments download --help")
    dataset: str = option("cifar10", "cifar10, cifar100, snli, california or bike")
    model: str = option("wrn-10-1", "a network of the data set's family")
    optimizer: str = option("dfw", "dfw, multistep, sgd, adam, ...")
    loss: str = option("", "smooth-hinge, hinge, ce or l1; empty: what the paper uses with this optimizer")
    lr: float = option(0.1, "η, the step-size of the others")
    momentum: float = option(0.9, "Nesterov momentum of dfw, sgd, bpgrad; the average of the others that have one")
    weight_decay: float = option(1e-4, "the l2 regularisation")
    schedule: str = option("", "sgd's: wrn-paper, wrn-jobs, densenet or snli; empty: none")
    epochs: int = option(20, "passes over the training samples")
    batch: int = option(128, "samples of a step")
    images: int = option(0, "training samples; 0: all")
    held: int = option(5000, "samples held out of the training set for validation (snli brings its own)")
    augment: bool = option(False, "flip and crop the images")
    averages: tuple[str, ...] = option((), "averages of the weights, measured beside them: a decay, 0.995, or 1/4")
    seed: int = option(0, "draws the initial weights and the order; not the split")
    test: bool = option(False, "read the test set, once, at the end")
    device: str = option("cpu", "any torch device")
    precision: str = option("float32", "of the network's passes: float32, or bfloat16 by autocast")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for each entry of the config."""
    for entry in fields(Config):
        default: Any = entry.default
        assert default is not MISSING
        name, text = f"--{entry.name.replace('_', '-')}", f"{entry.metadata['help']} (default: {default!r})"
        if isinstance(default, bool):
            parser.add_argument(name, action="store_true", help=text)
        elif isinstance(default, tuple):
            parser.add_argument(name, nargs="*", default=default, help=text)
        else:
            parser.add_argument(name, type=type(default), default=default, help=text)


def from_arguments(args: argparse.Namespace) -> Config:
    return from_dict({entry.name: getattr(args, entry.name) for entry in fields(Config)})


def from_dict(entries: dict[str, Any]) -> Config:
    """The config of ``asdict`` or of JSON, which turns tuples into lists (older results have decays as numbers)."""
    averages = tuple(map(str, entries.get("averages", ())))
    return Config(**entries | {"averages": averages})
