"""What one pass over memory covers: parameters of a group with the same dtype and device, and their state."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor

from proxsvm._kernels.passes import Moments, Passes, Sums, Tensors
from proxsvm._kernels.step import StepKernels
from proxsvm._kernels.tensors import accumulator
from proxsvm._numbers import Number, to_float
from proxsvm.metrics._auto import DistanceOverGradients
from proxsvm.metrics._groups import Group
from proxsvm.metrics.base import Metric


class Memory:
    """The state left by earlier steps: nothing, for a problem built by hand. An optimizer overrides it.

    ``kinds``: for each parameter, what it must share with others to be processed in one pass.
    """

    kinds: Sequence[Hashable] | None = None

    def tensors(self, name: str, at: Sequence[int], w: Tensors, metric: Metric) -> list[Tensor]:
        """The state ``name`` of the parameters ``w`` at some indices, created where it is missing."""
        return [t.new_zeros(metric.shape(name, t), dtype=accumulator(t.dtype)) for t in w]

    def steps(self, at: Sequence[int]) -> Tensor | None:
        """How many steps these parameters have taken, one count for all of them."""
        return None

    # Automatic η.

    auto: DistanceOverGradients | None = None
    found: Number = 1.0

    def find(self, start: Number, distance: Number, squares: Number) -> None:
        """Choose η for this step."""
        if self.auto is None:
            raise ValueError("lr='auto' needs the history of an optimizer; a problem built by hand needs a number")
        self.found = self.auto.eta(start, distance, squares)

    def commit(self, skip: bool | Tensor) -> None:
        """The step was taken, unless ``skip`` holds."""
        if self.auto is not None:
            self.auto.commit(skip)


class Cell:
    """The parameters of one group, dtype and device: what one pass over memory covers.

    ``at``: their indices in the problem's list; ``share``: the weight of their inner products in a sum over ranks,
    1/copies where several ranks hold the same parameters; ``observed``: the direction that fixed the metric, and its
    moments; ``fixed``: what the metric keeps within the step, such as M where it had to be formed.
    """

    def __init__(
        self, group: Group, at: Sequence[int], w: list[Tensor], kernels: StepKernels, share: float, memory: Memory
    ) -> None:
        self.group, self.at, self.w, self.kernels, self.share, self.memory = group, at, w, kernels, share, memory
        self.whole = False  # whether the cell covers the whole problem
        self.observed: tuple[Tensors, Moments] | None = None  # see observe()
        self.fixed: Any = None
        self._sums: tuple[Tensors, Sums] | None = None
        self._part: tuple[Tensors, Tensors] | None = None
        self._passes: tuple[Tensors, Passes] | None = None

    def of(self, x: Tensors) -> Tensors:
        """The cell's part of a vector; the same list for the same vector."""
        if self.whole:
            return x
        if self._part is None or self._part[0] is not x:
            self._part = x, [x[i] for i in self.at]
        return self._part[1]

    def state(self, name: str) -> list[Tensor]:
        """The state left by earlier steps, one tensor per parameter."""
        return self.memory.tensors(name, self.at, self.w, self.group.metric)

    @property
    def steps(self) -> Tensor | None:
        """How many steps were taken before this one."""
        return self.memory.steps(self.at)

    def observe(self, x: Tensors, moments: Moments) -> None:
        """Let the moments of ``x`` define the metric of this step."""
        self.observed, self.fixed, self._passes, self._sums = (x, moments), None, None, None

    def passes(self, x: Tensors) -> Passes:
        """The two passes over w and x; those of the last x are kept, because the update follows the inner products."""
        if self._passes is None or self._passes[0] is not x:
            moments = self.observed[1] if self.observed is not None and self.observed[0] is x else None
            self._passes = x, self.kernels.bind(self.w, x, moments)
        return self._passes[1]

    def squared_length(self, x: Tensors) -> Number:
        """Σ x², without a metric."""
        in_metric = self.observed is not None and self.observed[0] is x
        passes = self.kernels.bind(self.w, x) if in_metric else self.passes(x)
        return passes.products(with_w=False).xx

    @property
    def eta(self) -> Number:
        """η: the group's own, times the automatic one where that is requested; in the step's precision."""
        eta = self.group.eta
        if isinstance(eta, Tensor):
            eta = eta.to(accumulator(self.w[0].dtype))
        return eta * self.memory.found if self.group.auto else eta

    def eta_for(self, other: Number) -> Number:
        """η, as a float where ``other``, with which it will be combined, is one."""
        return self.eta if isinstance(other, Tensor) else to_float(self.eta)

    def sums(self, x: Tensors, with_w: bool = True) -> Sums:
        """The inner products of w and x; those of the direction that was observed last are kept."""
        if self._sums is None or self._sums[0] is not x:
            start = self.state("start") if self.group.auto else None
            self._sums = x, self.group.metric.products(self, x, with_w or self.group.auto, start)
        return self._sums[1]


def of_a_kind(
    params: list[Tensor], group: Group, shares: Sequence[float] | None, kinds: Sequence[Hashable] | None
) -> list[Sequence[int]]:
    """The indices of a group's parameters, split by device, dtype, share and kind."""
    own = params[group.at.start : group.at.stop]
    if not own:
        return []
    alike = shares is None and (kinds is None or len(set(kinds[group.at.start : group.at.stop])) == 1)
    if alike and {own[0].dtype}.issuperset(map(attrgetter("dtype"), own)) and _on_one_device(own):
        return [group.at]  # the usual case
    keys = [
        (p.device, p.dtype, None if shares is None else shares[i], None if kinds is None else kinds[i])
        for i, p in zip(group.at, own, strict=True)
    ]
    return [[i for i, other in zip(group.at, keys, strict=True) if other == key] for key in dict.fromkeys(keys)]


def _on_one_device(tensors: Tensors) -> bool:
    return all(map(attrgetter("is_cpu"), tensors)) or len(set(map(attrgetter("device"), tensors))) == 1
