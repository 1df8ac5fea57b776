"""The averages of the weights: next to them for training, in their place for evaluation.

The state of a parameter p shows where its two versions are, in either mode and whatever was loaded:

    state[p]["average"]    the average, unless p itself is it
    state[p]["weights"]    the training weights, unless p itself is them
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from proxsvm._kernels.tensors import accumulator, compare
from proxsvm.optimizer.base import GroupedOptimizer
from proxsvm.optimizer.groups import STATISTICS
from proxsvm.optimizer.messages import AVERAGED

BUFFERS = ("running_mean", "running_var")
COUNT = "t:buffers"


class Tracked(NamedTuple):
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
        found = self.module._buffers[self.name]
        assert found is not None
        return found

    def restarted(self) -> Tracked:
        """The same, starting with the current value."""
        return self._replace(first=self.tensor.detach().clone())


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
        compare(key, [x], [kept])
        expected = accumulator(x.dtype) if averaged else x.dtype
        if kept.dtype != expected:
            raise RuntimeError(
                f"the {key} of a tensor are {kept.dtype}, but it is {x.dtype} now: the model was converted after the "
                "steps were taken, or while the averaged weights were in place. Convert a copy instead, "
                "copy.deepcopy(model).half(), and do not convert the model that is being trained"
            )

    def put_average(self) -> None:
        """x ← average. Digits that x cannot hold, in half precision, stay in the state."""
        x, own = self.x.detach(), self.own
        if self.average not in own:  # x already is the average, or has none
            return
        kept, fits = own[self.average], own[self.average].dtype == x.dtype
        if self.weights in own:  # loaded, or rounded
            x.copy_(kept)
            if fits:
                del own[self.average]
        elif fits:
            _exchange(x, kept)
            own[self.weights] = own.pop(self.average)
        else:
            own[self.weights] = x.clone()
            x.copy_(kept)

    def put_weights(self) -> None:
        """x ← training weights."""
        x, own = self.x.detach(), self.own
        if self.weights not in own:
            return
        if self.average in own:
            x.copy_(own.pop(self.weights))
        else:
            _exchange(x, own[self.weights])
            own[self.average] = own.pop(self.weights)

    def known(self, key: str) -> Tensor | None:
        """The version ``key``, sharing memory with the model or the state; None where there are no two versions."""
        if self.average not in self.own and self.weights not in self.own:
            return None
        found: Tensor = self.own.get(key, self.x)
        return found.detach()

    def both(self) -> dict[str, Tensor]:
        """Copies of the two versions: the originals are exchanged by the next switch."""
        found = {key: self.known(key) for key in (self.average, self.weights)}
        return {key: version.clone() for key, version in found.items() if version is not None}


def _exchange(a: Tensor, b: Tensor) -> None:
    held = a.clone()
    a.copy_(b)
    b.copy_(held)


class AveragingOptimizer(GroupedOptimizer):
    """An optimizer that can replace the weights with their averages."""

    _tracked: list[Tracked] | None = None  # the buffers that are averaged; None: no model is followed
    _model: weakref.ref[nn.Module] | None = None  # the model that is followed
    _untracked = False  # whether averages of buffers were loaded while no model is followed

    @property
    def averaged(self) -> bool:
        """Whether the averaged weights are in place, as after ``eval()``."""
        return any(group.get("averaged", False) for group in self.param_groups)

    def eval(self) -> None:
        """Replace the weights with their averages; no step can be taken until ``train()``.

        Nothing is lost and nothing synchronises. Parameters without an average do not change. For parameters in half
        precision, both versions are kept meanwhile. Under FSDP2, :func:`proxsvm.follow` the model: after a forward
        pass it may hold gathered copies of its shards, which have to be dropped.

        >>> from proxsvm import ProxOptimizer
        >>> from proxsvm.losses import L1Regression
        >>> from proxsvm.solvers import SingleStepFW
        >>> w = torch.nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), [w], lr=0.5, average=0.5)
        >>> loss = optimizer.step(lambda: optimizer.loss(w[None], torch.zeros(1, 1)))     # β = 1/10 at first
        >>> optimizer.eval(); averaged = w.item(); optimizer.train()
        >>> f"{averaged:.2f}, {w.item():.2f}"
        '0.55, 0.50'
        """
        self._switch(True)

    def train(self) -> None:
        """Put the training weights back, bit for bit."""
        if self.averaged:  # trainers call this at every step
            self._switch(False)

    @torch.no_grad()
    def _switch(self, averaged: bool) -> None:
        pairs = list(self._pairs())
        for pair in pairs:
            pair.check(averaged)
        for pair in pairs:
            pair.put_average() if averaged else pair.put_weights()
        for group in self.param_groups:
            group["averaged"] = averaged
        model = None if self._model is None else self._model()
        if model is not None:
            reshard(model)

    def _require_training(self) -> None:
        if self.averaged:
            raise RuntimeError(AVERAGED)

    # Buffers.

    def _home(self) -> tuple[Tensor, float | None] | None:
        """The parameter whose state has the averages of the buffers, at first the first averaged one; its largest β."""
        owners = [(p, g["average"]) for g in self.param_groups for p in g["params"]]
        holds = (owner for owner in owners if COUNT in self.state.get(owner[0], ()))
        return next(holds, None) or next((owner for owner in owners if owner[1] is not None), None)

    def _buffer_pairs(self, own: dict[str, Any]) -> list[Pair]:
        return [Pair(b.tensor, own, f"average:{b.path}", f"weights:{b.path}") for b in self._tracked or ()]

    def _pairs(self) -> Iterator[Pair]:
        """Everything that has two versions, or may have; an average that is no longer updated is dropped."""
        for group in self.param_groups:
            for p in group["params"]:
                if (own := self.state.get(p)) is not None:
                    if group["average"] is None and "weights" not in own:
                        own.pop("average", None)
                    yield Pair(p, own)
        p, longest = self._home() or (None, None)
        if p is not None and longest is None and not self.averaged:
            self._forget_buffers()
        elif p is not None and p in self.state:
            yield from self._buffer_pairs(self.state[p])

    def _average_buffers(self, still: bool | Tensor) -> None:
        """b̄ ← β b̄ + (1 − β) b after a step, with the β of the first averaged group; nothing where ``still`` holds."""
        if self._untracked:
            self._forget_buffers()
        p, longest = (self._home() if self._tracked else None) or (None, None)
        if p is None or longest is None:
            return
        own = self.state[p]
        if COUNT not in own:
            own[COUNT] = torch.zeros((), dtype=accumulator(p.dtype), device=p.device)
        t, rate = own[COUNT], (9 / (10 + own[COUNT])).clamp(min=1 - longest)
        for buffer, (x, _, key, _) in zip(self._tracked or (), self._buffer_pairs(own), strict=True):
            if key not in own:
                own[key] = buffer.first.to(x.device, accumulator(x.dtype), copy=True)
            mean = own[key]
            if still is not True:
                compare("average", [x], [mean])
                step = (mean - x) * (rate if isinstance(rate, float) else rate.to(x.device))
                mean.sub_(step if still is False else step.masked_fill_(still.to(x.device), 0))
        torch._foreach_add_([t], [still.logical_not().to(t)])

    def _forget_buffers(self) -> None:
        """Steps were taken without them: the averages of buffers are out of date."""
        for own in self.state.values():
            for key in [key for key in own if key.startswith(STATISTICS)]:
                del own[key]

    # States.

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with options of its own, its ``metric`` included; checked before anything changes.

        While averages are in place, the new parameters do not change: they have no average yet.
        """
        averaged = self.averaged
        super().add_param_group(param_group)
        self.param_groups[-1]["averaged"] = averaged

    def state_dict(self) -> dict[str, Any]:
        """The state, to be saved with the model's own: together they resume bit for bit, in either mode.

        ``"averaged"`` in each group tells whether the model's ``state_dict()`` at the same moment has the averages, as
        after ``eval()``, and always if the model follows its optimizer. Then this one also holds the training weights.
        """
        pairs = list(self._pairs())
        found = super().state_dict()
        if not self.averaged and self._model is None:
            return found
        index = {id(p): i for i, p in enumerate(self._params())}
        owners = {id(own): index[id(p)] for p, own in self.state.items()}
        state = found["state"] = {k: dict(own) for k, own in found["state"].items()}
        for pair in pairs:
            state[owners[id(pair.own)]].update(pair.both())
        for group in found["param_groups"]:
            group["averaged"] = True
        return found

    def check_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError unless ``state_dict`` is one of an optimizer with these groups, shapes and dtypes."""
        super().check_state_dict(state_dict)
        for buffer in self._tracked or ():
            for own in state_dict["state"].values():
                saved = own.get(f"average:{buffer.path}")
                if saved is not None and saved.shape != buffer.tensor.shape:
                    raise ValueError(
                        f"the average of the buffer {buffer.path} is {tuple(saved.shape)}; expected "
                        f"{tuple(buffer.tensor.shape)}: it was saved with another model"
                    )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and with it the mode that it was saved in; it is checked before anything changes."""
        averaged = self.averaged
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.setdefault("averaged", False)  # saved before there were averages
        self._untracked = self._tracked is None and any(COUNT in own for own in self.state.values())
        if not averaged and not any(pair.weights in pair.own for pair in self._pairs()):
            self._switch(False)  # there is only one version, as before the first step


def reshard(model: nn.Module) -> None:
    """Let FSDP2 drop gathered copies of the shards, which an earlier forward pass may have left."""
    for module in model.modules():
        if callable(drop := getattr(module, "reshard", None)):
            drop()
