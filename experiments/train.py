"""Train: a frozen config, a log line an epoch, and a checkpoint that resumes bit for bit.

python -m experiments train --data DIR --model wrn-10-1 --optimizer dfw --lr 0.1
torchrun --nproc-per-node 2 -m experiments train --data DIR ...          # the same on several processes
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from experiments import config as configs
from experiments.averaging import average, fresh_statistics
from experiments.config import Config, known
from experiments.optimizers import LOSSES, OPTIMIZERS, Schedule, loss_of
from experiments.tasks import Task, task_of
from proxsvm import __version__, checkpoint
from proxsvm.extras import load as load_extra

RE_ESTIMATION = 20  # batches that give batch norm fresh statistics
PRECISIONS = ("float32", "bfloat16")
GIT = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
COMMIT = subprocess.run(GIT, capture_output=True, text=True, check=False).stdout.strip() or None  # of what is in memory
Line = dict[str, Any]


def run(config: Config, out: Path, tensorboard: bool = False) -> list[Line]:
    """Train as ``config`` says, or go on where a run in ``out`` was stopped; returns the lines of its log."""
    recipe = OPTIMIZERS[known("optimizer", config.optimizer, OPTIMIZERS)]
    known("precision", config.precision, PRECISIONS)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    log = out / "log.jsonl"
    lines = read_log(log)
    if len(lines) >= config.epochs and _same_run(config, out):
        return lines
    task = task_of(config)
    torch.manual_seed(config.seed)
    model = recipe.prepare(task.network()).to(config.device)
    criterion = LOSSES[loss_of(config)]()
    optimizer = recipe.build(config, criterion, model.parameters())
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if config.schedule:
        parts["schedule"] = Schedule(config, optimizer)
    averages = {form: average(model, form) for form in config.averages}
    parts |= {f"average {form}": mean for form, mean in averages.items()}
    best = parts["best"] = Best(min if task.measure == "mae" else max)

    if rank == 0:
        _claim(config, out)
    done = _resume(out, parts)
    lines = lines[:done]
    network = DistributedDataParallel(model) if world > 1 else model
    board = load_extra("torch.utils.tensorboard", extra="experiments") if tensorboard and rank == 0 else None
    writer = board.SummaryWriter(str(out), purge_step=done + 1) if board else None
    for epoch in range(done, config.epochs):
        began, last = time.perf_counter(), epoch + 1 == config.epochs
        line = {"epoch": epoch + 1} | _epoch(
            config, task, network, criterion, optimizer, averages, epoch, (rank, world)
        )
        with judged(config, task, model, optimizer):
            line["val"] = best.look("", model, evaluate(config, task, model, task.val))
        if averages:
            means = averages.items()
            line["val_averaged"] = {k: best.look(k, m.module, evaluate(config, task, m, task.val)) for k, m in means}
        if averages and last:  # is averaging batch norm's buffers as good as estimating them anew?
            line["val_averaged_fresh"] = {}
            for k, mean in averages.items():
                with passes(config), fresh_statistics(mean, _some_inputs(config, task)):
                    line["val_averaged_fresh"][k] = evaluate(config, task, mean, task.val)
        if config.schedule:
            parts["schedule"].step(line["val"])
        if config.test and last:  # the test set is read once, with the weights that validation preferred
            tests = {k: evaluate(config, task, best.load(k, copy.deepcopy(model)), task.test) for k in ("", *averages)}
            line["test"], line["test_averaged"] = tests.pop(""), tests
        line["seconds"] = time.perf_counter() - began
        lines.append(line)
        if rank == 0:
            print(json.dumps(line), flush=True)
            _keep(out, parts, epoch + 1)
            write(log, "".join(json.dumps(line) + "\n" for line in lines))
        if writer:
            for name, value in line.items():
                if isinstance(value, float):
                    writer.add_scalar(name, value, epoch + 1)
            writer.flush()
        if world > 1:
            dist.barrier()
    if writer:
        writer.close()
    return lines


def _epoch(
    config: Config,
    task: Task,
    network: nn.Module,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: dict[str, Any],
    epoch: int,
    place: tuple[int, int],
) -> Line:
    """A pass over the training samples; what it saw on the way."""
    rank, world = place
    update = OPTIMIZERS[config.optimizer].update
    generator = torch.Generator().manual_seed(config.seed * 100_003 + epoch)  # an epoch does not know its past
    batches = task.epoch(config.batch, generator)
    batches = [batch for batch in batches if len(batch) >= max(2, world)]  # batch norm needs two, a rank one
    totals, steps = torch.zeros(2, device=config.device), []
    network.train()
    if hasattr(optimizer, "train"):
        optimizer.train()
    for batch in tqdm(batches, desc=f"epoch {epoch + 1}/{config.epochs}", disable=rank > 0, leave=False):
        inputs, y = task.take(task.train, batch, generator)
        inputs, y = tuple(x[rank::world].to(config.device) for x in inputs), y[rank::world].to(config.device)
        score = torch.zeros((), device=config.device)

        def loss() -> Tensor:
            with passes(config):
                output = network(*inputs)  # noqa: B023
            output = output.float()
            score.copy_(task.score(output.detach(), y).mean())  # noqa: B023
            return criterion(output, y)  # noqa: B023

        value = update(optimizer, loss)
        totals += torch.stack([value, score]) * len(batch)
        steps.append(_step_size(optimizer))
        for mean in averages.values():
            mean.update_parameters(network.module if isinstance(network, DistributedDataParallel) else network)
    value, score = (totals / sum(map(len, batches))).tolist()
    sizes = torch.stack([torch.as_tensor(size, dtype=torch.float32).cpu() for size in steps])
    return {"train_loss": value, f"train_{task.measure}": score, "step_size": float(sizes.mean())}


def _step_size(optimizer: torch.optim.Optimizer) -> Tensor | float:
    """γη; ALI-G's own; the learning rate of the others."""
    group = optimizer.param_groups[0]
    if "step_size" in group:
        return group["step_size"]
    last = getattr(optimizer, "last", None)
    return group["lr"] * (1.0 if last is None else last.gamma)


