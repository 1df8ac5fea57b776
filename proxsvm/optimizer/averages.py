"""The averages of the weights: next to them for training, in their place for evaluation.

The state of a parameter p shows where its two versions are, in either mode, whatever was loaded, and after an exception
at any point of a switch:

    state[p]["average"]    the average, unless p itself is it
    state[p]["weights"]    the training weights, unless p itself is them
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from proxsvm._kernels.tensors import accumulator
from proxsvm.geometry import averaging_rate

Prox: TypeAlias = Any  # a ProxOptimizer, which imports this module
STATISTICS = ("average:", "weights:", "t:")  # the prefixes of a model's averaged buffers in a parameter's state
COUNT = "t:buffers"


class Pair(NamedTuple):
    """A tensor of the model, and the keys of its two versions in ``own``, a parameter's state."""

    x: Tensor
    own: dict[str, Any]
    average: str = "average"
    weights: str = "weights"

    def check(self, averaged: bool) -> None:
        """Raise RuntimeError if the tensor is no longer the one that the state belongs to."""
        x, key = self.x, self.average if averaged else self.weights
        if (kept := self.own.get(key)) is None:
            return
        there, now = ((tuple(t.shape), t.dtype, t.device) for t in (kept, x))
        if there != (now[0], accumulator(x.dtype) if averaged else x.dtype, now[2]):
            raise RuntimeError(
                f"the {key} of a tensor: {there}; the tensor now: {now}. The model was converted or changed after the "
                "first step: convert a copy instead, copy.deepcopy(model).half()"
            )

    def put(self, averaged: bool) -> None:
        """x ← average, or x ← weights. Each line leaves both versions in ``own``, or one there and the other in x."""
        wanted, other = (self.average, self.weights) if averaged else (self.weights, self.average)
        x, own = self.x.detach(), self.own
        if wanted not in own:  # x is it, or has no second version
            return
        if other not in own:
            own[other] = x.clone()
        x.copy_(own[wanted])
        if own[wanted].dtype == x.dtype:  # digits that x cannot hold, in half precision, stay in the state
            del own[wanted]

    def version(self, key: str) -> Tensor | None:
        """The version ``key``, sharing memory with the model or the state; None where there are no two versions."""
        if self.average not in self.own and self.weights not in self.own:
            return None
        found: Tensor = self.own.get(key, self.x)
        return found.detach()


class Buffer(NamedTuple):
    """A buffer whose average is kept, by its module (the tensor may be replaced); the average starts at ``first``."""

    module: nn.Module
    name: str
    path: str
    first: Tensor

    def pair(self, own: dict[str, Any]) -> Pair:
        """The buffer as it is now, and its versions."""
        return Pair(getattr(self.module, self.name), own, f"average:{self.path}", f"weights:{self.path}")


def in_place(optimizer: Prox) -> bool:
    """Whether the averages are in place, or a switch was interrupted."""
    return any(group.get("averaged", False) for group in optimizer.param_groups)


@torch.no_grad()
def switch(optimizer: Prox, averaged: bool) -> None:
    """Put the averages in place, or the weights back; also what an interrupted switch has left to do.

    The groups say ``averaged`` from before the first tensor changes until the last one is back, so that no step can
    start from a half-switched model.
    """
    if not averaged and not in_place(optimizer):  # trainers call train() at every step
        return
    found = pairs(optimizer)
    for pair in found:
        pair.check(averaged)
    for group in optimizer.param_groups:
        group["averaged"] = True
    for pair in found:
        pair.put(averaged)
    for group in optimizer.param_groups:
        group["averaged"] = averaged
    if (model := optimizer._follower()) is not None:
        reshard(model)


def pairs(optimizer: Prox) -> list[Pair]:
    """Everything that has two versions, or may have; an average that is no longer updated is dropped."""
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            if own := optimizer.state.get(p):
                found.append(Pair(p, own))
                if group["average"] is None and "weights" not in own:
                    own.pop("average", None)
    home, longest = _home(optimizer)
    if longest is None and not in_place(optimizer):
        forget_buffers(optimizer)
    elif own := optimizer.state.get(home):
        found += [buffer.pair(own) for buffer in optimizer._buffers or ()]
    return found


