"""Which setting of each method validation chose, and its result.

A sweep tries a grid of settings, often in short runs, and then runs what validation chose to the end, with new seeds
and the test set. So only the longest runs of a task are compared here. Where these have several settings of a method
(optimizer, loss, scheduled or not), the one with the best validation value counts, on the seeds that all of them have
run; the value of a run is that of its best epoch, as in the paper. Averaged weights make their own choice, of the
setting and the decay, by their own validation value. The test number is that of the chosen setting; it decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from experiments.report.results import Method, Run, Setting

ORDER = ["adagrad", "adam", "amsgrad", "bpgrad", "dfw", "sgd"]  # the paper's; then those that it does not have
ORDER += ["multistep", "dfw-full", "alig", "momo", "prodigy", "schedulefree"]
ORDER += ["adamw", "schedulefree-adamw", "momo-adam", "dog"]


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
        tail = "" if self.deviation is None else f" ± {self.deviation:,.{self.digits}f}"
        return f"{self.mean:,.{self.digits}f}{tail}"


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
        """η, or the learning rate of the others; ∞ where it is automatic."""
        return math.inf if self.method.auto else float(self.runs[0].config["lr"])

    @property
    def val(self) -> Spread:
        """Validation of the best epoch, over all seeds."""
        return self._spread([self._value(run) for run in self.runs])

    @property
    def test(self) -> Spread:
        """The test set, over the seeds it was read for."""
        return self._spread([value for run in self.runs if (value := self._tested(run)) is not None])

    @property
    def tested(self) -> Candidate:
        """The runs whose test number was read (all if none was), so that a row has the same seeds throughout."""
        runs = tuple(run for run in self.runs if self._tested(run) is not None)
        return Candidate(runs or self.runs, self.decay)

    def score(self, seeds: set[int]) -> float:
        """Validation over these seeds, so that higher is better; −∞ for diverged runs."""
        value = mean(self._value(run) for run in self.runs if run.config["seed"] in seeds)
        return -math.inf if math.isnan(value) else -value if self.runs[0].lower_is_better else value

    def _spread(self, values: Sequence[float]) -> Spread:
        """Accuracies in % have one decimal, errors four digits."""
        large = abs(values[0]) if values and math.isfinite(values[0]) else 1.0
        digits = sum(large < bound for bound in (1, 10, 100, 1000)) if self.runs[0].lower_is_better else 1
        return Spread.of(values, digits)

    def _tested(self, run: Run) -> float | None:
        return run.test if self.decay is None else run.test_averaged.get(self.decay)

    def _value(self, run: Run) -> float:
        return run.best(self.decay)


def candidates(runs: Iterable[Run], averaged: bool = False) -> list[Candidate]:
    """The seeds of each setting together, in the order of the paper's tables and of η."""
    found: dict[tuple[Setting, Method, Setting, int, str | None], list[Run]] = {}
    for run in runs:
        for decay in run.last.val_averaged if averaged else [None]:
            found.setdefault((run.task, run.method, run.setting, run.epochs, decay), []).append(run)
    made = [Candidate(tuple(sorted(group, key=lambda r: r.config["seed"])), key[-1]) for key, group in found.items()]
    return sorted(
        made,
        key=lambda c: (rank(c.method), str(c.runs[0].task), c.runs[0].epochs, c.eta, str(c.setting), c.decay or ""),
    )


def choose(runs: Iterable[Run], averaged: bool = False) -> list[Candidate]:
    """The best candidate of each method of each task, among its longest runs."""
    groups: dict[tuple[Setting, Method], list[Candidate]] = {}
    for candidate in candidates(final(runs), averaged):
        groups.setdefault((candidate.runs[0].task, candidate.method), []).append(candidate)
    return [best(group) for group in groups.values()]


def preferred(candidate: Candidate, runs: Iterable[Run]) -> Candidate | None:
    """What the grid of the same method prefers, where that is not the setting that was run to the end."""
    mine = [run for run in grid(runs) if run.method == candidate.method]
    pool = candidates(mine, averaged=candidate.decay is not None)
    top = best(pool) if pool else None
    return top if top and top.setting != candidate.setting else None


def final(runs: Iterable[Run]) -> list[Run]:
    """The longest runs of each task; of these, where the test set was read for some of a method, only those."""
    runs = list(runs)
    longest: dict[Setting, int] = {}
    for run in runs:
        longest[run.task] = max(run.epochs, longest.get(run.task, 0))
    long = [run for run in runs if run.epochs == longest[run.task]]
    tested = {(run.task, run.method) for run in long if run.test is not None}
    return [run for run in long if run.test is not None or (run.task, run.method) not in tested]


def grid(runs: Iterable[Run]) -> list[Run]:
    """The cross-validation of one task: the runs of the length at which most settings were tried."""
    tried: dict[int, set[tuple[Method, Setting]]] = {}
    for run in (runs := list(runs)):
        tried.setdefault(run.epochs, set()).add((run.method, run.setting))
    length = max(tried, key=lambda epochs: (len(tried[epochs]), epochs), default=0)
    return [run for run in runs if run.epochs == length]


def best(group: Sequence[Candidate]) -> Candidate:
    """The candidate with the best validation value on the seeds that all have, or on their own where they share none.

    Of equal ones, the one whose test number was read.
    """
    seeds = [{run.config["seed"] for run in candidate.runs} for candidate in group]
    shared = set.intersection(*seeds)
    scored = [(c.score(shared or own), c.test.count > 0) for c, own in zip(group, seeds, strict=True)]
    return group[max(range(len(group)), key=scored.__getitem__)]


def rank(method: Method) -> tuple[int, Method]:
    """The paper's optimizers first, in its order."""
    at = ORDER.index(method.optimizer) if method.optimizer in ORDER else len(ORDER)
    return at, method