def passes(config: Config) -> AbstractContextManager[Any]:
    """Where the network runs; the loss and the step stay in float32."""
    kind = torch.device(config.device).type
    return torch.autocast(kind, torch.bfloat16, enabled=config.precision == "bfloat16")


@torch.no_grad()
def evaluate(config: Config, task: Task, model: nn.Module, split: Any) -> float:
    """The mean score over a split."""
    model.eval()
    total = torch.zeros((), device=config.device, dtype=torch.float64)
    for batch in torch.arange(len(split)).split(500):
        inputs, y = task.take(split, batch, None)
        with passes(config):
            output = model(*(x.to(config.device) for x in inputs))
        total += task.score(output.float(), y.to(config.device)).double().sum()
    return float(total) / len(split)


@contextmanager
def judged(config: Config, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """The model as it is to be evaluated: schedule-free has other weights for that, which batch norm has not seen."""
    if not hasattr(optimizer, "eval"):
        yield
        return
    optimizer.eval()
    with passes(config), fresh_statistics(model, _some_inputs(config, task)):
        yield
    optimizer.train()


def _some_inputs(config: Config, task: Task) -> Iterator[tuple[Tensor, ...]]:
    for batch in torch.arange(len(task.train)).split(config.batch)[:RE_ESTIMATION]:
        yield tuple(x.to(config.device) for x in task.take(task.train, batch, None)[0])


class Best:
    """The weights of the best epoch by validation, of the model ("") and of each average, as the paper keeps them."""

    def __init__(self, better: Callable[[float, float], float]) -> None:
        self.better = better
        self.values: dict[str, float] = {}
        self.weights: dict[str, dict[str, Tensor]] = {}

    def look(self, name: str, model: nn.Module, value: float) -> float:
        """Keep the model if it is better than any before; nan never is."""
        if not math.isnan(value) and self.better(value, self.values.get(name, value)) == value:
            self.values[name] = value
            self.weights[name] = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        return value

    def load(self, name: str, model: nn.Module) -> nn.Module:
        """``model`` with the best weights; as it is where no epoch gave a number."""
        if name in self.weights:
            model.load_state_dict(self.weights[name])
        return model

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.weights = state["values"], state["weights"]


# The run's folder: config.json, log.jsonl, last.pt and the checkpoint before it.


def read_log(log: Path) -> list[Line]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _keep(out: Path, parts: dict[str, Any], epoch: int) -> None:
    last = out / "last.pt"
    if last.exists():
        os.replace(last, out / "previous.pt")
    checkpoint.save(last, **parts, epoch=epoch)


def _resume(out: Path, parts: dict[str, Any]) -> int:
    """Load the newest whole checkpoint; the number of epochs that it has seen."""
    for file in (out / "last.pt", out / "previous.pt"):
        if file.exists():
            try:
                return checkpoint.load(file, **parts)["epoch"]
            except ValueError as error:
                print(f"{error}\nGoing on from the checkpoint before it, or from the start", flush=True)
    return 0


def _same_run(config: Config, out: Path) -> bool:
    """Whether ``out`` holds this very run; refuse a folder that holds another one."""
    file, mine = out / "config.json", json.loads(json.dumps(asdict(config)))
    if not file.exists():
        return False
    theirs = json.loads(file.read_text())["config"]
    odd = {k: (theirs.get(k), v) for k, v in mine.items() if theirs.get(k) != v}
    if odd:
        raise ValueError(f"{out} holds another run (there, here): {odd}. Choose another --out")
    return True


def _claim(config: Config, out: Path) -> None:
    """Write the config, and what it ran on, beside the results."""
    if not _same_run(config, out):
        out.mkdir(parents=True, exist_ok=True)
        write(out / "config.json", json.dumps({"config": asdict(config), "provenance": provenance(config)}, indent=1))


def provenance(config: Config) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "proxsvm": __version__, "commit": COMMIT}
    return versions | {"device": config.device, "threads": torch.get_num_threads()}


def write(file: Path, text: str) -> None:
    """Whole or not at all."""
    beside = file.with_name(f".{file.name}.part")
    beside.write_text(text)
    os.replace(beside, file)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configs.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("out/run"), help="the run's folder")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard's events into the run's folder")


def main(args: argparse.Namespace) -> None:
    """Run what the command line says, on the ranks that torchrun started."""
    config = configs.from_arguments(args)
    parallel = "RANK" in os.environ
    if parallel:
        dist.init_process_group("nccl" if config.device.startswith("cuda") else "gloo")
    try:
        run(config, args.out, args.tensorboard)
    finally:
        if parallel:
            dist.destroy_process_group()
