"""What a task is: samples, a network, and how a prediction is scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pandas import read_csv
from torch import Tensor, nn

from experiments.config import Config, known
from experiments.optimizers import criterion_of

Tensors = Tensor | tuple[Tensor, ...]


def each(f: Callable[[Tensor], Tensor], value: Tensors) -> Any:
    """``f`` of a tensor, or of each of several."""
    return f(value) if isinstance(value, Tensor) else tuple(f(part) for part in value)


def columns(split: Any, index: Tensor, _: object = None) -> tuple[tuple[Tensor], Tensors]:
    """The first column of a data set is the input, the others are the target."""
    x, *y = split[index]
    return (x,), y[0] if len(y) == 1 else tuple(y)


@dataclass(frozen=True)
class Task:
    """Three splits and what to do with them.

    ``take(split, index, generator)`` returns the inputs of the network and the targets; it augments if it is given a
    generator. ``batches(size, generator)`` splits an epoch. ``score(output, target)`` is one scalar per sample;
    ``measure`` names its mean. ``flat``: the loss sees all but the last dimension of the output as samples.

    A structured task has its own ``losses``, and ``judge(outputs and targets of a split, loss)`` instead of a score:
    one value, or several by name, of which the first decides.
    """

    train: Any
    val: Any
    test: Any
    network: Callable[[], nn.Module]
    take: Callable[[Any, Tensor, torch.Generator | None], tuple[tuple[Tensor, ...], Tensors]] = columns
    score: Callable[[Tensor, Tensor], Tensor] | None = None
    measure: str = "accuracy"
    batches: Callable[[int, torch.Generator], Sequence[Tensor]] | None = None  # None: at random
    flat: bool = False
    losses: Mapping[str, Callable[[], nn.Module]] | None = None
    judge: Callable[[Iterable[tuple[Any, Any]], str], float | dict[str, float]] | None = None
    evaluated: int = 500  # samples at a time

    @property
    def better(self) -> Callable[[float, float], float]:
        """The better of two values of the measure: errors and nats should be small."""
        return max if self.measure == "accuracy" else min

    def criterion(self, config: Config) -> nn.Module:
        return criterion_of(config) if self.losses is None else self.losses[known("loss", config.loss, self.losses)]()

    def loss(self, criterion: nn.Module, output: Any, y: Any) -> Tensor:
        return criterion(output.flatten(0, -2), y.flatten()) if self.flat else criterion(output, y)

    def epoch(self, size: int, generator: torch.Generator) -> Sequence[Tensor]:
        """The batches of an epoch, as indices of the training samples."""
        return self.batches(size, generator) if self.batches else indices(len(self.train), size, generator)


def indices(n: int, size: int, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
    """Random batches of ``size`` of n samples."""
    return torch.randperm(n, generator=generator).split(size)


def similar(lengths: Tensor, size: int, generator: torch.Generator, pool: int) -> list[Tensor]:
    """Random batches of samples of similar length, for little padding.

    The shuffled samples are cut in pools of ``pool`` batches, sorted by length within each, and the batches shuffled.
    """
    pools = torch.randperm(len(lengths), generator=generator).split(pool * size)
    cut = [part for some in pools for part in some[lengths[some].argsort(stable=True)].split(size)]
    return [cut[i] for i in torch.randperm(len(cut), generator=generator)]


def within(lengths: Tensor, size: int) -> Tensor:
    """Where padded samples have an entry, ``[B, size]``."""
    return torch.arange(size) < lengths[:, None]


def percent(found: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Right entries, and samples that are right throughout: from where they are right, and where there are any."""
    counts = [[(right & real).sum(), real.sum(), (right | ~real).all(1).sum(), len(real)] for right, real in found]
    entries, of_entries, samples, of_samples = torch.tensor(counts).sum(0).tolist()
    return 100 * entries / of_entries, 100 * samples / of_samples


class Neighbours(nn.Module):
    """Scores of a chain: those of each position by a network, and one for each of ``K²`` pairs of neighbours."""

    def __init__(self, network: nn.Module, K: int) -> None:
        super().__init__()
        self.network, self.pairs = network, nn.Parameter(torch.zeros(K, K))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(x), self.pairs


def seen(loss: type[nn.Module], view: Callable[[Any, Any], tuple[Any, Any]]) -> type[nn.Module]:
    """A ``loss`` that sees what ``view`` makes of the scores and the target."""

    class Seen(loss):  # type: ignore[misc, valid-type]
        def prepare(self, scores: Any, target: Any) -> Any:
            return super().prepare(*view(scores, target))

    return Seen


HINTS = read_csv(Path(__file__).with_name("hints.csv"), comment="#").set_index("data")


def need(path: Path, data: str) -> Path:
    """``path``, or an error that says how to get it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing. {HINTS.how[data]} Then pass its folder: --data DIR")
    return path


def damaged(file: Path, data: str, what: str) -> ValueError:
    return ValueError(f"{file}{what}: is the file whole? {HINTS.how[data]}")
