"""Train: a frozen config, a log line per epoch, and a checkpoint that resumes bit for bit.

python -m experiments train --data DIR --model wrn-10-1 --optimizer dfw --lr 0.1
torchrun --nproc-per-node 2 -m experiments train --data DIR ...          # the same on several processes

The folder of a run has config.json, log.jsonl with a line for each epoch, and the checkpoint last.pt, which has these
lines, too. Every file is written completely or not at all.
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
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, update_bn

import proxsvm
from experiments import config as configs
from experiments.config import Config, from_dict, known
from experiments.optimizers import OPTIMIZERS, Schedule, recipe_of
from experiments.task import Task, Tensors, each
from experiments.tasks import task_of
from proxsvm import ProxOptimizer, __version__, checkpoint

GIT = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
COMMIT = subprocess.run(GIT, capture_output=True, text=True, check=False).stdout.strip() or None  # of the loaded code
Line = dict[str, Any]
Result = dict[str, Any]
RE_ESTIMATION = 20  # batches to re-estimate batch-norm statistics


class TimeUp(Exception):
    """The time is over; the run can be resumed from its checkpoint later."""


@dataclass
class Training:
    """What a run trains, and with what."""

    config: Config
    task: Task
    model: nn.Module
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    averages: dict[str, AveragedModel]
    best: Best
    schedule: Schedule | None
    rank: int = 0
    world: int = 1

    @classmethod
    def of(cls, config: Config, task: Task | None = None) -> Training:
        """``task``: the config's, where it is loaded already."""
        recipe = recipe_of(config)
        known("precision", config.precision, ("float32", "bfloat16"))
        task = task or task_of(config)
        criterion = task.criterion(config)
        torch.manual_seed(config.seed)
        model = recipe.prepare(task.network()).to(config.device)
        steps = config.epochs * len(task.epoch(config.batch, torch.Generator()))
        optimizer = recipe.build(config, criterion, model, steps)
        if config.average:
            proxsvm.follow(model, optimizer)
        schedule = Schedule(config, optimizer) if config.schedule else None
        averages = {form: average(model, form) for form in config.averages}
        ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        return cls(config, task, model, criterion, optimizer, averages, Best(task.better), schedule, *ranks)

    @property
    def parts(self) -> dict[str, Any]:
        """What a checkpoint contains."""
        parts = {"model": self.model, "optimizer": self.optimizer, "best": self.best}
        if self.schedule is not None:
            parts["schedule"] = self.schedule
        return parts | {f"average {form}": mean for form, mean in self.averages.items()}

    def train(self) -> None:
        """The training mode and weights, where an optimizer evaluates others."""
        self.model.train()
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()


def run(
    config: Config, out: Path, tell: Callable[[Line], object] = lambda line: None, until: float = math.inf
) -> Result:
    """Train as ``config`` says, or resume a run in ``out`` that was stopped; ``tell`` is told of every epoch.

    Raises TimeUp after the first epoch that ends later than ``until``, a time of ``time.monotonic()``.
    """
    training = Training.of(config)
    first = training.rank == 0
    finished = claim(config, out) if first else result(out)
    if finished is not None:
        return finished
    lines = resume(out, training.parts)
    if first:
        log(out, lines)  # a run that was killed may have had the checkpoint alone
    network = DistributedDataParallel(training.model) if training.world > 1 else training.model
    if config.compile:
        network = torch.compile(network, backend=config.compile)
    for epoch in range(len(lines), config.epochs):
        began, last = time.perf_counter(), epoch + 1 == config.epochs
        line = {"epoch": epoch + 1} | _epoch(training, network, epoch)
        line["train_seconds"] = time.perf_counter() - began
        line |= _judge(training, last)
        line["seconds"] = time.perf_counter() - began
        lines.append(line)
        if first:
            training.train()
            checkpoint.save(out / "last.pt", **training.parts, lines=lines)
            log(out, lines)
            tell(line)
        if training.world > 1:
            dist.barrier()
        if time.monotonic() > until and not last:
            raise TimeUp(f"{out} has {epoch + 1} of {config.epochs} epochs")
    return so_far(out) or {"curve": lines}


def _epoch(training: Training, network: nn.Module, epoch: int) -> Line:
    """A pass over the training samples, and its measurements."""
    totals, samples = torch.zeros(2, device=training.config.device), 0
    each_step: dict[str, list[Tensor | float]] = {"step_size": [], "gamma": []}
    for found, count in steps(training, network, epoch):
        totals += found * count
        samples += count
        group, last = training.optimizer.param_groups[0], getattr(training.optimizer, "last", None)
        if last is not None:
            each_step["gamma"].append(last.gamma)
        # γη; ALI-G's own step-size; the learning rate of the others
        size = group["step_size"] if "step_size" in group else group["lr"] * (1.0 if last is None else last.gamma)
        each_step["step_size"].append(size)
    value, score = (totals / samples).tolist()
    seen = {"train_loss": value} | ({f"train_{training.task.measure}": score} if training.task.score else {})
    means = {name: torch.tensor([float(x) for x in values]).mean() for name, values in each_step.items() if values}
    return seen | {name: float(mean) for name, mean in means.items()}


