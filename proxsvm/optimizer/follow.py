"""A model whose ``eval()`` and ``train()`` switch between the averaged weights and the training weights."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from proxsvm.optimizer.averages import BUFFERS, AveragingOptimizer, Pair, Tracked, reshard
from proxsvm.optimizer.ranks import local


def follow(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Let ``model.eval()`` and ``model.train()`` switch the weights of the whole model, and its batch-norm statistics.

    Running means and variances are averaged with the weights' β (of the first averaged group) after each step that was
    not skipped, and are kept in the optimizer's state. What is evaluated, saved or exported is then the average:

    - ``model.eval()``, ``model.train(False)``, ``optimizer.eval()`` and the ``eval()`` of anything that contains the
      model (DDP, a compiled module, a LightningModule) put the averages in place; ``train()`` puts the training weights
      back, bit for bit. Only the whole model switches: ``model.backbone.eval()`` sets the mode of these layers and
      changes no weight. A call of the model with ``model.training`` set, which trainers may do without ``train()``,
      puts the training weights back, too. To train with all layers in evaluation mode: ``model.eval();
      optimizer.train()``.
    - ``model.state_dict()`` has copies of the averages in both modes, so that no trainer can save anything else, and
      ``optimizer.state_dict()`` the training weights; together they resume bit for bit, in any order of loading. (The
      ``state_dict()`` of a part of the model, and ``state_dict(keep_vars=True)``, contain what is in place.)
    - ``model.load_state_dict()`` alone sets averages and training weights: the best weights, loaded again after
      training, are those that ``eval()`` uses. (While averages are in place, or after ``optimizer.load_state_dict()``,
      loading these same averages does not change the training weights.)
    - ``copy.deepcopy(model)`` and ``torch.save(model)`` give a plain model with the weights that are in place, which
      follows no optimizer. Call ``model.eval()`` first, as for every export.

    The model keeps the optimizer alive. Call ``follow`` again after adding layers, or with a new optimizer of the same
    parameters. To re-estimate the statistics with the averaged weights: :func:`~proxsvm.refresh_batch_norm`.

    Args:
        model: contains all parameters of the optimizer; may be wrapped by DDP or ``torch.compile``.
        optimizer: a ``ProxOptimizer(..., average=0.995)``, or a trainer's wrapper of one.

    >>> from proxsvm import ProxOptimizer
    >>> from proxsvm.losses import L1Regression
    >>> from proxsvm.solvers import SingleStepFW
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), model.parameters(), lr=0.5, average=0.5)
    >>> follow(model, optimizer)
    >>> loss = optimizer.step(lambda: optimizer.loss(model(torch.ones(1, 1)), torch.zeros(1, 1)))
    >>> f"{model.weight.item():.2f}, {model.eval().weight.item():.2f}, {model.train().weight.item():.2f}"
    '0.50, 0.55, 0.50'
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected the nn.Module that the optimizer trains")
    inner, prox = _inner(model), _own(optimizer)
    reshard(inner)
    _check(inner, prox)
    known = inner.__dict__.get("train")
    follower = known if isinstance(known, _Follower) else _Follower(inner)
    if follower.optimizer not in (None, prox):
        _leave(follower.optimizer, prox)
    prox._model, prox._tracked, prox._untracked = weakref.ref(inner), list(_statistics(inner)), False
    follower.optimizer = prox
    if follower is not known:
        follower.join(inner)
    prox._switch(prox.averaged)  # buffers of a state that was loaded before


def _check(model: nn.Module, optimizer: AveragingOptimizer) -> None:
    """Raise ValueError if the model cannot follow the optimizer."""
    if all(group["average"] is None for group in optimizer.param_groups):
        raise ValueError("the optimizer keeps no average to follow: ProxOptimizer(..., average=0.995)")
    outside = len(_outside(model, optimizer))
    if outside:
        raise ValueError(
            f"{outside} of the optimizer's {len(optimizer._params())} parameters are not in this "
            f"{type(model).__name__}, but would be switched with it: follow the module that contains all of them"
        )
    if optimizer._model is not None and optimizer._model() not in (None, model):
        raise ValueError("another model follows this optimizer, and only one can: follow the module that contains both")


def followed(model: nn.Module) -> list[AveragingOptimizer]:
    """The optimizers that the model and its parts follow."""
    trains = (module.__dict__.get("train") for module in model.modules())
    optimizers = (train.optimizer for train in trains if isinstance(train, _Follower))
    return [optimizer for optimizer in optimizers if optimizer is not None]


def _outside(model: nn.Module, optimizer: AveragingOptimizer) -> list[Tensor]:
    """The optimizer's parameters that are not in the model."""
    inside = {id(p) for p in model.parameters()}
    return [p for p in optimizer._params() if id(p) not in inside]


def _leave(old: AveragingOptimizer, new: AveragingOptimizer) -> None:
    """Let a model stop following ``old``, for an optimizer of the same parameters."""
    if not {id(p) for p in old._params()} & {id(p) for p in new._params()}:
        raise ValueError(
            "the model follows an optimizer of other parameters, and can follow only one: give both sets of parameters "
            "to one optimizer as groups, or follow each part of the model separately, follow(model.generator, first)"
        )
    if old.averaged:
        raise ValueError(
            "the model follows another optimizer, whose averages are in place: call model.train() to put the training "
            "weights back, and then follow the new one"
        )
    old._model = old._tracked = None


