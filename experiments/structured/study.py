"""Studies of the structured tasks whose results have the form of a sweep's, so that the same tables show them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from tqdm import tqdm

from experiments.averaging import average, fresh_statistics
from experiments.config import Config
from experiments.folder import provenance
from experiments.optimizers import recipe_of
from experiments.schedules import Schedule
from experiments.structured.runs import Runs, arguments
from experiments.structured.tuned import MEASURES, Task, task_of
from experiments.train import Best
from proxsvm import ProxOptimizer, follow

Settings = Callable[[Task, Config], Iterable[Config]]


def run(study: str, description: str, settings: Settings, *, seeds: list[int], test: bool) -> None:
    """The command line of a study: for each seed the configs that ``settings`` derives from a base.

    Network and batches are the task's. With ``test`` the runs have its full length, and read the test set at the end.
    """
    parser = arguments(description, f"small/{study}-TASK")
    parser.add_argument("task", choices=list(MEASURES))
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--epochs", type=int, help="default: the task's own")
    parser.add_argument("--fast-cut", action="store_true", help="cut with PyMaxflow (pip install '.[maxflow]')")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = task_of(given.task, given.data, given.fast_cut)
    steps = sum(1 for _ in task.batches())
    runs = Runs(given.results.with_name(given.results.name.replace("TASK", given.task)))
    epochs = given.epochs or task.epochs[1 if test else 0]
    base = Config(data="", dataset=given.task, model="", batch=0, held=0, epochs=epochs, test=test)
    for seed in given.seeds:
        for config in settings(task, replace(base, seed=seed)):
            entries = asdict(config) | {"averages": list(config.averages), "records": []}  # as JSON has them
            runs.once(partial(train, study, task, config, steps), **entries)


def train(study: str, task: Task, config: Config, steps: int) -> dict[str, Any]:
    """One run of ``steps`` per epoch: after each epoch the held-out score of the weights and of their average."""
    recipe, criterion = recipe_of(config), task.losses[config.loss]()
    model = recipe.prepare(task.model())
    optimizer = recipe.build(config, criterion, model.parameters(), steps * config.epochs)
    if config.average:
        follow(model, optimizer)
    schedule = Schedule(config, optimizer) if config.schedule else None
    averages = {form: average(model, form) for form in config.averages}
    best, curve = Best(max), []
    name = f"{config.loss}, {config.optimizer}, {config.lr}"
    for epoch in tqdm(range(config.epochs), desc=name, unit="epoch", mininterval=2):
        losses, gammas, began = [], [], time.process_time()
        model.train()
        if hasattr(optimizer, "train"):
            optimizer.train()
        for k, (x, y) in enumerate(task.batches()):
            if schedule is not None:
                schedule.before_step((epoch + (k + 0.5) / steps) / config.epochs)
            losses.append(recipe.update(optimizer, lambda: criterion(model(x), y)))  # noqa: B023
            if isinstance(optimizer, ProxOptimizer):
                gammas.append(torch.as_tensor(optimizer.last.gamma))
            for mean in averages.values():
                mean.update_parameters(model)
        line: dict[str, Any] = {"epoch": epoch + 1, "train_loss": float(torch.stack(losses).mean()), "step_size": None}
        line |= {"gamma": float(torch.stack(gammas).mean())} if gammas else {}
        with evaluated(model, optimizer, task):
            line["val"] = best.look("", model, task.score(model, config.loss, "val"))
        line["val_averaged"] = {
            form: best.look(form, mean.module, task.score(mean.module, config.loss, "val"))
            for form, mean in averages.items()
        }
        curve.append(line | {"seconds": time.process_time() - began})
    results: dict[str, Any] = {"curve": curve, "test": None, "test_averaged": None}
    if config.test:
        tests = {name: task.score(best.load(name, task.model()), config.loss, "test") for name in ("", *averages)}
        results |= {"test": tests.pop(""), "test_averaged": tests}
    return {"study": f"{study}-{config.dataset}", "provenance": provenance(config), **results}


@contextmanager
def evaluated(model: nn.Module, optimizer: Optimizer, task: Task) -> Iterator[None]:
    """The weights to evaluate: of ours the average; schedule-free's own, which batch norm has not seen."""
    model.eval()
    if isinstance(optimizer, ProxOptimizer) or not hasattr(optimizer, "eval"):
        yield
    else:
        optimizer.eval()
        with fresh_statistics(model, ((x,) for x, _ in task.batches())):
            yield
