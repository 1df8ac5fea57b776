"""Which setting of each method validation chooses, and what it is worth.

For each method (optimizer, loss, scheduled or not) of a task, the setting with the best validation value after the
last epoch is chosen. Settings are compared on the seeds that all of them have run, so that seeds which were added for
the winner later do not unmake the choice. Averaged weights make their own choice, of the setting and the decay, by
their own validation value. The test number is that of the chosen setting; it decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from experiments.report.results import Method, Run, Setting

ORDER = ["adagrad", "adam", "amsgrad", "bpgrad", "dfw", "sgd"]  # the paper's; then those that it does not have
ORDER += ["multistep", "alig", "momo", "prodigy", "schedulefree"]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of ``count`` seeds; a single seed has no deviation.

    >>> str(Spread.of([60.0, 62.0])), str(Spread.of([0.5], digits=4)), str(Spread.of([]))
    ('61.0 ± 1.4', '0.5000', '—')
    """

    mean: float
    deviation: float | None
    count: int
    digits: int = 1

    @classmethod
    def of(cls, values: Sequence[float], digits: int = 1) -> Spread:
        """Of the values of several seeds."""
        if not values or not all(map(math.isfinite, values)):
            return cls(math.nan, None, len(values), digits)
        return cls(mean(values), stdev(values) if len(values) > 1 else None, len(values), digits)

    def __str__(self) -> str:
        if not self.count:
            return "—"
        if math.isnan(self.mean):
            return "diverged"
        tail = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return f"{self.mean:.{self.digits}f}{tail}"


@dataclass(frozen=True)
class Candidate:
    """A setting of a method with the runs of its seeds; with a ``decay``, the averaged weights of these runs."""

    runs: tuple[Run, ...]
    decay: str | None = None

    @property
    def method(self) -> Method:
        """Optimizer, loss, scheduled."""
        return self.runs[0].method

    @property
    def setting(self) -> Setting:
        """What the candidates of a method differ in."""
        return self.runs[0].setting

    @property
    def eta(self) -> float:
        """η, the learning rate of the others."""
        return float(self.runs[0].config["lr"])

    @property
    def val(self) -> Spread:
        """Validation after the last epoch, over all seeds."""
        return self._spread([self._value(run) for run in self.runs])

    @property
    def test(self) -> Spread:
        """The test set, over the seeds it was read for."""
        if self.decay is None:
            return self._spread([run.test for run in self.runs if run.test is not None])
        return self._spread([run.test_averaged[self.decay] for run in self.runs if self.decay in run.test_averaged])

    def score(self, seeds: set[int]) -> float:
        """Validation over these seeds, so that higher is better; −∞ for what diverged."""
        value = mean(self._value(run) for run in self.runs if run.config["seed"] in seeds)
        return -math.inf if math.isnan(value) else -value if self.runs[0].is_regression else value

    def _spread(self, values: Sequence[float]) -> Spread:
        """Accuracies in % have one decimal, errors four digits."""
        small = self.runs[0].is_regression and values and abs(values[0]) < 10
        return Spread.of(values, 4 if small else 1)

    def _value(self, run: Run) -> float:
        return run.last.val if self.decay is None else run.last.val_averaged[self.decay]


def candidates(runs: Iterable[Run], averaged: bool = False) -> list[Candidate]:
    """The seeds of each setting together, in the order of the paper's tables and of η."""
    found: dict[tuple[Setting, Method, Setting, str | None], list[Run]] = {}
    for run in runs:
        for decay in run.last.val_averaged if averaged else [None]:
            found.setdefault((run.task, run.method, run.setting, decay), []).append(run)
    made = [Candidate(tuple(sorted(group, key=lambda r: r.config["seed"])), key[-1]) for key, group in found.items()]
    return sorted(made, key=lambda c: (rank(c.method), str(c.runs[0].task), c.eta, str(c.setting), c.decay or ""))


def choose(runs: Iterable[Run], averaged: bool = False) -> list[Candidate]:
    """The best candidate of each method of each task; of equal ones, that whose test number was read."""
    groups: dict[tuple[Setting, Method], list[Candidate]] = {}
    for candidate in candidates(runs, averaged):
        groups.setdefault((candidate.runs[0].task, candidate.method), []).append(candidate)
    return [best(group) for group in groups.values()]


def best(group: Sequence[Candidate]) -> Candidate:
    """The candidate of the best validation value on the seeds that all have, or on their own where they share none."""
    seeds = [{run.config["seed"] for run in candidate.runs} for candidate in group]
    shared = set.intersection(*seeds)
    scored = [(c.score(shared or own), c.test.count > 0) for c, own in zip(group, seeds, strict=True)]
    return group[max(range(len(group)), key=scored.__getitem__)]


def rank(method: Method) -> tuple[int, str, str, bool]:
    """The paper's optimizers first, in its order."""
    at = ORDER.index(method.optimizer) if method.optimizer in ORDER else len(ORDER)
    return at, method.optimizer, method.loss, method.scheduled
