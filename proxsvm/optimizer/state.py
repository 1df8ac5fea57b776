"""What an optimizer keeps for its parameters between steps, in its ``state``.

state[p]:           q (memory), z (the paper's velocity), average, moved (for lr="auto"), the metric's own (v, ...),
                    and t, the steps that p has taken: one tensor for all that have taken the same steps
param_groups[0]:    skipped, h (memory), max_distance and squares (lr="auto"): 0-dim tensors for all groups
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.tensors import accumulator
from proxsvm.geometry import Group, Kept
from proxsvm.optimizer.ranks import local

SHARED = {"skipped": 0, "h": 0.0, "max_distance": -1.0, "squares": 0.0}  # of the whole optimizer, at first


def state_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the state ``name`` of a parameter: its own, or float32 or better for sums."""
    return dtype if name in ("z", "weights", "start") else accumulator(dtype)


class Store:
    """The state of the parameters ``owners`` that take a step, created when it is needed.

    ``keys``: parameters that have taken the same steps share one count, and so one pass over memory.
    """

    def __init__(
        self,
        state: Mapping[Tensor, dict[str, Any]],
        groups: Sequence[Mapping[str, Any]],
        owners: list[Tensor],
        memory: float,
    ) -> None:
        self._state, self._owners, self._memory = state, owners, memory
        self.keys: list[Hashable] | None = None
        counted = 0
        for group in groups:
            if group["metric"].state or group["average"] is not None:
                counted += len(group["params"])
                _count([(p, state[p]) for p in group["params"]])
        if counted:
            if counted < len(state):
                _part(state, owners)
            self.keys = [id(state[p].get("t")) if p in state else None for p in owners]

    def kept(self, group: Group, at: Sequence[int]) -> Kept:
        """What is kept for the parameters of a bucket."""
        owners, metric, auto = [self._owners[i] for i in at], group.metric, group.auto
        if not (metric.state or self._memory or group.momentum or auto or group.average is not None):
            return Kept([{}] * len(owners), None)
        states = [self._state[p] for p in owners]

        def tensors(name: str) -> list[Tensor]:
            return _tensors(name, owners, states)

        if metric.state:
            for p, own in zip(owners, states, strict=True):
                if not any(name in own for name in metric.state):
                    own.update(metric.start(p.detach()))
        sharded = metric.elementwise and any(local(p) is not p for p in owners)
        return Kept(
            [{name: local(own[name]) for name in metric.state} for own in states] if sharded else states,
            states[0].get("t"),
            q=tensors("q") if self._memory else None,
            z=tensors("z") if group.momentum else None,
            mean=None if group.average is None else tensors("average"),
            moved=tensors("moved") if auto else None,
        )


def _tensors(name: str, owners: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> list[Tensor]:
    """The state ``name``: zeros at first, or for the average the parameter itself."""
    dtype = state_dtype(name, owners[0].dtype)
    for p, own in zip(owners, states, strict=True):
        if name == "moved" and "start" in own:  # version 0.2 kept where the parameter started
            own[name] = (p.detach() - own.pop("start")).to(dtype)
        elif name not in own:
            zeros = name in ("q", "z", "moved")
            own[name] = torch.zeros_like(p, dtype=dtype) if zeros else p.detach().to(dtype, copy=True)
    if not {dtype}.issuperset(map(attrgetter("dtype"), (own[name] for own in states))):  # the model was converted
        for own in states:
            own[name] = own[name].to(dtype)
    return [local(own[name]) for own in states]


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=accumulator(like.dtype), device=like.device)


def _count(states: Sequence[tuple[Tensor, dict[str, Any]]]) -> None:
    """Give every parameter that has none a count, one for all that start together."""
    fresh: dict[Hashable, Tensor] = {}
    for p, own in states:
        if "t" not in own:
            own["t"] = fresh.setdefault((p.device, accumulator(p.dtype)), _zero(p))


def _part(state: Mapping[Tensor, dict[str, Any]], owners: Sequence[Tensor]) -> None:
    """Parameters that do not take this step no longer share the count of those that do."""
    present = {id(p) for p in owners}
    moving = {id(state[p]["t"]) for p in owners if "t" in state.get(p, {})}
    kept: dict[int, Tensor] = {}
    for p, own in state.items():
        t = own.get("t") if id(p) not in present and isinstance(own, dict) else None
        if t is not None and id(t) in moving:
            own["t"] = kept.setdefault(id(t), t.clone())


def shared_scalars(groups: Sequence[dict[str, Any]]) -> None:
    """Put the 0-dim tensors of the whole optimizer into its first group, on the device of the first parameter.

    torch does not move tensors in ``param_groups`` when it loads a state.
    """
    like = next((p for group in groups for p in group["params"]), torch.empty(()))
    for name, first in SHARED.items():
        dtype = torch.long if name == "skipped" else accumulator(like.dtype)
        known = groups[0].get(name, first)
        groups[0][name] = torch.as_tensor(known).to(like.device, dtype, copy=True).reshape(())


def upgraded(state_dict: Any) -> Any:
    """A state of version 0.2 as one of today: the history of lr="auto" was kept in each group, under other names."""
    groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
    if not isinstance(groups, list) or not any(isinstance(g, Mapping) and "far" in g for g in groups):
        return state_dict
    known: Mapping[str, Any] = next((g for g in groups if "far" in g and g["far"] >= 0), {})
    renamed = [{k: v for k, v in g.items() if k not in ("far", "squares")} for g in groups]
    if known:
        renamed[0] |= {"max_distance": known["far"], "squares": known["squares"]}
    return {**state_dict, "param_groups": renamed}


def keep_precision(
    saved: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, dict[str, Any]]
) -> None:
    """Undo what torch does to a loaded state: tensors keep their dtype, and share no memory with what was loaded.

    That may be the state of another optimizer that goes on, or share memory with the parameters. Equal counts of a
    group are shared.
    """
    for theirs, mine in zip(saved["param_groups"], groups, strict=True):
        shared: dict[tuple[torch.device, torch.dtype, float], Tensor] = {}
        for key, p in zip(theirs["params"], mine["params"], strict=True):
            given = saved["state"].get(key, {})
            for name, x in given.items():
                if isinstance(x, Tensor) and (state[p][name] is x or state[p][name].dtype != x.dtype):
                    state[p][name] = x.to(p.device, copy=True)
            if "t" in given:
                t = state[p]["t"]
                state[p]["t"] = shared.setdefault((t.device, t.dtype, float(t)), t)
