"""What an optimizer keeps for its parameters between steps, in its ``state``; and saved states, checked and loaded.

state[p]:           what is in KEPT, where it is used; the metric's own (v, ...); and t, the steps that p has taken: one
                    tensor for all that have taken the same steps
param_groups[0]:    what is in SHARED: 0-dim tensors for all groups
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from proxsvm._kernels.tensors import accumulator
from proxsvm.geometry import Group, Kept
from proxsvm.metrics.base import Metric
from proxsvm.optimizer.averages import COUNT, STATISTICS
from proxsvm.optimizer.groups import check_group
from proxsvm.optimizer.ranks import any_sharded, local

# By name: whether it is kept in float32 or better, as sums are, and whether it begins with 0 or with the parameter.
KEPT = {
    "q": (True, True),  # memory
    "z": (False, True),  # the paper's velocity
    "moved": (True, True),  # for lr="auto", the sum of the steps
    "average": (True, False),
    "weights": (False, False),  # those of training, while the average is in place
    "start": (False, False),  # where the parameter began, of version 0.2 for lr="auto"
}
SHARED = {"skipped": 0, "h": 0.0, "max_distance": -1.0, "squares": 0.0}  # with the first values; h: memory
FOREIGN = {"nesterov", "dampening", "betas", "amsgrad", "rho", "alpha", "centered", "capturable", "lr_decay", "etas"}


def state_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the state ``name`` of a parameter."""
    return accumulator(dtype) if KEPT[name][0] else dtype


class Store:
    """The state of the parameters ``owners`` that take a step, created when it is needed.

    ``keys``: parameters that have taken the same steps share one count, and so one pass over memory.
    """

    def __init__(self, state: Mapping[Tensor, dict[str, Any]], owners: list[Tensor], memory: float) -> None:
        self._state, self._owners, self._memory = state, owners, memory
        self.keys: list[Hashable] = [id(state[p].get("t")) if p in state else None for p in owners]

    def kept(self, group: Group, at: Sequence[int]) -> Kept:
        """What is kept for the parameters of a bucket."""
        metric, averaged = group.metric, group.average is not None
        uses = {"q": self._memory, "z": group.momentum, "average": averaged, "moved": group.auto}
        if not (metric.state or any(uses.values())):
            return Kept([{}] * len(at), None, {})
        owners = [self._owners[i] for i in at]
        states = learned = [self._state[p] for p in owners]
        for p, own in zip(owners, states, strict=True):
            if metric.state and not any(name in own for name in metric.state):
                own.update(metric.start(p.detach()))
        if metric.state or averaged:
            self._count(owners[0], states)
        vectors = {name: _tensors(name, owners, states) for name, used in uses.items() if used}
        if any_sharded(owners):
            vectors = {name: [local(x) for x in tensors] for name, tensors in vectors.items()}
            learned = [{name: local(own[name]) for name in metric.state} for own in states]
        return Kept(learned, states[0].get("t"), vectors)

    def _count(self, p: Tensor, states: Sequence[dict[str, Any]]) -> None:
        """Give the parameters of a bucket a count of their own: others with the same one may not take this step."""
        t = states[0].get("t")
        if t is None:
            t = torch.zeros((), dtype=accumulator(p.dtype), device=p.device)
        elif len(self._state) > len(states):
            same = sum(isinstance(own, dict) and own.get("t") is t for own in self._state.values())
            t = t.clone() if same > len(states) else t
        for own in states:
            own["t"] = t


