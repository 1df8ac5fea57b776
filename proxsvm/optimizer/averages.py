"""The averages of the weights: next to them for training, in their place for evaluation.

The state of a parameter p shows where its two versions are, in either mode, whatever was loaded, and after an exception
at any point of a switch:

    state[p]["average"]    the average, unless p itself is it
    state[p]["weights"]    the training weights, unless p itself is them
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from proxsvm.geometry import averaging_rate
from proxsvm.optimizer.messages import AVERAGED

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
        there = self.own.get(key, x)
        dtype = wide(x.dtype) if averaged and key in self.own else x.dtype
        if (there.shape, there.device, there.dtype) != (x.shape, x.device, dtype):
            raise RuntimeError(
                f"the {key} of a tensor: {tuple(there.shape)}, {there.dtype} on {there.device}; the tensor now: "
                f"{tuple(x.shape)}, {x.dtype} on {x.device}. The model was converted or changed after the first step: "
                "convert a copy instead, copy.deepcopy(model).half()"
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


class Averages:
    """What an optimizer needs to switch between its weights and their averages, which its steps keep in its state.

    ``group["average"]`` is the largest β of a group, or None, and ``group["averaged"]`` whether averages are in place.
    ``buffers``: what a following model has; empty where averages were loaded that nobody follows; None for no work.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.buffers: list[Buffer] | None = None
        self.model: weakref.ref[nn.Module] | None = None  # which follows the optimizer
        self.bind(optimizer)

    def bind(self, optimizer: torch.optim.Optimizer) -> None:
        """Belong to ``optimizer``, which keeps this object alive."""
        self._optimizer = weakref.proxy(optimizer)

    def __getstate__(self) -> dict[str, Any]:
        return {"buffers": self.buffers, "model": None}  # a copied model follows nobody

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups."""
        return list(self._optimizer.param_groups)

    def _own(self, p: Tensor) -> dict[str, Any]:
        """The state of a parameter, or an empty one that is not kept."""
        return cast("dict[str, Any]", self._optimizer.state.get(p, {}))

    def params(self) -> list[Tensor]:
        """The optimizer's parameters."""
        return [p for group in self.groups for p in group["params"]]

    @property
    def in_place(self) -> bool:
        """Whether the averages are in place, or a switch was interrupted."""
        return any(group.get("averaged", False) for group in self.groups)

    def require_training(self) -> None:
        """Raise RuntimeError if the averages are in place."""
        if self.in_place:
            raise RuntimeError(AVERAGED)

    @torch.no_grad()
    def switch(self, averaged: bool) -> None:
        """Put the averages in place, or the weights back; also what an interrupted switch has left to do.

        The groups say ``averaged`` from before the first tensor changes until the last one is back, so that no step can
        start from a half-switched model.
        """
        if not averaged and not self.in_place:  # trainers call train() at every step
            return
        pairs = self.pairs()
        for pair in pairs:
            pair.check(averaged)
        self._flag(True)
        for pair in pairs:
            pair.put(averaged)
        self._flag(averaged)
        if self.model is not None and (model := self.model()) is not None:
            reshard(model)

    def _flag(self, averaged: bool) -> None:
        for group in self.groups:
            group["averaged"] = averaged

    def pairs(self) -> list[Pair]:
        """Everything that has two versions, or may have; an average that is no longer updated is dropped."""
        found = []
        for group in self.groups:
            for p in filter(self._own, group["params"]):
                found.append(Pair(p, own := self._own(p)))
                if group["average"] is None and "weights" not in own:
                    own.pop("average", None)
        home, longest = self._home()
        if longest is None and not self.in_place:
            self.forget_buffers()
        elif home is not None and (own := self._own(home)):
            found += [buffer.pair(own) for buffer in self.buffers or ()]
        return found

    # Buffers.

    def _home(self) -> tuple[Tensor | None, float | None]:
        """The parameter whose state has the averages of the buffers, at first the first averaged one; its largest β."""
        owners = [(p, group["average"]) for group in self.groups for p in group["params"]]
        holds = (owner for owner in owners if COUNT in self._own(owner[0]))
        return next(holds, None) or next((owner for owner in owners if owner[1] is not None), (None, None))

    def kinds(self) -> dict[str, Tensor]:
        """Tensors of the shapes and dtypes that the averages of the buffers have in a state."""
        pairs = [buffer.pair({}) for buffer in self.buffers or ()]
        return {p.average: p.x.to(wide(p.x.dtype)) for p in pairs} | {p.weights: p.x for p in pairs}

    def update(self, skip: Tensor) -> list[tuple[Tensor, Tensor]]:
        """b̄ ← β b̄ + (1 − β) b after a step, as the averages and their new values; nothing where ``skip`` holds."""
        home, longest = self._home()
        if not self.buffers:  # this step is taken without them
            self.forget_buffers()
            self.buffers = None
        if self.buffers is None or home is None or longest is None:
            return []
        own = self._optimizer.state[home]
        if COUNT not in own:
            own[COUNT] = torch.zeros((), dtype=wide(home.dtype), device=home.device)
        t, moves = own[COUNT], ~skip.to(home.device)
        found, rate = [(t, t + moves)], averaging_rate(longest, t)
        for buffer in self.buffers:
            pair = buffer.pair(own)
            if pair.average not in own:
                own[pair.average] = buffer.first.to(pair.x.device, wide(pair.x.dtype), copy=True)
            pair.check(True)
            mean, here = own[pair.average], moves.to(pair.x.device)
            found.append((mean, mean - torch.where(here, (mean - pair.x) * rate.to(mean), 0.0)))
        return found

    def lead(self, model: nn.Module | None, buffers: list[Buffer]) -> None:
        """A model follows the optimizer from now on, with these buffers; or none does."""
        self.model, self.buffers = None if model is None else weakref.ref(model), buffers or None

    def forget_buffers(self) -> None:
        """Drop the averages of buffers."""
        for own in map(self._own, self.params()):
            for key in [key for key in own if str(key).startswith(STATISTICS)]:
                del own[key]

    # States.

    def complete(self, found: dict[str, Any]) -> dict[str, Any]:
        """The state dict, with both versions where the model's own has the averages, so that both resume together."""
        if not self.in_place and self.model is None:
            return found
        index = {id(self._own(p)): i for i, p in enumerate(self.params()) if self._own(p)}
        state = found["state"] = {k: dict(own) if k in index.values() else own for k, own in found["state"].items()}
        for pair in self.pairs():
            for key in (pair.average, pair.weights):
                if (version := pair.version(key)) is not None:
                    state[index[id(pair.own)]][key] = version.clone()  # the next switch changes the original
        for group in found["param_groups"]:
            group["averaged"] = True
        return found

    def loaded(self, averaged: bool) -> None:
        """A state was loaded; ``averaged``: whether averages were in place before."""
        for group in self.groups:
            group.setdefault("averaged", False)  # saved before there were averages
        if self.buffers is None and any(COUNT in self._own(p) for p in self.params()):
            self.buffers = []
        if not averaged and not any(pair.weights in pair.own for pair in self.pairs()):
            self.switch(False)  # there is only one version, as before the first step


def reshard(model: nn.Module) -> None:
    """Let FSDP2 drop gathered copies of the shards, which an earlier forward pass may have left."""
    for module in model.modules():
        if callable(drop := getattr(module, "reshard", None)):
            drop()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of an average: float32 for half precision."""
    return torch.float32 if dtype.itemsize < 4 else dtype
