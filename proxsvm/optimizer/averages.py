"""The averages of the weights: next to them for training, in their place for evaluation.

The state of a parameter p shows where its two versions are, in either mode, whatever was loaded, and after an exception
at any point of a switch:

    state[p]["average"]    the average, unless p itself is it
    state[p]["weights"]    the training weights, unless p itself is them
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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
        kept = self.own.get(key)
        if kept is None:
            return
        expected = _wide(x.dtype) if averaged else x.dtype
        if (kept.shape, kept.device, kept.dtype) != (x.shape, x.device, expected):
            raise RuntimeError(
                f"the {key} of a tensor: {tuple(kept.shape)}, {kept.dtype} on {kept.device}; the tensor now: "
                f"{tuple(x.shape)}, {x.dtype} on {x.device}. The model was converted or changed after the steps were "
                "taken, or while the averaged weights were in place. Convert a copy instead, "
                "copy.deepcopy(model).half(), and do not convert the model that is being trained"
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

    def both(self) -> dict[str, Tensor]:
        """Copies of the two versions: the originals change with the next switch."""
        found = {key: self.version(key) for key in (self.average, self.weights)}
        return {key: version.clone() for key, version in found.items() if version is not None}


class Buffer(NamedTuple):
    """A buffer whose average is kept: its module (the tensor may be replaced), and its name there and in the model.

    ``first``: its initial value, with which the average starts, like that of the weights.
    """

    module: nn.Module
    name: str
    path: str
    first: Tensor

    @property
    def tensor(self) -> Tensor:
        """The buffer as it is now."""
        found: Tensor = getattr(self.module, self.name)
        return found


class Averages:
    """What an optimizer needs to switch between its weights and their averages, which its steps keep in its state.

    ``group["average"]`` is the largest β of a group, or None, and ``group["averaged"]`` whether averages are in place.
    An optimizer that owns one calls :meth:`bind` for a copy of itself, :meth:`update` after a step, :meth:`joined`
    after a new group, and passes its states through :meth:`complete`, :meth:`check` and :meth:`loaded`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.buffers: list[Buffer] | None = None  # None: no model follows the optimizer
        self.model: weakref.ref[nn.Module] | None = None
        self._outdated = False  # whether averages of buffers were loaded that no step updates
        self.bind(optimizer)

    def bind(self, optimizer: torch.optim.Optimizer) -> None:
        """Belong to ``optimizer``, which keeps this object alive."""
        self._optimizer = weakref.ref(optimizer)

    def __getstate__(self) -> dict[str, Any]:
        return {"buffers": self.buffers, "_outdated": self._outdated, "model": None}  # a copied model follows nobody

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups."""
        optimizer = self._optimizer()
        assert optimizer is not None
        return optimizer.param_groups

    def _own(self, p: Tensor) -> dict[str, Any] | None:
        optimizer = self._optimizer()
        assert optimizer is not None
        return optimizer.state.get(p)

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

    def switch_to(self, averaged: bool) -> None:
        """:meth:`switch`, where it has something to do: trainers call ``train()`` at every step."""
        if averaged or self.in_place:
            self.switch(averaged)

    @torch.no_grad()
    def switch(self, averaged: bool) -> None:
        """Put the averages in place, or the weights back; also what an interrupted switch has left to do.

        The groups say ``averaged`` from before the first tensor changes until the last one is back, so that no step can
        start from a half-switched model.
        """
        pairs = self.pairs()
        for pair in pairs:
            pair.check(averaged)
        for group in self.groups:
            group["averaged"] = averaged or group.get("averaged", False)
        for pair in pairs:
            pair.put(averaged)
        for group in self.groups:
            group["averaged"] = averaged
        if self.model is not None and (model := self.model()) is not None:
            reshard(model)

    def pairs(self) -> list[Pair]:
        """Everything that has two versions, or may have; an average that is no longer updated is dropped."""
        found = []
        for group in self.groups:
            for p in group["params"]:
                if (own := self._own(p)) is not None:
                    if group["average"] is None and "weights" not in own:
                        own.pop("average", None)
                    found.append(Pair(p, own))
        home, longest = self._home()
        if longest is None and not self.in_place:
            self.forget_buffers()
        elif home is not None and (own := self._own(home)) is not None:
            found += self._buffer_pairs(own)
        return found

    # Buffers.

    @property
    def updates(self) -> bool:
        """Whether a step changes more than the averages of its parameters."""
        return bool(self.buffers) or self._outdated

    def _home(self) -> tuple[Tensor | None, float | None]:
        """The parameter whose state has the averages of the buffers, at first the first averaged one; its largest β."""
        owners = [(p, group["average"]) for group in self.groups for p in group["params"]]
        holds = (owner for owner in owners if COUNT in (self._own(owner[0]) or ()))
        return next(holds, None) or next((owner for owner in owners if owner[1] is not None), (None, None))

    def _buffer_pairs(self, own: dict[str, Any]) -> list[Pair]:
        return [Pair(b.tensor, own, f"average:{b.path}", f"weights:{b.path}") for b in self.buffers or ()]

    def update(self, skip: Tensor) -> None:
        """b̄ ← β b̄ + (1 − β) b after a step, β = min(average, (1 + t)/(10 + t)); nothing where ``skip`` holds."""
        if self._outdated:
            self.forget_buffers()
        home, longest = self._home() if self.buffers else (None, None)
        if home is None or longest is None:
            return
        own = self._optimizer().state[home]  # type: ignore[union-attr]
        if COUNT not in own:
            own[COUNT] = torch.zeros((), dtype=_wide(home.dtype), device=home.device)
        t, moves = own[COUNT], ~skip.to(home.device)
        rate = (9 / (10 + t)).clamp(min=1 - longest)
        for buffer, pair in zip(self.buffers or (), self._buffer_pairs(own), strict=True):
            if pair.average not in own:
                own[pair.average] = buffer.first.to(pair.x.device, _wide(pair.x.dtype), copy=True)
            pair.check(True)
            mean, here = own[pair.average], moves.to(pair.x.device)
            mean.sub_(torch.where(here, (mean - pair.x) * rate.to(mean), 0.0))
        torch._foreach_add_([t], [moves.to(t)])  # t.add_() is dropped when torch 2.13 compiles it

    def lead(self, model: nn.Module | None, buffers: list[Buffer] | None) -> None:
        """A model follows the optimizer from now on, with these buffers; or none does."""
        self.model, self.buffers = None if model is None else weakref.ref(model), buffers
        self._outdated = False

    def forget_buffers(self) -> None:
        """Steps were taken without them: the averages of buffers are out of date."""
        for own in filter(None, map(self._own, self.params())):
            for key in [key for key in own if str(key).startswith(STATISTICS)]:
                del own[key]
        self._outdated = False

    # States.

    def joined(self) -> None:
        """A group was added. While averages are in place its parameters stay as they are: they have no average yet."""
        self.groups[-1]["averaged"] = any(group.get("averaged", False) for group in self.groups[:-1])

    def complete(self, found: dict[str, Any]) -> dict[str, Any]:
        """The state dict, with both versions where the model's own has the averages, so that both resume together."""
        if not self.in_place and self.model is None:
            return found
        index = {id(own): i for i, p in enumerate(self.params()) if (own := self._own(p)) is not None}
        state = found["state"] = {k: dict(own) if k in index.values() else own for k, own in found["state"].items()}
        for pair in self.pairs():
            state[index[id(pair.own)]].update(pair.both())
        for group in found["param_groups"]:
            group["averaged"] = True
        return found

    def check(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError if the averages of buffers in a state are those of another model."""
        for buffer in self.buffers or ():
            for own in state_dict["state"].values():
                saved = own.get(f"average:{buffer.path}")
                if saved is not None and saved.shape != buffer.tensor.shape:
                    raise ValueError(
                        f"the average of the buffer {buffer.path} is {tuple(saved.shape)}; expected "
                        f"{tuple(buffer.tensor.shape)}: it was saved with another model"
                    )

    def loaded(self, averaged: bool) -> None:
        """A state was loaded; ``averaged``: whether averages were in place before."""
        for group in self.groups:
            group.setdefault("averaged", False)  # saved before there were averages
        self._outdated = self.buffers is None and any(COUNT in (self._own(p) or ()) for p in self.params())
        if not averaged and not any(pair.weights in pair.own for pair in self.pairs()):
            self.switch(False)  # there is only one version, as before the first step


def reshard(model: nn.Module) -> None:
    """Let FSDP2 drop gathered copies of the shards, which an earlier forward pass may have left."""
    for module in model.modules():
        if callable(drop := getattr(module, "reshard", None)):
            drop()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of an average: float32 for half precision."""
    return torch.float32 if dtype.itemsize < 4 else dtype