def complete(optimizer: Prox, found: dict[str, Any]) -> dict[str, Any]:
    """The state dict, with both versions where the model's own has the averages, so that both resume together."""
    if not in_place(optimizer) and optimizer._follower() is None:
        return found
    copies = {id(own): (i, dict(own)) for i, p in enumerate(optimizer._params()) if (own := optimizer.state.get(p))}
    for pair in pairs(optimizer):
        for key in (pair.average, pair.weights):
            if (version := pair.version(key)) is not None:
                copies[id(pair.own)][1][key] = version.clone()  # the next switch changes the original
    found["state"] = {**found["state"], **dict(copies.values())}
    for group in found["param_groups"]:
        group["averaged"] = True
    return found


def loaded(optimizer: Prox, averaged: bool) -> None:
    """A state was loaded; ``averaged``: whether averages were in place before."""
    if optimizer._buffers is None:
        optimizer._buffers = unfollowed(optimizer)
    if not averaged and not any(pair.weights in pair.own for pair in pairs(optimizer)):
        switch(optimizer, False)  # there is only one version, as before the first step


# Buffers. ``optimizer._buffers`` are those of the model that follows it, None if there are none to average.


def unfollowed(optimizer: Prox) -> list[Buffer] | None:
    """No buffers, where a state has averages of some: the next step drops them, unless a model follows before."""
    home, _ = _home(optimizer)
    return [] if home is not None and COUNT in optimizer.state.get(home, {}) else None


def _home(optimizer: Prox) -> tuple[Tensor | None, float | None]:
    """The parameter whose state has the averages of the buffers, at first the first averaged one; its largest β."""
    owners = [(p, group["average"]) for group in optimizer.param_groups for p in group["params"]]
    holds = (owner for owner in owners if COUNT in optimizer.state.get(owner[0], {}))
    return next(holds, None) or next((owner for owner in owners if owner[1] is not None), (None, None))


def kinds(buffers: Iterable[Buffer]) -> dict[str, Tensor]:
    """Tensors of the shapes and dtypes that the averages of the buffers have in a state."""
    found = [buffer.pair({}) for buffer in buffers]
    return {p.average: p.x.to(accumulator(p.x.dtype)) for p in found} | {p.weights: p.x for p in found}


def update_buffers(optimizer: Prox, skip: Tensor) -> list[tuple[Tensor, Tensor]]:
    """b̄ ← β b̄ + (1 − β) b after a step, as the averages and their new values; nothing where ``skip`` holds."""
    home, longest = _home(optimizer)
    if not optimizer._buffers:  # this step is taken without them
        forget_buffers(optimizer)
        optimizer._buffers = None
    if optimizer._buffers is None or home is None or longest is None:
        return []
    own = optimizer.state[home]
    if COUNT not in own:
        own[COUNT] = torch.zeros((), dtype=accumulator(home.dtype), device=home.device)
    t, moves = own[COUNT], ~skip.to(home.device)
    found, rate = [(t, t + moves)], averaging_rate(longest, t)
    for buffer in optimizer._buffers:
        pair = buffer.pair(own)
        if pair.average not in own:
            own[pair.average] = buffer.first.to(pair.x.device, accumulator(pair.x.dtype), copy=True)
        pair.check(True)
        mean, here = own[pair.average], moves.to(pair.x.device)
        found.append((mean, mean - torch.where(here, (mean - pair.x) * rate.to(mean), 0.0)))
    return found


def forget_buffers(optimizer: Prox) -> None:
    """Drop the averages of buffers."""
    for own in filter(None, map(optimizer.state.get, optimizer._params())):
        for key in [key for key in own if str(key).startswith(STATISTICS)]:
            del own[key]


def reshard(model: nn.Module) -> None:
    """Let FSDP2 drop gathered copies of the shards, which an earlier forward pass may have left."""
    for module in model.modules():
        if callable(drop := getattr(module, "reshard", None)):
            drop()
