"""Train an image classifier: a frozen config, a log line an epoch, and a checkpoint that resumes bit for bit.

python -m experiments train --data DIR --model wrn-10-1 --optimizer dfw --lr 0.1
torchrun --nproc-per-node 2 -m experiments train --data DIR ...          # the same on several processes
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from tqdm import tqdm

from experiments import cifar
from experiments.models import DenseNet, WideResNet
from proxsvm import ProxOptimizer, __version__, checkpoint
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "wrn-40-4": lambda classes: WideResNet(40, 4, classes),
    "wrn-16-1": lambda classes: WideResNet(16, 1, classes),
    "wrn-10-1": lambda classes: WideResNet(10, 1, classes),
    "densenet-40-40": lambda classes: DenseNet(40, 40, classes),
    "densenet-22-12": lambda classes: DenseNet(22, 12, classes),
}


@dataclass(frozen=True)
class Config:
    """All that a run depends on."""

    data: str = "data"
    dataset: str = "cifar10"
    model: str = "wrn-10-1"
    optimizer: str = "dfw"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    epochs: int = 20
    batch: int = 128
    images: int = 0  # 0: all of them
    augment: bool = False
    seed: int = 0
    device: str = "cpu"


Built = tuple[nn.Module, torch.optim.Optimizer, "lr_scheduler.LRScheduler | None"]


def dfw(config: Config, params: list[nn.Parameter]) -> Built:
    """The paper's: smoothed hinge, one step, no schedule."""
    loss = MultiClassHinge(smooth=True)
    options = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    return loss, ProxOptimizer(loss, SingleStepFW(), params, **options), None


def sgd(config: Config, params: list[nn.Parameter]) -> Built:
    """Nesterov SGD; the rate falls to a fifth after 30, 60 and 80 % of the epochs, as the WRN's authors published."""
    options: dict[str, Any] = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    optimizer = torch.optim.SGD(params, nesterov=config.momentum > 0, **options)
    falls = [int(part * config.epochs) for part in (0.3, 0.6, 0.8)]
    return nn.CrossEntropyLoss(), optimizer, lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.2)


