"""Every optimizer of the experiments by name, with its published settings, and the losses and schedules beside them.

ALI-G: Berrada, Zisserman and Kumar, ICML 2020. MoMo: Schaipp et al., ICML 2024. Prodigy: Mishchenko and Defazio, ICML
2024. Schedule-free: Defazio et al., NeurIPS 2024. All four come from their packages (the extra ``peers``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from experiments.bpgrad import BPGrad
from experiments.config import Config, known
from proxsvm import ProxOptimizer
from proxsvm.cheap_jvp import cheap_jvp
from proxsvm.extras import load
from proxsvm.losses import L1Regression, MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW

Params = Iterable[nn.Parameter]

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "smooth-hinge": lambda: MultiClassHinge(smooth=True),
    "hinge": MultiClassHinge,
    "ce": nn.CrossEntropyLoss,
    "l1": L1Regression,
}


def loss_of(config: Config) -> str:
    """The paper's choice: DFW has the hinge, smoothed on CIFAR and not on SNLI; the others the cross-entropy."""
    if config.loss:
        return known("loss", config.loss, LOSSES)
    if config.dataset in ("california", "bike"):
        return "l1"
    if config.optimizer in ("dfw", "multistep"):
        return "hinge" if config.dataset == "snli" else "smooth-hinge"
    return "ce"


# How an optimizer takes a step; ``evaluate`` runs the network and returns the loss.

Evaluate = Callable[[], Tensor]


def after_backward(optimizer: Optimizer, evaluate: Evaluate, **given: Callable[[Tensor], Any]) -> Tensor:
    """The loop everyone knows. ``given``: what else ``step`` is told of the value."""
    optimizer.zero_grad()
    value = evaluate()
    value.backward()
    optimizer.step(**{name: of(value.detach()) for name, of in given.items()})
    return value.detach()


def told_the_loss(optimizer: Optimizer, evaluate: Evaluate) -> Tensor:
    return after_backward(optimizer, evaluate, loss=lambda value: value)


def told_a_number(optimizer: Optimizer, evaluate: Evaluate) -> Tensor:
    return after_backward(optimizer, evaluate, closure=lambda value: lambda: float(value))


def by_closure(optimizer: Optimizer, evaluate: Evaluate) -> Tensor:
    """The solver differentiates by itself."""
    value = optimizer.step(evaluate)
    assert isinstance(value, Tensor)
    return value.detach()


# How it is made.


@dataclass(frozen=True)
class Recipe:
    """An optimizer's maker, ``(config, loss, params)``, the way it takes a step, what is done to the network first."""

    build: Callable[[Config, nn.Module, Params], Optimizer]
    update: Callable[[Optimizer, Evaluate], Tensor] = after_backward
    prepare: Callable[[nn.Module], nn.Module] = lambda network: network


def prox(solver: Callable[[], Any]) -> Callable[[Config, nn.Module, Params], Optimizer]:
    def build(c: Config, loss: nn.Module, params: Params) -> Optimizer:
        if isinstance(loss, nn.CrossEntropyLoss):
            raise ValueError(f"{c.optimizer} needs a piecewise linear loss (smooth-hinge, hinge or l1), got ce")
        return ProxOptimizer(loss, solver(), params, lr=c.lr, momentum=c.momentum, weight_decay=c.weight_decay)

    return build


def adaptive(kind: type[Optimizer], **options: Any) -> Recipe:
    return Recipe(lambda c, _, params: kind(params, lr=c.lr, weight_decay=c.weight_decay, **options))  # type: ignore[call-arg]


def sgd(c: Config, _: nn.Module, params: Params) -> Optimizer:
    return torch.optim.SGD(params, c.lr, c.momentum, weight_decay=c.weight_decay, nesterov=c.momentum > 0)


def bpgrad(c: Config, _: nn.Module, params: Params) -> Optimizer:
    return BPGrad(params, lr=c.lr, momentum=c.momentum, weight_decay=c.weight_decay)


def alig(c: Config, _: nn.Module, params: Params) -> Optimizer:
    """lr is the cap of its step. It has no weight decay (its authors constrain the norm instead): none is applied."""
    return load("pytorch_optimizer", extra="peers").AliG(params, max_lr=c.lr, momentum=c.momentum)


def momo(c: Config, _: nn.Module, params: Params) -> Optimizer:
    return _resumable(load("momo", extra="peers").Momo)(params, lr=c.lr, weight_decay=c.weight_decay, beta=c.momentum)


def prodigy(c: Config, _: nn.Module, params: Params) -> Optimizer:
    """lr = 1 is its authors' setting for every task."""
    return load("prodigyopt", extra="peers").Prodigy(params, lr=c.lr, weight_decay=c.weight_decay)


def schedule_free(c: Config, _: nn.Module, params: Params) -> Optimizer:
    kind = load("schedulefree", extra="peers").SGDScheduleFree
    return kind(params, lr=c.lr, momentum=c.momentum, weight_decay=c.weight_decay)


OPTIMIZERS: dict[str, Recipe] = {
    "dfw": Recipe(prox(SingleStepFW)),
    "multistep": Recipe(prox(lambda: MultiStepFW(max_steps=3)), by_closure, cheap_jvp),
    "sgd": Recipe(sgd),
    "adagrad": adaptive(torch.optim.Adagrad),
    "adam": adaptive(torch.optim.Adam),
    "amsgrad": adaptive(torch.optim.Adam, amsgrad=True),
    "bpgrad": Recipe(bpgrad, told_the_loss),
    "alig": Recipe(alig, told_a_number),
    "momo": Recipe(momo, told_the_loss),
    "prodigy": Recipe(prodigy),
    "schedulefree": Recipe(schedule_free),
}


def _resumable(kind: type[Optimizer]) -> type[Optimizer]:
    """MoMo keeps its average loss and its count outside of ``state_dict()``: a resumed run would forget them."""

    class Resumable(kind):  # type: ignore[misc, valid-type]
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict() | {"momo": [self._number_steps, getattr(self, "loss_avg", None)]}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            state = dict(state_dict)
            self._number_steps, self.loss_avg = state.pop("momo")
            super().load_state_dict(state)

    return Resumable


# Schedules, as fractions of the epochs: they are the hand-designed part that DFW does without.

FALLS: dict[str, tuple[float, list[float]]] = {
    "wrn-paper": (0.2, [0.3, 0.6, 0.9]),  # 60, 120 and 180 of 200 epochs: the paper's text
    "wrn-jobs": (0.2, [0.3, 0.6, 0.8]),  # 60, 120 and 160: the authors' published jobs, and the WRN's authors
    "densenet": (0.1, [0.5, 0.75]),  # 150 and 225 of 300
}


class Schedule:
    """A schedule by name; ``snli``: a fifth whenever the validation accuracy has not improved."""

    def __init__(self, config: Config, optimizer: Optimizer) -> None:
        known("schedule", config.schedule, [*FALLS, "snli"])
        self.plateau = config.schedule == "snli"
        if self.plateau:
            options: dict[str, Any] = {"mode": "max", "factor": 0.2, "patience": 0, "threshold": 0.0}
            self.scheduler: Any = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        else:
            factor, parts = FALLS[config.schedule]
            falls = [int(part * config.epochs) for part in parts]
            self.scheduler = lr_scheduler.MultiStepLR(optimizer, falls, gamma=factor)

    def step(self, accuracy: float) -> None:
        self.scheduler.step(accuracy) if self.plateau else self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state)