def steps(training: Training, network: nn.Module, epoch: int) -> Iterator[tuple[Tensor, int]]:
    """The steps of an epoch, averages included: after each one the mean loss and score of its batch, and its size."""
    config, task, rank, world = training.config, training.task, training.rank, training.world
    update = OPTIMIZERS[config.optimizer].update
    seed = config.seed * 100_003 + epoch  # an epoch does not depend on earlier ones
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # for dropout
    batches = task.epoch(config.batch, generator)
    batches = [batch for batch in batches if len(batch) >= max(2, world)]  # batch norm needs two, a rank one
    training.train()
    for k, batch in enumerate(batches):
        inputs, y = task.take(task.train, batch, generator)
        inputs, y = (each(lambda x: x[rank::world].to(config.device), part) for part in (inputs, y))
        score = torch.zeros((), device=config.device)

        def loss() -> Tensor:
            with passes(config):
                output = network(*inputs)  # noqa: B023
            output = each(Tensor.float, output)
            if task.score is not None:
                score.copy_(task.score(each(Tensor.detach, output), y).mean())  # noqa: B023
            return task.loss(training.criterion, output, y)  # noqa: B023

        if training.schedule is not None:
            training.schedule.before_step((epoch + (k + 0.5) / len(batches)) / config.epochs)
        value = update(training.optimizer, loss)
        for mean in training.averages.values():
            mean.update_parameters(training.model)
        yield torch.stack([value, score]), len(batch)


def _judge(training: Training, last: bool) -> Line:
    """Validation of the weights and of their averages; after the last epoch the test set, if requested."""
    config, task, best = training.config, training.task, training.best
    ends = {"": judged(training)} | {form: mean.module for form, mean in training.averages.items()}
    values = {form: best.update(form, end, evaluate(config, task, end, task.val)) for form, end in ends.items()}
    line: Line = {"val": values.pop("")} | ({"val_averaged": values} if values else {})
    if training.schedule is not None:
        training.schedule.after_epoch(line["val"])
    if config.test and last:  # the test set is read once, with the weights that validation preferred and with the last
        chosen = {k: best.load(k, copy.deepcopy(end)) for k, end in ends.items()}
        found = {k: measures(config, task, end, task.test) for k, end in chosen.items()}
        tests = {k: next(iter(values.values())) for k, values in found.items()}
        line["test"], line["test_averaged"] = tests.pop(""), tests
        line |= {"test_measures": found} if len(found[""]) > 1 else {}
        line["test_last"] = {k: evaluate(config, task, end, task.test) for k, end in ends.items()}
    return line


def passes(config: Config) -> AbstractContextManager[Any]:
    """Where the network runs; the loss and the step stay in float32."""
    kind = torch.device(config.device).type
    return torch.autocast(kind, torch.bfloat16, enabled=config.precision == "bfloat16")


@torch.no_grad()
def measures(config: Config, task: Task, model: nn.Module, split: Any) -> dict[str, float]:
    """The mean score over a split, or the task's own measures of it by name; the first one decides."""
    model.eval()

    def outputs() -> Iterator[tuple[Any, Tensors]]:
        for batch in torch.arange(len(split)).split(task.evaluated):
            inputs, y = task.take(split, batch, None)
            with passes(config):
                output = model(*(x.to(config.device) for x in inputs))
            yield each(Tensor.float, output), each(lambda part: part.to(config.device), y)

    if task.judge is not None:
        found = task.judge(outputs(), config.loss)
        return found if isinstance(found, dict) else {"": float(found)}
    assert task.score is not None
    return {"": float(sum(task.score(output, y).double().sum() for output, y in outputs())) / len(split)}


def evaluate(config: Config, task: Task, model: nn.Module, split: Any) -> float:
    """What validation compares."""
    return next(iter(measures(config, task, model, split).values()))


def judged(training: Training) -> nn.Module:
    """The model as it is to be evaluated: schedule-free has other weights for that, which batch norm has not seen.

    There it is a copy with the statistics of the first batches of the training samples. (The averages of our own
    optimizer follow ``model.eval()``, batch norm included.)
    """
    if isinstance(training.optimizer, ProxOptimizer) or not hasattr(training.optimizer, "eval"):
        return training.model
    training.optimizer.eval()
    config, task, fresh = training.config, training.task, copy.deepcopy(training.model)
    some = torch.arange(len(task.train)).split(config.batch or task.evaluated)[:RE_ESTIMATION]
    with passes(config):
        update_bn((each(lambda x: x.to(config.device), task.take(task.train, at, None)[0]) for at in some), fresh)
    return fresh


