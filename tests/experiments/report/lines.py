"""Finished runs as a sweep writes them, made up for the tests of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.report.results import Run, parse


def line(
    study: str = "cifar10",
    optimizer: str = "dfw",
    lr: float | str = 0.1,
    seed: int = 0,
    val: float = 60.0,
    averaged: dict[str, float] | None = None,
    test: float | None = None,
    test_averaged: dict[str, float] | None = None,
    **config: Any,
) -> dict[str, Any]:
    """A finished run as a sweep writes it: three epochs that end at ``val``."""
    regression = study in ("california", "bike", "lm")
    loss = "l1" if regression else "smooth-hinge" if optimizer == "dfw" else "ce"
    full = {"dataset": study.removesuffix("-augmented"), "model": "wrn-10-1", "optimizer": optimizer, "loss": loss}
    full |= {"lr": lr, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "wrn-jobs" if optimizer == "sgd" else ""}
    full |= {"epochs": 3, "batch": 128, "images": 10_000, "held": 5_000, "augment": study.endswith("augmented")}
    full |= {
        "averages": sorted(averaged or {}),
        "seed": seed,
        "test": test is not None,
        "device": "cpu",
        "data": "data",
    }
    curve = [
        {"epoch": epoch, "train_loss": 1 / epoch, "step_size": (0.1 if lr == "auto" else lr) / epoch, "seconds": 2.0}
        | {"val": val * 3 / epoch if regression else val * epoch / 3}
        | {"train_mae" if regression else "train_accuracy": 20.0 * epoch}
        | {"val_averaged": averaged or {}}
        for epoch in (1, 2, 3)
    ]
    provenance = {"torch": "2.13.0", "proxsvm": "0.1", "commit": "abc", "device": "cpu", "threads": 1}
    return {"study": study, "config": full | config, "provenance": provenance, "curve": curve} | {
        "test": test,
        "test_averaged": test_averaged,
    }


def runs(*lines: dict[str, Any]) -> list[Run]:
    return [parse(line) for line in lines]


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for each in lines:
        with (folder / f"{each['study']}.jsonl").open("a") as file:
            file.write(json.dumps(each) + "\n")
    return folder


def everything() -> list[dict[str, Any]]:
    """A little of each kind of study: a short grid, what it chose with two seeds, a name that nobody knows."""
    average = {"0.99": 58.0, "0.999": 61.0}
    lines = []
    for study in ("cifar10", "averaging"):
        for optimizer in ("dfw", "sgd", "adam", "unheard-of"):
            lines += [line(study, optimizer, lr, val=60 - lr, averaged=average, dataset="cifar10") for lr in (0.1, 1.0)]
            for seed in (1, 2):
                lines.append(
                    line(study, optimizer, seed=seed, epochs=20, dataset="cifar10", averaged=average, test=59.0)
                )
    for optimizer, loss in (("dfw", "hinge"), ("sgd", "ce"), ("sgd", "hinge"), ("adam", "ce")):
        lines.append(line("snli", optimizer, 0.1, model="bilstm-128", loss=loss, val=70.0, test=69.0))
    lines += [line("california", o, lr, val=lr, model="mlp", schedule="") for o in ("dfw", "adam") for lr in (0.4, 0.5)]
    lines += [line("sensitivity", o, lr, dataset="cifar10") for o in ("multistep", "dfw") for lr in (0.1, 1.0, 10.0)]
    return lines
