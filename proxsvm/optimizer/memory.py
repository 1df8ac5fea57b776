"""What an optimizer keeps for its parameters between steps, in its ``state``."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.passes import Tensors
from proxsvm._kernels.step import StepKernels
from proxsvm._kernels.tensors import accumulator
from proxsvm.metrics._auto import DistanceOverGradients
from proxsvm.metrics._cell import Memory
from proxsvm.metrics._geometry import Geometry
from proxsvm.metrics._groups import flatten
from proxsvm.metrics.base import Metric
from proxsvm.optimizer.groups import state_dtype, state_shape
from proxsvm.optimizer.ranks import Ranks, ShardedGeometry, any_sharded, is_split, local


class StateMemory(Memory):
    """What belongs to each parameter, created when needed.

    The velocity ``z``, the second moment ``v``, the ``average``, the ``start`` (the first value, for lr="auto"), the
    step count ``t``.

    ``t`` is one tensor for all parameters of a group that have taken the same steps: where it is shared, one pass over
    memory can process them together.
    """

    def __init__(
        self,
        state: Mapping[Tensor, dict[str, Any]],
        groups: Sequence[dict[str, Any]],
        owners: Sequence[Tensor],
        counted: Sequence[bool],
    ) -> None:
        self._state, self._owners = state, owners
        for group, count in zip(groups, counted, strict=True):
            if count:
                self._count(group["params"])
        self.auto = _auto(groups)
        if any(counted):
            known = [state.get(p, {}) for p in owners]
            self.kinds: Sequence[Hashable] | None = [id(own.get("t")) for own in known]
            if sum(map(bool, known)) < len(state):
                self._part()

    def _count(self, params: Sequence[Tensor]) -> None:
        fresh: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for p in params:
            if "t" not in self._state[p]:
                kind = p.device, accumulator(p.dtype)  # what is computed from it has the step's precision
                if kind not in fresh:
                    fresh[kind] = torch.zeros((), dtype=kind[1], device=p.device)
                self._state[p]["t"] = fresh[kind]

    def _part(self) -> None:
        """Parameters that do not take this step no longer share the count of those that do."""
        present, kinds = set(map(id, self._owners)), set(self.kinds or ())
        kept: dict[int, Tensor] = {}
        for p, own in self._state.items():
            t = own.get("t")
            if t is not None and id(t) in kinds and id(p) not in present:
                own["t"] = kept.setdefault(id(t), t.clone())

    def tensors(self, name: str, at: Sequence[int], w: Tensors, metric: Metric) -> list[Tensor]:
        """The state ``name``: zeros at first, or for the average the parameter itself."""
        dtype = state_dtype(name, w[0].dtype)
        states = self._states(at)
        try:
            found = [own[name] for own in states]
        except KeyError:  # a first step
            for i, own in zip(at, states, strict=True):
                if name not in own:
                    own[name] = _at_first(name, self._owners[i], metric, dtype)
            found = [own[name] for own in states]
        if not {dtype}.issuperset(map(attrgetter("dtype"), found)):  # the model was converted
            for own in states:
                own[name] = own[name].to(dtype)
            found = [own[name] for own in states]
        return [local(x) for x in found] if any_sharded(found) else found

    def _states(self, at: Sequence[int]) -> Collection[dict[str, Any]]:
        """Of the parameters at some indices; without a look-up where the order is that of the state, the usual case.

        (A tensor as a key is hashed in Python.)
        """
        if len(at) == len(self._owners) == len(self._state) and all(map(is_, self._state, self._owners)):
            return self._state.values()
        return [self._state[self._owners[i]] for i in at]

    def steps(self, at: Sequence[int]) -> Tensor | None:
        """The shared count of these parameters."""
        found: Tensor | None = self._state.get(self._owners[at[0]], {}).get("t")  # reading creates no empty state
        return found


def _at_first(name: str, p: Tensor, metric: Metric, dtype: torch.dtype) -> Tensor:
    """The state ``name`` before the first step: zeros, or for the average and the start the parameter itself."""
    if name in ("average", "start"):
        return p.detach().to(dtype, copy=True)
    shape = state_shape(name, p, metric)  # zeros_like keeps strides and shards
    return torch.zeros_like(p, dtype=dtype) if shape == p.shape else p.new_zeros(shape, dtype=dtype)


def _auto(groups: Sequence[dict[str, Any]]) -> DistanceOverGradients | None:
    """The rule for lr="auto"; its two scalars are kept in the first group that uses it, for all of them.

    Even if that group has no gradients, as long as it is frozen, for example.
    """
    first = next((g for g in groups if g.get("auto") and "far" in g), None)
    return None if first is None else DistanceOverGradients(first["far"], first["squares"])


def keep_history(groups: Sequence[dict[str, Any]]) -> None:
    """Move the history of lr="auto" to the first group; older versions kept it in the first one with gradients."""
    used = [g for g in groups if g.get("auto") and "far" in g]
    known = next((g for g in used if g["far"] >= 0), None)
    if known is not None and known is not used[0]:
        for name in ("far", "squares"):
            used[0][name] = known[name].to(used[0][name], copy=True)


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
                if state[p][name] is x or state[p][name].dtype != x.dtype:
                    state[p][name] = x.to(p.device, copy=True)
            if "t" in given:
                t = state[p]["t"]
                state[p]["t"] = shared.setdefault((t.device, t.dtype, float(t)), t)


def geometry_of(
    groups: list[dict[str, Any]],
    owners: list[Tensor],
    state: Mapping[Tensor, dict[str, Any]],
    kernels: StepKernels,
    ranks: Ranks | None,
) -> Geometry:
    """The geometry of this rank's parts of the parameters, ``owners``, with what the optimizer keeps for them."""
    counted = [bool(g["metric"].state) or g["average"] is not None for g in groups]
    memory = StateMemory(state, groups, owners, counted)
    if not any_sharded(owners):
        return Geometry(*flatten(groups, None, 0.0), kernels, memory=memory)
    if kernels.fused:
        raise RuntimeError("fused=True, but a parameter is a DTensor: leave fused at None")
    for metric in (g["metric"] for g in groups if not g["metric"].elementwise and any_sharded(g["params"])):
        raise RuntimeError(
            f"{metric} needs whole parameters, but they are sharded (DTensor): use an elementwise metric, such as "
            "Diagonal, or give the sharded parameters a group with another metric"
        )
    parts = flatten([{**g, "params": [local(p) for p in g["params"]]} for g in groups], None, 0.0)
    if ranks is not None:
        return ShardedGeometry(*parts, kernels, memory, owners, ranks)
    if any(is_split(p) for p in owners):
        raise RuntimeError(
            "a parameter is sharded over several ranks (DTensor), but this optimizer has no process group to sum "
            "over: leave process_group at 'default', or give it the ranks of the device mesh"
        )
    return Geometry(*parts, kernels, memory=memory)
