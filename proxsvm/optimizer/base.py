"""Parameter groups with their own metrics, the ranks that hold them, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.tensors import accumulator
from proxsvm.metrics._groups import check_metric
from proxsvm.metrics.base import Metric
from proxsvm.optimizer.groups import check_group, check_state, checked
from proxsvm.optimizer.memory import keep_history, keep_precision
from proxsvm.optimizer.ranks import ProcessGroup, Ranks, ranks_of


class GroupedOptimizer(torch.optim.Optimizer):
    """An optimizer whose groups are checked, and each have a metric besides their options."""

    _step_supports_amp_scaling = True  # a GradScaler leaves the scale to step()
    process_group: ProcessGroup
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

    def _groups_with_gradients(self) -> tuple[list[dict[str, Any]], list[Tensor], list[Tensor]]:
        """The same for the parameters that have a gradient; also these parameters, and their gradients."""
        groups: list[dict[str, Any]] = []
        owners: list[Tensor] = []
        grads: list[Tensor] = []
        for g, metric in zip(self.param_groups, self._metrics, strict=True):
            params = g["params"]
            found = [x for x in [p.grad for p in params] if x is not None]
            if len(found) < len(params):
                params = [p for p in params if p.grad is not None]
            groups.append({**checked(g), "params": params, "metric": metric})
            owners += params
            grads += found
        if not grads and any(p.is_meta for p in self._params()):
            raise RuntimeError(
                "the optimizer's parameters are on the meta device, without a gradient: module.to_empty() has replaced "
                "them. Create the optimizer after that, from the model's new parameters"
            )
        return groups, owners, grads

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
        if group.get("auto") and group["params"]:
            like = group["params"][0]
            far = torch.full((), -1.0, dtype=accumulator(like.dtype), device=like.device)
            group["far"], group["squares"] = far, torch.zeros_like(far)

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError unless ``state_dict`` comes from an optimizer with these groups, shapes and dtypes."""
        check_state(state_dict, self.param_groups, self._metrics)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; it is checked before anything changes.

        The state of ``Euclidean()`` without momentum or averages holds no tensors, and does not tell its metric: an
        optimizer with another metric takes over its options, including ``lr``, and starts with fresh moments.
        """
        self.check_state_dict(state_dict)
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.setdefault("average", None)  # saved before there were averages
        keep_precision(state_dict, self.param_groups, self.state)
        keep_history(self.param_groups)
