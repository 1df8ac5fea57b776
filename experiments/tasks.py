"""The tasks by the name of their data set, and the networks of their families."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from experiments import cifar, lm, snli, tabular
from experiments.config import Config, known
from experiments.models import DenseNet, SentencePairBiLSTM, WideResNet
from experiments.structured import camvid, chunking, matching, ocr, parsing, segments, sentences
from experiments.task import Task, similar


def right(output: Tensor, y: Tensor) -> Tensor:
    """100 where the largest score is the label's: the mean is in per cent."""
    return 100.0 * (output.argmax(1) == y)


IMAGE_MODELS: dict[str, Callable[[int], nn.Module]] = {
    "wrn-40-4": lambda classes: WideResNet(40, 4, classes),
    "wrn-10-1": lambda classes: WideResNet(10, 1, classes),
    "densenet-40-40": lambda classes: DenseNet(40, 40, classes),
    "densenet-22-12": lambda classes: DenseNet(22, 12, classes),
}


def images(config: Config) -> Task:
    build = IMAGE_MODELS[known("model", config.model, IMAGE_MODELS)]
    train, val, test = cifar.load(Path(config.data), config.dataset, config.images or None, config.held, config.records)

    def take(split: TensorDataset, index: Tensor, generator: torch.Generator | None) -> tuple[tuple[Tensor], Tensor]:
        x, y = split[index]
        x = cifar.augment(x, generator) if config.augment and generator else x
        return (x.contiguous(memory_format=torch.channels_last),), y

    def network() -> nn.Module:  # with channels last a step takes three quarters of the time on a CPU
        return build(cifar.CLASSES[config.dataset]).to(memory_format=torch.channels_last)

    return Task(train, val, test, network, take, right)


PAIR_MODELS = {  # hidden and layer's units, word vectors
    "bilstm-2048": (2048, 512, "glove.840B.300d.txt"),
    "bilstm-2048-100": (2048, 512, "glove.6B.100d.txt"),  # the paper's, on the smaller vectors
    "bilstm-128": (128, 128, "glove.6B.100d.txt"),
}


def sentence_pairs(config: Config) -> Task:
    """SNLI has its own validation set: ``held`` is not used."""
    hidden, layer, glove = PAIR_MODELS[known("model", config.model, PAIR_MODELS)]
    train, val, test, vectors = snli.load(Path(config.data), config.images or None, seed=0, glove=glove)
    return Task(
        *(train, val, test),
        network=partial(SentencePairBiLSTM, vectors.shape[1], hidden, layer),
        take=partial(snli.take, vectors),
        score=right,
        # not by the second sentence: its length depends on the label, the first one's does not
        batches=lambda size, generator: similar(train.tensors[1], size, generator, pool=32),
    )


def rows(config: Config) -> Task:
    """ℓ1 regression on a table: the score is the absolute error in the target's own unit."""
    known("model", config.model, ["mlp"])
    parts, _, scale = tabular.load(Path(config.data), config.dataset)
    width = parts[0].tensors[0].shape[1]
    score = lambda output, y: scale * (output - y).abs().sum(1)  # noqa: E731
    return Task(*parts, network=lambda: tabular.mlp(width), score=score, measure="mae")


def digits(config: Config) -> Task:
    """An MLP fits the training images, and their loss goes to 0."""
    known("model", config.model, ["mlp"])
    x, y = tabular.digits()
    parts = [TensorDataset(x[at], y[at]) for at in (slice(800, None), slice(400), slice(400, 800))]
    return Task(*parts, network=lambda: nn.Sequential(tabular.mlp(64)[:-1], nn.Linear(128, 10)), score=right)


LANGUAGE_MODELS = {"gpt-2-64": (2, 2, 64, 64), "gpt-2-128": (2, 4, 128, 64), "gpt-6-384": (6, 6, 384, 256)}


def characters(config: Config) -> Task:
    """The next character of SNLI's sentences; a sample is a window, and ``held`` windows of dev are for validation.

    A model has layers, heads, a width and a context.
    """
    layers, heads, width, context = LANGUAGE_MODELS[known("model", config.model, LANGUAGE_MODELS)]
    train, val, test = lm.load(Path(config.data), context, config.images or None, config.held or None)
    network = partial(lm.GPT, layers, heads, width, context)
    return Task(train, val, test, network, lm.take, lm.nats, measure="nats", flat=True)


TASKS: dict[str, Callable[[Config], Task]] = {
    "cifar10": images,
    "cifar100": images,
    "snli": sentence_pairs,
    "california": rows,
    "bike": rows,
    "digits": digits,
    "lm": characters,
    "ocr-small": lambda config: ocr.task("small", config.model, Path(config.data)),
    "ocr-large": lambda config: ocr.task("large", config.model, Path(config.data)),
}
for module in (chunking, camvid, segments, matching, parsing, sentences):
    TASKS[module.__name__.rpartition(".")[2]] = lambda config, task=module.task: task(Path(config.data))


def task_of(config: Config) -> Task:
    return TASKS[known("data set", config.dataset, TASKS)](config)