def adaptive(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[[Config, list[nn.Parameter]], Built]:
    """One of torch's adaptive methods, with the cross-entropy."""

    def build(config: Config, params: list[nn.Parameter]) -> Built:
        made = kind(params, lr=config.lr, weight_decay=config.weight_decay, **options)  # type: ignore[call-arg]
        return nn.CrossEntropyLoss(), made, None

    return build


OPTIMIZERS: dict[str, Callable[[Config, list[nn.Parameter]], Built]] = {
    "dfw": dfw,
    "sgd": sgd,
    "adam": adaptive(torch.optim.Adam),
    "amsgrad": adaptive(torch.optim.Adam, amsgrad=True),
    "adagrad": adaptive(torch.optim.Adagrad),
}


def run(config: Config, out: Path) -> dict[str, Any]:
    """Train as ``config`` says, or go on where a run in ``out`` was stopped; returns the last line of its log."""
    for kind, known in (("model", MODELS), ("optimizer", OPTIMIZERS)):
        if getattr(config, kind) not in known:
            raise ValueError(f"no {kind} named {getattr(config, kind)!r}; there are {', '.join(known)}")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if rank == 0:
        _claim(config, out)
    log, last = out / "log.jsonl", out / "last.pt"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if lines and "test_accuracy" in lines[-1]:
        return lines[-1]

    train, val, test = cifar.load(Path(config.data), config.dataset, config.images or None, config.seed)
    torch.manual_seed(config.seed)
    model = MODELS[config.model](cifar.CLASSES[config.dataset]).to(config.device)
    criterion, optimizer, schedule = OPTIMIZERS[config.optimizer](config, list(model.parameters()))
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer} | ({"schedule": schedule} if schedule else {})
    done = 0
    if last.exists():
        done = checkpoint.load(last, **parts)["epoch"]
        lines = lines[:done]
    network = DistributedDataParallel(model) if world > 1 else model
    for epoch in range(done, config.epochs):
        began, total, steps = time.perf_counter(), torch.zeros((), device=config.device), []
        generator = torch.Generator().manual_seed(config.seed * 100_003 + epoch)  # an epoch does not know its past
        batches = torch.randperm(len(train), generator=generator).split(config.batch)
        network.train()
        for batch in (bar := tqdm(batches, desc=f"epoch {epoch + 1}/{config.epochs}", disable=rank > 0, leave=False)):
            x = cifar.augment(train.x[batch], generator) if config.augment else train.x[batch]
            if len(batch) < world:
                continue  # a rank would have no sample
            x, y = x[rank::world].to(config.device), train.y[batch][rank::world].to(config.device)
            optimizer.zero_grad()
            loss = criterion(network(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(batch) / len(train)
            last_step = getattr(optimizer, "last", None)
            steps.append(optimizer.param_groups[0]["lr"] * (1.0 if last_step is None else last_step.gamma))
        bar.close()
        if schedule:
            schedule.step()
        lines.append(
            {
                "epoch": epoch + 1,
                "train_loss": float(total),
                "step_size": float(sum(torch.as_tensor(s) for s in steps) / len(steps)),
                "val_accuracy": accuracy(model, val, config),
                "seconds": time.perf_counter() - began,
            }
        )
        if epoch + 1 == config.epochs:
            lines[-1]["test_accuracy"] = accuracy(model, test, config)  # the test set is read once
        if rank == 0:
            print(json.dumps(lines[-1]), flush=True)
            checkpoint.save(last, **parts, epoch=epoch + 1)
            _write(log, "".join(json.dumps(line) + "\n" for line in lines))
        if world > 1:
            dist.barrier()
    return lines[-1]


@torch.no_grad()
def accuracy(model: nn.Module, images: cifar.Images, config: Config) -> float:
    """Per cent of the images that are classified right."""
    model.eval()
    at = range(0, len(images), 500)
    right = [
        (model(images.x[k : k + 500].to(config.device)).argmax(1).cpu() == images.y[k : k + 500]).sum() for k in at
    ]
    return 100 * float(sum(right)) / len(images)


def _claim(config: Config, out: Path) -> None:
    """Write the config beside the results; refuse a folder that holds another run."""
    out.mkdir(parents=True, exist_ok=True)
    file, mine = out / "config.json", asdict(config)
    if file.exists():
        theirs = json.loads(file.read_text())["config"]
        odd = {k: (theirs.get(k), v) for k, v in mine.items() if theirs.get(k) != v}
        if odd:
            raise ValueError(f"{out} holds another run (there, here): {odd}. Choose another --out")
        return
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    versions = {"torch": torch.__version__, "proxsvm": __version__, "commit": git.stdout.strip() or None}
    _write(file, json.dumps({"config": mine, **versions}, indent=1))


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    beside = file.with_name(f".{file.name}.part")
    beside.write_text(text)
    os.replace(beside, file)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for each entry of the config."""
    for entry in fields(Config):
        default: Any = entry.default
        if isinstance(default, bool):
            parser.add_argument(f"--{entry.name}", action="store_true")
        else:
            name = entry.name.replace("_", "-")
            parser.add_argument(f"--{name}", type=type(default), default=default, help=f"default: {default}")
    parser.add_argument("--out", type=Path, default=Path("out/run"), help="the run's folder")


def main(args: argparse.Namespace) -> None:
    """Run what the command line says, on the ranks that torchrun started."""
    config = Config(**{entry.name: getattr(args, entry.name) for entry in fields(Config)})
    parallel = "RANK" in os.environ
    if parallel:
        dist.init_process_group("nccl" if config.device.startswith("cuda") else "gloo")
    try:
        run(config, args.out)
    finally:
        if parallel:
            dist.destroy_process_group()
