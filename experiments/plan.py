"""What a study will cost, before it is run: runs, hours and disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from experiments import cifar, tabular
from experiments.config import Config, asked, from_dict
from experiments.lm import GPT
from experiments.models import SentencePairBiLSTM
from experiments.studies import Study
from experiments.tasks import IMAGE_MODELS, LANGUAGE_MODELS, PAIR_MODELS, task_of

SAMPLES = {"cifar10": 45_000, "cifar100": 45_000, "snli": 549_367, "lm": 400_000, "california": 16_512, "bike": 13_903}
WORDS = 22  # of the two sentences of a pair of SNLI, on average
SUSTAINED = {"cpu": 0.05, "cuda": 15.0}  # TFLOP/s: two cores, and a third of what a recent GPU has in bfloat16
PASSES = {"multistep": 4.0}  # of the network, relative to one forward and backward pass
ASKED = ("dataset", "model", "images", "batch", "augment")  # what the time of an epoch depends on

Pieces = list[tuple[nn.Module, Tensor]]


@cache
def pieces(config: Config) -> Pieces:
    """The network in pieces, and the input of each for one batch, on the meta device: shapes without data."""
    n = config.batch
    with torch.device("meta"):
        if config.model in IMAGE_MODELS:
            return [(IMAGE_MODELS[config.model](cifar.CLASSES[config.dataset]), torch.empty(n, 3, 32, 32))]
        if config.model in LANGUAGE_MODELS:
            layers, heads, width, context = LANGUAGE_MODELS[config.model]
            return [(GPT(layers, heads, width, context), torch.empty(n, context, dtype=torch.long))]
        if config.model in PAIR_MODELS:
            hidden, layer, vectors = PAIR_MODELS[config.model]
            embedding = int(vectors.split(".")[-2].removesuffix("d"))
            pair = SentencePairBiLSTM(embedding, hidden, layer)
            return [(pair.lstm, torch.empty(n, WORDS, embedding)), (pair.classifier, torch.empty(n, 8 * hidden))]
        return [(tabular.mlp(8), torch.empty(n, 8))]


@cache
def flops(config: Config) -> int:
    """Of one forward and backward pass over a batch."""
    with FlopCounterMode(display=False) as counter:
        for module, x in pieces(config):
            out = module(x)
            (out[0] if isinstance(out, tuple) else out).sum().backward()
    return counter.get_total_flops()


@cache
def samples(config: Config) -> int:
    """Training samples: of the files, if they exist here, else of the official ones."""
    try:
        return len(task_of(config).train)
    except FileNotFoundError:
        return config.images or SAMPLES[config.dataset]


def hours(config: Config, tflops: float, before: Sequence[dict[str, Any]] = ()) -> float:
    """Of a run: from similar runs in ``before``, if there are any, else from its floating-point operations."""
    alike = [run for run in before if all(run["config"].get(name) == getattr(config, name) for name in ASKED)]
    alike = [run for run in alike if run["config"]["optimizer"] == config.optimizer] or alike
    if alike:
        return config.epochs * median(line["seconds"] for run in alike for line in run["curve"]) / 3600
    trained = samples(_only(config, "data", "dataset", "model", "images", "held", "records"))
    steps = config.epochs * math.ceil(trained / config.batch)
    passes = PASSES.get(config.optimizer, 1.0) * steps
    return passes * flops(_only(config, "dataset", "model", "batch")) / (tflops * 1e12) / 3600


def _only(config: Config, *entries: str) -> Config:
    """The config with only these entries, for the caches."""
    return Config(**{name: getattr(config, name) for name in entries})


def disk(config: Config) -> int:
    """Bytes of a run's folder, at most: two checkpoints of the weights, the best, two states and the averages."""
    made = pieces(_only(config, "dataset", "model", "batch"))
    size = 4 * sum(p.numel() for module, _ in made for p in module.parameters())
    return 2 * size * (4 + 2 * len(config.averages))


def listing(
    study: Study, out: Path, before: Sequence[dict[str, Any]], tflops: float | None = None, go_on: bool = False
) -> str:
    """One line per method, and the sum. Which settings will be chosen is not known yet; their number is.

    ``go_on``: without the runs of the grid in ``before``, and the chosen ones of a method and seed in it.
    """
    tflops = tflops or SUSTAINED.get(torch.device(study.grid[0].device).type, SUSTAINED["cuda"])
    done = {asked(from_dict(run["config"])) for run in before} if go_on else set()
    tested = {(run.method, run.seed) for run in done if run.test}
    chosen = study.chosen({run: [_unknown(run)] for run in study.grid})
    runs = [run for run in study.grid if asked(run) not in done]
    runs += [run for run in chosen if (run.method, run.seed) not in tested]
    groups: dict[tuple[str, ...], list[Config]] = {}
    for run in runs:
        groups.setdefault((*run.method, str(run.epochs)), []).append(run)
    lines = [f"{'runs':>5} {'epochs':>6} {'hours':>9}  method"]
    for (*method, epochs), group in groups.items():
        cost = sum(hours(run, tflops, before) for run in group)
        lines.append(f"{len(group):5} {epochs:>6} {cost:9.2f}  {', '.join(filter(None, method))}")
    total, size = sum(hours(run, tflops, before) for run in runs), sum(map(disk, runs))
    lines.append(
        f"{study.name}: {len(runs)} runs, {total:.1f} hours on one worker (from earlier runs where there are any, "
        f"else at {tflops:g} TFLOP/s, see --tflops), at most {size / 1e9:.2f} GB in {out}"
    )
    return "\n".join(lines)


def _unknown(run: Config) -> dict[str, Any]:
    return {"val": 0.0, "val_averaged": dict.fromkeys(run.averages, 0.0)}