class _Follower:
    """Replaces a model's ``train``, and has its hooks; without an optimizer, on a copy, it does nothing.

    The model refers to it, so its own reference to the model is weak.
    """

    def __init__(self, model: Any) -> None:
        self.model: weakref.ref[nn.Module] = weakref.ref(model)
        self.optimizer: AveragingOptimizer | None = None
        self.loading: list[Pair] = []

    def join(self, model: nn.Module) -> None:
        """Replace ``model.train``."""
        model.__dict__["train"] = self
        model.register_forward_pre_hook(self.before_forward)
        # torch sets an attribute on this one, which a method does not allow
        model.register_state_dict_post_hook(partial(_Follower.after_state_dict, self))  # type: ignore[no-untyped-call]
        model.register_load_state_dict_pre_hook(self.before_load)  # type: ignore[no-untyped-call]
        model.register_load_state_dict_post_hook(self.after_load)  # type: ignore[no-untyped-call]

    def __call__(self, mode: bool = True) -> nn.Module:
        """``model.train(mode)``, and the optimizer with it."""
        model = self.model()
        assert model is not None
        if self.optimizer is not None:  # first, because it may raise
            self.optimizer.train() if mode else self.optimizer.eval()
        type(model).train(model, mode)
        return model

    def before_forward(self, model: nn.Module, args: Any) -> None:
        """Put the training weights back if ``model.training`` was set without ``train()``, or a state was loaded."""
        if torch.compiler.is_compiling() or self.optimizer is None:  # step() says what is wrong
            return
        if model.training and self.optimizer.averaged:
            self.optimizer.train()

    def after_state_dict(self, model: nn.Module, saved: dict[str, Any], prefix: str, _: Any) -> None:
        """Replace what is in place with copies of the averages, one each, which the next switch does not change."""
        copies: dict[int, Tensor] = {}
        for name, pair in self._named(model):
            mean, x = pair.known(pair.average), pair.x
            if mean is not None and prefix + name in saved and saved[prefix + name] is not x:  # it is x with keep_vars
                if id(x) not in copies:
                    copies[id(x)] = mean.to(x.dtype, copy=True)
                saved[prefix + name] = copies[id(x)]

    def before_load(self, model: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        """Record what will be loaded, unless it is the average that is already known, perhaps with more digits."""
        self.loading = []
        for name, pair in self._named(model):
            mean, x, given = pair.known(pair.average), pair.x.detach(), state.get(prefix + name)
            if mean is None or not isinstance(given, Tensor) or given.is_meta or given.shape != x.shape:
                continue
            if not torch.equal(local(mean).to(x.dtype), local(given.detach()).to(x.device, x.dtype)):
                self.loading.append(pair)

    @torch.no_grad()
    def after_load(self, model: nn.Module, _: Any) -> None:
        """Set both versions to what was loaded."""
        for pair in self.loading:
            for key in {pair.average, pair.weights} & set(pair.own):
                pair.own[key].copy_(pair.x)
        self.loading = []
        if self.optimizer is not None:
            self.optimizer._tracked = [buffer.restarted() for buffer in self.optimizer._tracked or ()]
            if _outside(model, self.optimizer):
                raise RuntimeError(
                    "load_state_dict(assign=True) gave the model new parameters, but the optimizer still has the old "
                    "ones: load it before you create the optimizer, or without assign=True"
                )

    def _named(self, model: nn.Module) -> Iterator[tuple[str, Pair]]:
        """Everything that has two versions, under all of its names in the model."""
        if self.optimizer is not None:
            pairs = {id(pair.x): pair for pair in self.optimizer._pairs()}
            for named in (model.named_parameters, model.named_buffers):
                yield from ((name, pairs[id(x)]) for name, x in named(remove_duplicate=False) if id(x) in pairs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Follower:
        model = self.model()
        return _Follower(memo.get(id(model), model))

    def __reduce__(self) -> Any:
        return _Follower, (self.model(),)


def _inner(model: nn.Module) -> nn.Module:
    """The model inside wrappers whose own ``train()`` calls the model's."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inside := getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
            model = inside
        else:
            return model


def _own(optimizer: Any) -> AveragingOptimizer:
    """The ProxOptimizer inside the wrappers of Accelerate or Lightning."""
    found = optimizer
    while isinstance(getattr(found, "optimizer", None), torch.optim.Optimizer):
        found = found.optimizer
    if not isinstance(found, AveragingOptimizer):
        raise TypeError(f"optimizer is a {type(found).__name__}; expected a ProxOptimizer(..., average=0.995)")
    return found


def _statistics(model: nn.Module) -> Iterator[Tracked]:
    for path, module in model.named_modules():
        for name in BUFFERS:
            buffer = module._buffers.get(name)
            if buffer is not None and buffer.is_floating_point():
                full = f"{path}.{name}".replace("_orig_mod.", "").lstrip(".")
                yield Tracked(module, name, full, buffer.detach().clone())
