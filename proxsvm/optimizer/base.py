"""Parameter groups with their own metrics, the ranks that hold them, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from proxsvm.geometry import check_metric
from proxsvm.metrics.base import Metric
from proxsvm.optimizer.groups import check_group, check_state, checked
from proxsvm.optimizer.ranks import ProcessGroup, Ranks, ranks_of
from proxsvm.optimizer.state import keep_precision, shared_scalars, upgraded


class GroupedOptimizer(torch.optim.Optimizer):
    """An optimizer whose groups are checked, and each have a metric besides their options."""

    _step_supports_amp_scaling = True  # a GradScaler leaves the scale to step()
    process_group: ProcessGroup
    memory: float
    _replicas_checked = False

    def __init__(self, params: Iterable[Any], metric: Metric | None, defaults: dict[str, Any]) -> None:
        self._metric, self._metrics = check_metric(metric), list[Metric]()
        super().__init__(params, defaults)

    def _params(self) -> list[Tensor]:
        return [p for g in self.param_groups for p in g["params"]]

    def _groups(self, wanted: Callable[[Any], bool]) -> list[dict[str, Any]]:
        """The groups, each with its metric and only the wanted parameters."""
        return [
            {**checked(g), "params": [p for p in g["params"] if wanted(p)], "metric": metric}
            for g, metric in zip(self.param_groups, self._metrics, strict=True)
        ]

    def _ranks(self) -> Ranks | None:
        ranks = ranks_of(self.process_group)
        if ranks is not None and not self._replicas_checked and not torch.compiler.is_compiling():
            ranks.check(self._params())
            self._replicas_checked = True
        return ranks

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own options, ``metric`` included; it is checked before anything changes."""
        metric = check_metric(param_group.get("metric", self._metric))
        group = {k: v for k, v in param_group.items() if k != "metric"}  # an object, which does not belong in a state
        check_group(group, self.defaults)
        super().add_param_group(group)
        self._metrics.append(metric)
        self._replicas_checked = False
        shared_scalars(self.param_groups)

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError unless ``state_dict`` comes from an optimizer with these groups, shapes and dtypes."""
        check_state(upgraded(state_dict), self.param_groups, self._metrics)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, one of version 0.2 included; it is checked before anything changes.

        The state of ``Euclidean()`` without momentum or averages holds no tensors, and does not tell its metric: an
        optimizer with another metric takes over its options, including ``lr``, and starts with fresh moments.
        """
        state_dict = upgraded(state_dict)
        self.check_state_dict(state_dict)
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.setdefault("average", None)  # saved before there were averages
        keep_precision(state_dict, self.param_groups, self.state)
        shared_scalars(self.param_groups)
