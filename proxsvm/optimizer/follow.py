"""A model whose ``eval()`` and ``train()`` switch between the averaged weights and the training weights."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from proxsvm.optimizer.averages import Buffer, Pair, Prox, forget_buffers, pairs, reshard, switch
from proxsvm.optimizer.ranks import local


def follow(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Let ``model.eval()`` and ``model.train()`` switch the weights of the whole model, and its batch-norm statistics.

    ``model.state_dict()`` has the averages in both modes, ``optimizer.state_dict()`` the training weights; together
    they resume bit for bit. ``docs/averages.md`` has the whole list. The model keeps the optimizer alive, and is of a
    subclass of the same name meanwhile. Call ``follow`` again after adding layers, or with a new optimizer.

    Args:
        model: contains all parameters of the optimizer; may be wrapped by DDP or ``torch.compile``.
        optimizer: a ``ProxOptimizer(..., average=0.995)``, or a trainer's wrapper of one.

    >>> from proxsvm import ProxOptimizer
    >>> from proxsvm.losses import L1Regression
    >>> from proxsvm.metrics import Euclidean
    >>> from proxsvm.solvers import SingleStepFW
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> options = {"lr": 0.5, "memory": 0.0, "metric": Euclidean(), "average": 0.5}
    >>> optimizer = ProxOptimizer(L1Regression(), SingleStepFW(), model.parameters(), **options)
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
    if isinstance(inner, Followed) and inner.followed is not prox:
        inner.unfollow()
    if not isinstance(inner, Followed):
        plain = type(inner)
        shown = {name: getattr(plain, name, None) for name in ("__module__", "__qualname__", "__doc__")}
        inner.__class__ = type(plain.__name__, (Followed, plain), {**shown, "plain": plain})
    inner.followed, prox._follower, prox._buffers = prox, weakref.ref(inner), list(_buffers(inner)) or None
    with torch.no_grad():
        for pair in pairs(prox):  # buffers of a state that was loaded before
            pair.check(prox.averaged)
            pair.put(prox.averaged)


def unfollow(model: nn.Module) -> None:
    """Let a model, and its parts, stop following their optimizers. What is in place stays in place.

    ``optimizer.eval()`` and ``train()`` still switch the weights, but batch-norm statistics are no longer averaged.
    """
    for module in list(model.modules()):
        if isinstance(module, Followed):
            module.unfollow()


def followed(model: nn.Module) -> list[Any]:
    """The optimizers that the model and its parts follow."""
    return [module.followed for module in model.modules() if isinstance(module, Followed)]


@torch.no_grad()
def refresh_batch_norm(model: nn.Module, loader: Iterable[Any], batches: int | None = None) -> None:
    """Re-estimate the batch-norm statistics for the weights that evaluation uses, as the mean over batches.

    A model that follows its optimizer is evaluated with the averaged weights, and training is not affected: afterwards
    the model is in its former mode, and the training weights have their own statistics. Any other model is taken as it
    is. (torch's ``update_bn`` calls ``model.train()``, which puts the training weights back.)

    Args:
        model: the model, in any mode.
        loader: yields inputs, tuples that start with one, or dicts of the model's arguments, on the model's device.
        batches: at most this many of them; all if None.

    >>> model = nn.Sequential(nn.BatchNorm1d(1))
    >>> refresh_batch_norm(model, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
    >>> model[0].running_mean, model[0].running_var
    (tensor([4.]), tensor([2.]))
    """
    if batches is not None and batches < 1:
        raise ValueError(f"batches is {batches}; expected None, for all, or 1 or more")
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    modes = [(module, module.training) for module in model.modules()]
    training = [optimizer for optimizer in followed(model) if not optimizer.averaged]
    model.eval()
    before = [(norm, norm.momentum, copy.deepcopy(norm.state_dict())) for norm in norms]
    seen = 0
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum, norm.training = None, True  # None: the mean over all batches
        for seen, batch in enumerate(islice(loader, batches if norms else 0), 1):  # noqa: B007
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(batch if isinstance(batch, Tensor) else batch[0])
        if norms and not seen:
            raise ValueError("the loader yielded no batch to estimate batch-norm statistics from")
    except BaseException:
        for norm, _, state in before:
            norm.load_state_dict(state)
        raise
    finally:
        for norm, momentum, state in before:
            norm.momentum = momentum
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(state["num_batches_tracked"])
        for optimizer in training:
            optimizer.train()
        for module, mode in modes:
            module.training = mode


class Followed(nn.Module):
    """Comes before a model's own class while it follows an optimizer. Copies and pickles are of the class itself.

    (An attribute or hooks of the model would be copied, saved and exported with it.)
    """

    followed = cast(Any, None)  # the ProxOptimizer. Not annotated: torch.jit.script reads the annotations of classes
    plain = nn.Module

    def unfollow(self) -> None:
        """Be an ordinary model again."""
        forget_buffers(self.followed)
        self.followed._follower, self.followed._buffers = lambda: None, None
        del self.followed
        self.__class__ = self.plain  # type: ignore[assignment]

    def train(self, mode: bool = True) -> Any:
        """Switch the optimizer, and then the modes: the first may raise."""
        switch(self.followed, not mode)
        return super().train(mode)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Put the training weights back if ``training`` was set without ``train()``, or a state was loaded."""
        if not torch.compiler.is_compiling() and self.training:  # while compiling, step() says what is wrong
            switch(self.followed, False)
        return super().__call__(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """With copies of the averages, one each, which the next switch does not change."""
        saved = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        copies: dict[int, Tensor] = {}
        for name, pair in self._named():
            mean, x = pair.version(pair.average), pair.x
            if mean is not None and saved.get(prefix + name, x) is not x:  # it is x with keep_vars
                saved[prefix + name] = copies.setdefault(id(x), mean.to(x.dtype, copy=True))
        return saved

    @torch.no_grad()
    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, *rest: Any) -> None:
        """Set both versions to what is loaded, unless it is the average that is known, perhaps with more digits."""
        if metadata.get("assign_to_params_buffers", False):
            raise RuntimeError(
                "load_state_dict(assign=True) gives the model new parameters, but the optimizer has the old ones: load "
                "it before you create the optimizer, or without assign=True"
            )
        for name, pair in self._named():
            mean, x, given = pair.version(pair.average), pair.x.detach(), state_dict.get(prefix + name)
            if mean is None or not isinstance(given, Tensor) or given.is_meta or given.shape != x.shape:
                continue
            loaded = given.detach().to(x.device, x.dtype)
            if not torch.equal(local(mean).to(x.dtype), local(loaded)):
                for key in {pair.average, pair.weights} & set(pair.own):
                    pair.own[key].copy_(loaded)
        self.followed._buffers = [
            b._replace(first=state_dict.get(prefix + b.path, b.pair({}).x).detach().clone())
            for b in self.followed._buffers or ()
        ]
        super()._load_from_state_dict(state_dict, prefix, metadata, *rest)

    def _named(self) -> Iterator[tuple[str, Pair]]:
        """Everything that has two versions, under all of its names in the model."""
        known = {id(pair.x): pair for pair in pairs(self.followed)}
        for named in (self.named_parameters, self.named_buffers):
            yield from ((name, known[id(x)]) for name, x in named(remove_duplicate=False) if id(x) in known)

    def __reduce_ex__(self, protocol: Any) -> Any:
        build, args, state, *rest = cast("tuple[Any, ...]", super().__reduce_ex__(protocol))
        if type(self) in args:  # copyreg.__newobj__, which insists on the class
            build, args = object.__new__, tuple(self.plain if x is type(self) else x for x in args)
        return build, args, {k: v for k, v in state.items() if k != "followed"}, *rest


def _check(model: nn.Module, optimizer: Prox) -> None:
    """Raise ValueError if the model cannot follow the optimizer."""
    if all(group["average"] is None for group in optimizer.param_groups):
        raise ValueError("the optimizer keeps no average to follow: ProxOptimizer(..., average=0.995)")
    old = model.followed if isinstance(model, Followed) else optimizer
    params, before, inside = ({id(p) for p in ps} for ps in (optimizer._params(), old._params(), model.parameters()))
    if outside := len(params - inside):
        raise ValueError(
            f"{outside} of the optimizer's {len(params)} parameters are not in this {type(model).__name__}, but would "
            "be switched with it: follow the module that contains all of them"
        )
    if optimizer._follower() not in (None, model):
        raise ValueError("another model follows this optimizer, and only one can: follow the module that contains both")
    if not before & params:
        raise ValueError(
            "the model follows an optimizer of other parameters, and can follow only one: give both sets of parameters "
            "to one optimizer as groups, or follow each part of the model separately, follow(model.generator, first)"
        )
    if old is not optimizer and old.averaged:
        raise ValueError("the model follows another optimizer, whose averages are in place: call model.train() first")


def _inner(model: nn.Module) -> nn.Module:
    """The model inside wrappers whose own ``train()`` calls the model's."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inside := getattr(model, "_orig_mod", None), nn.Module):  # torch.compile
            model = inside
        else:
            return model


def _own(optimizer: Any) -> Any:
    """The ProxOptimizer inside the wrappers of Accelerate or Lightning."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "_follower"):
        raise TypeError(f"optimizer is a {type(optimizer).__name__}; expected a ProxOptimizer(..., average=0.995)")
    return optimizer


def _buffers(model: nn.Module) -> Iterator[Buffer]:
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name in ("running_mean", "running_var") and buffer.is_floating_point():
                full = f"{path}.{name}".replace("_orig_mod.", "").lstrip(".")
                yield Buffer(module, name, full, buffer.detach().clone())