def _tensors(name: str, owners: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> list[Tensor]:
    """The state ``name``, created or converted where it has to be."""
    dtype = state_dtype(name, owners[0].dtype)
    for p, own in zip(owners, states, strict=True):
        if name == "moved" and "start" in own:
            own[name] = (p.detach() - own.pop("start")).to(dtype)
        elif name not in own:
            own[name] = torch.zeros_like(p, dtype=dtype) if KEPT[name][1] else p.detach().to(dtype, copy=True)
        elif own[name].dtype != dtype:  # the model was converted
            own[name] = own[name].to(dtype)
    return [own[name] for own in states]


def shared_scalars(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first group, with the 0-dim tensors of the whole optimizer, on the device of the first parameter.

    torch does not move tensors in ``param_groups`` when it loads a state, nor does a model that is moved or converted.
    """
    like = next((p for group in groups for p in group["params"]), torch.empty(()))
    for name, first in SHARED.items():
        dtype = torch.long if name == "skipped" else accumulator(like.dtype)
        known = groups[0].get(name, first)
        if not isinstance(known, Tensor) or (known.shape, known.device, known.dtype) != ((), like.device, dtype):
            groups[0][name] = torch.as_tensor(known).to(like.device, dtype).reshape(())
    return groups[0]


# Saved states.


def checked(
    state_dict: Any, groups: Sequence[Mapping[str, Any]], metrics: Sequence[Metric], buffers: Mapping[str, Tensor]
) -> dict[str, Any]:
    """A saved state as one of today; raise ValueError unless it fits an optimizer with these groups, shapes and dtypes.

    Keys that are no parameters' are the user's own. ``buffers``: by their names in the state.
    """
    try:
        saved, states = _upgraded([dict(group) for group in state_dict["param_groups"]]), dict(state_dict["state"])
    except (TypeError, ValueError, KeyError) as error:
        given = list(state_dict) if isinstance(state_dict, Mapping) else state_dict
        expected = "a state_dict: a dict 'state' and a list of dicts 'param_groups'"
        raise ValueError(f"got {given!r}; expected {expected}") from error
    for k, group in enumerate(saved):
        missing, foreign = {"params", "lr", "momentum", "weight_decay"} - set(group), FOREIGN & set(group)
        if missing or foreign:
            raise ValueError(
                f"group {k} of the state_dict lacks {sorted(missing)} and has {sorted(foreign)}: it is the state of "
                "another optimizer. Start with a new ProxOptimizer, and choose its lr again"
            )
        try:
            check_group({**group, "params": []}, {})
        except TypeError as error:
            raise ValueError(f"group {k} of the state_dict: {error}") from error
        for name in SHARED.keys() & group.keys():
            _check_tensor(f"the state {name!r} of group {k}", group[name], None)
    theirs, mine = ([len(g["params"]) for g in found] for found in (saved, groups))
    if theirs != mine:
        raise ValueError(
            f"the parameter groups of the state_dict have {theirs} parameters, this optimizer's {mine}: build the "
            "optimizer as it was when the state was saved"
        )
    averaged, rows = any(group["averaged"] for group in saved), zip(saved, groups, metrics, strict=True)
    owners = {k: (p, m) for old, new, m in rows for k, p in zip(old["params"], new["params"], strict=True)}
    for key, own in states.items():
        if key in owners:
            _check_own(key, own, *owners[key], averaged, buffers)
        elif isinstance(key, int):
            raise ValueError(f"the state_dict has a state for parameter {key}, which is in none of its groups")
    return {**state_dict, "param_groups": saved}


def _upgraded(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Older groups as those of today: 0.2 kept the history of lr="auto" in each of them, under other names."""
    if any("far" in group for group in groups):
        known = next((g for g in groups if g.get("far", -1) >= 0), {"far": -1.0, "squares": 0.0})
        groups = [{name: x for name, x in group.items() if name not in ("far", "squares")} for group in groups]
        groups[0] |= {"max_distance": known["far"], "squares": known["squares"]}
    return [{**g, "average": g.get("average"), "averaged": g.get("averaged", False)} for g in groups]


def _check_own(key: Any, own: Any, p: Tensor, metric: Metric, averaged: bool, buffers: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless ``own`` can be the state of the parameter ``p``: names, shapes, dtypes, finiteness."""
    blank = torch.empty(p.shape, dtype=p.dtype, device="meta")
    kept, learned = {name: blank.to(state_dtype(name, p.dtype)) for name in KEPT}, metric.start(blank)
    expected = {**learned, **buffers, **kept, "t": None, COUNT: None}
    names: set[Any] = set(own) if isinstance(own, Mapping) else {type(own)}
    unknown = [name for name in names - set(expected) if not str(name).startswith(STATISTICS)]
    if unknown or (names & set(KEPT) and learned and not names & set(learned)):
        raise ValueError(
            f"the state of parameter {key} has {sorted(map(str, names))}; expected {sorted(KEPT)} at most, and "
            f"{list(learned)} of {metric}: it is the state of another optimizer, or was saved with another metric"
        )
    for name in names & set(expected):
        _check_tensor(f"the state {name!r} of parameter {key}", own[name], expected[name], p.is_meta)
    versions = names & {"average", "weights"}
    if versions and versions != ({"average", "weights"} if averaged else {"average"}):
        raise ValueError(
            f"the state of parameter {key} has {sorted(map(str, names))}, but its groups averaged={averaged}: expected "
            "both 'average' and 'weights' where that is True, otherwise only the first. (With "
            "torch.distributed.checkpoint, call proxsvm.follow() before you get the state to load into.)"
        )


def _check_tensor(what: str, x: Any, like: Tensor | int | None, meta: bool = False) -> None:
    """Raise ValueError unless ``x`` is like a tensor, a tensor of one number (None), or a count (int)."""
    if isinstance(like, int):
        fine = isinstance(x, int) and x >= 0
    else:
        fine = isinstance(x, Tensor) and (meta or not x.is_meta)
        fine = fine and (x.numel() == 1 if like is None else (x.shape, x.dtype) == (like.shape, like.dtype))
    if not fine:
        given = f"{tuple(x.shape)}, {x.dtype}" if isinstance(x, Tensor) else repr(x)
        wanted = f"a tensor {tuple(like.shape)}, {like.dtype}" if isinstance(like, Tensor) else "a number"
        raise ValueError(
            f"{what} is {given}; expected {wanted}: it was saved with another model or in another precision"
        )
    if isinstance(x, Tensor) and not x.is_meta and not local(x).isfinite().all():
        raise ValueError(f"{what} contains NaN or infinite values: it is damaged")


def keep_precision(
    saved: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, dict[str, Any]]
) -> None:
    """Undo what torch does to a loaded state: tensors keep their dtype, and share no memory with what was loaded.

    That may be the state of another optimizer that goes on, or share memory with the parameters. Equal counts are
    shared.
    """
    shared: dict[tuple[torch.device, torch.dtype, float], Tensor] = {}
    for theirs, mine in zip(saved["param_groups"], groups, strict=True):
        for key, p in zip(theirs["params"], mine["params"], strict=True):
            given = saved["state"].get(key, {})
            state[p].update({name: x.to(p.device, copy=True) for name, x in given.items() if isinstance(x, Tensor)})
            if "t" in given:
                t = state[p]["t"]
                state[p]["t"] = shared.setdefault((t.device, t.dtype, float(t)), t)