def average(model: nn.Module, form: str) -> AveragedModel:
    """w̄ ← β w̄ + (1 − β) w after each step t; batch-norm buffers are averaged as well.

    ``form`` is a decay, ``"0.995"``: β = min(decay, (1 + t) / (10 + t)). The warm-up keeps the random start out of the
    average: its memory is at most t/9 steps. Or it is the fraction of the steps so far that the average
    covers, ``"1/4"``: β = (1 + t) / (1 + 4 + t). This form has no constant that depends on the length of training.
    """
    try:
        part = Fraction(form)
    except (ValueError, ZeroDivisionError):
        part = Fraction(-1)
    if not (0 < part < 1 or form == "0"):
        raise ValueError(
            f"an average's form is {form!r}; expected a decay below 1, such as 0.995, or the fraction of steps that it "
            "covers, such as 1/4"
        )
    decay, warm_up = (1.0, 1 + float(1 / part)) if "/" in form else (float(part), 10.0)

    def blend(averaged: Tensor, current: Tensor, t: Tensor | int) -> Tensor:
        if not averaged.is_floating_point():
            return current  # the batch norm's count of batches
        t = torch.as_tensor(t)
        beta = torch.clamp((1 + t) / (warm_up + t), max=decay)
        return torch.lerp(current, averaged, beta.to(averaged))

    return AveragedModel(model, avg_fn=blend, use_buffers=True)


class Best:
    """The weights of the best epoch by validation, of the model ("") and of each average, as the paper keeps them."""

    def __init__(self, better: Callable[[float, float], float]) -> None:
        self.better = better
        self.values: dict[str, float] = {}
        self.weights: dict[str, dict[str, Tensor]] = {}

    def update(self, name: str, model: nn.Module, value: float) -> float:
        """Keep the model if it is better than all before; nan never is."""
        if not math.isnan(value) and self.better(value, self.values.get(name, value)) == value:
            self.values[name] = value
            self.weights[name] = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        return value

    def load(self, name: str, model: nn.Module) -> nn.Module:
        """``model`` with the best weights; unchanged if no epoch gave a number."""
        if name in self.weights:
            model.load_state_dict(self.weights[name])
        return model

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values, self.weights = state["values"], state["weights"]


# The folder of a run. Whenever the process dies, resuming loses at most the current epoch.


def claim(config: Config, out: Path) -> Result | None:
    """The result of this very run, if it is finished; otherwise write the config, and what it runs on, into ``out``.

    Raises ValueError if ``out`` contains another run.
    """
    file = out / "config.json"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        versions = {"torch": torch.__version__, "proxsvm": __version__, "commit": COMMIT}
        provenance = versions | {"device": config.device, "threads": torch.get_num_threads()}
        write(file, json.dumps({"config": asdict(config), "provenance": provenance}, indent=1))
    try:
        theirs, mine = asdict(from_dict(json.loads(file.read_text())["config"])), asdict(config)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): delete it, if {out} is the folder of this run") from error
    if odd := {name: (theirs[name], value) for name, value in mine.items() if theirs[name] != value}:
        raise ValueError(f"{out} contains another run (there, here): {odd}. Choose another --out")
    return result(out)


def done(result: Result) -> bool:
    return len(result["curve"]) == result["config"]["epochs"]


def result(out: Path) -> Result | None:
    """Of a run that is finished."""
    found = so_far(out)
    return found if found is not None and done(found) else None


def so_far(out: Path) -> Result | None:
    """The config, what it ran on, the curve after the epochs so far and, where it was read, the test value."""
    file = out / "log.jsonl"
    lines = [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []
    if not lines:
        return None
    curve = [{k: v for k, v in line.items() if not k.startswith("test")} for line in lines]
    tests = dict.fromkeys(("test", "test_averaged", "test_last"))
    tests |= {name: value for name, value in lines[-1].items() if name.startswith("test")}
    return json.loads((out / "config.json").read_text()) | {"curve": curve} | tests


def resume(out: Path, parts: dict[str, Any]) -> list[Line]:
    """Load the checkpoint, if there is one; returns the lines of its epochs."""
    return checkpoint.load(out / "last.pt", **parts)["lines"] if (out / "last.pt").exists() else []


def log(out: Path, lines: list[Line]) -> None:
    write(out / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def write(file: Path, text: str) -> None:
    """Completely or not at all."""
    beside = file.with_name(f".{file.name}.part")
    with beside.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(beside, file)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configs.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("out/run"), help="the run's folder")


def main(args: argparse.Namespace) -> None:
    """Run what the command line asks for, on the ranks that torchrun started."""
    config = from_dict({entry.name: getattr(args, entry.name) for entry in fields(Config)})
    parallel = "RANK" in os.environ
    if parallel:
        dist.init_process_group("nccl" if config.device.startswith("cuda") else "gloo")
    try:
        run(config, args.out, lambda line: print(json.dumps(line), flush=True))
    finally:
        if parallel:
            dist.destroy_process_group()
