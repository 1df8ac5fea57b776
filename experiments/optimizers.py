"""Every optimizer of the experiments by name, with its published settings, the losses and the schedules.

ALI-G: Berrada, Zisserman and Kumar, ICML 2020. MoMo: Schaipp et al., ICML 2024. Prodigy: Mishchenko and Defazio, ICML
2024. Schedule-free: Defazio et al., NeurIPS 2024. SOAP: Vyas et al., ICLR 2025. All five come from packages (the extra
``peers``). DoG, whose package is not maintained, and BPGrad are our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.config import Config, known
from experiments.peers import BPGrad, DoG, Muon
from proxsvm import DualPoint, ProxOptimizer, ProxProblem, losses, metrics
from proxsvm._extras import load
from proxsvm.linearization.cheap_jvp import cheap_jvp
from proxsvm.losses import L1Regression, MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "smooth-hinge": lambda: MultiClassHinge(smooth=True),
    "hinge": MultiClassHinge,
    "ce": nn.CrossEntropyLoss,
    "l1": L1Regression,
}


def loss_of(config: Config) -> str:
    """The paper's choice: DFW has the hinge, smoothed on CIFAR but not on SNLI; the others the cross-entropy."""
    if config.loss:
        return known("loss", config.loss, LOSSES)
    if config.dataset in ("california", "bike"):
        return "l1"
    if OPTIMIZERS[config.optimizer].proximal:
        return "hinge" if config.dataset == "snli" else "smooth-hinge"
    return "ce"


def criterion_of(config: Config) -> nn.Module:
    """The loss; the cross-entropy is torch's, except for a proximal optimizer, whose loss has to know its atoms."""
    name = loss_of(config)
    if name == "ce" and OPTIMIZERS[config.optimizer].proximal:
        return losses.CrossEntropy()
    return LOSSES[name]()


# How an optimizer takes a step; ``evaluate`` runs the network and returns the loss.

Evaluate = Callable[[], Tensor]


def after_backward(optimizer: Optimizer, evaluate: Evaluate, **given: Callable[[Tensor], Any]) -> Tensor:
    """The loop everyone knows. ``given``: how the value is passed to ``step``."""
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


# How it is created.


Build = Callable[[Config, nn.Module, nn.Module, int], Optimizer]


@dataclass(frozen=True)
class Recipe:
    """Its name, its factory ``(config, loss, model, steps of the whole training)``, and the way it takes a step.

    ``prepare`` is applied to the network first; ``proximal`` marks ours.
    """

    name: str
    build: Build
    update: Callable[[Optimizer, Evaluate], Tensor] = after_backward
    prepare: Callable[[nn.Module], nn.Module] = lambda network: network
    proximal: bool = False


METRICS: dict[str, Callable[[], Any]] = {
    "": metrics.Euclidean,
    "euclidean": metrics.Euclidean,
    "diagonal": metrics.Diagonal,
    "kronecker": metrics.Kronecker,
}


class FullStep(SingleStepFW):
    """γ ≡ 1: the difference to :class:`SingleStepFW` is what the line search adds."""

    def solve(self, problem: ProxProblem) -> DualPoint:
        return problem.first()


def prox(name: str, solver: Callable[[], Any], **recipe: Any) -> Recipe:
    """Ours: every option is passed, so that a run does not depend on the defaults."""

    def build(c: Config, loss: nn.Module, model: nn.Module, _: int) -> Optimizer:
        options: dict[str, Any] = {"lr": c.lr, "momentum": c.momentum, "memory": c.memory}
        options["metric"] = METRICS[known("metric", c.metric, METRICS)]()
        options["average"] = float(c.average) if c.average else None
        return ProxOptimizer(loss, solver(), model.parameters(), weight_decay=c.weight_decay, **options)

    return Recipe(name, build, proximal=True, **recipe)


def peer(
    name: str, kind: Callable[[], Any], momentum: str = "", update: Any = after_backward, **options: Any
) -> Recipe:
    """Another's optimizer, and what it calls the momentum, if it has one; an option may depend on config and steps."""

    def build(c: Config, _: nn.Module, model: nn.Module, steps: int) -> Optimizer:
        given = {momentum: c.momentum} if momentum else {}
        given |= {key: value(c, steps) if callable(value) else value for key, value in options.items()}
        return kind()(model.parameters(), lr=c.lr, weight_decay=c.weight_decay, **given)

    return Recipe(name, build, update)


def of(package: str, name: str) -> Callable[[], Any]:
    """An optimizer of the extra ``peers``, imported when it is used."""
    return lambda: getattr(load(package, extra="peers"), name)


def alig(c: Config, _: nn.Module, model: nn.Module, __: int) -> Optimizer:
    """lr is the cap of its step. It has no weight decay (its authors constrain the norm instead): none is applied."""
    return load("pytorch_optimizer", extra="peers").AliG(model.parameters(), max_lr=c.lr, momentum=c.momentum)


def warm_up(_: Config, steps: int) -> int:
    """As Schedule-Free AdamW's authors recommend: as long as that of AdamW's cosine."""
    return round(WARM_UP * steps)


OPTIMIZERS: dict[str, Recipe] = {  # in the order of the tables: the paper's, then those that it does not have
    "adagrad": peer("Adagrad", lambda: torch.optim.Adagrad),
    "adam": peer("Adam", lambda: torch.optim.Adam),
    "amsgrad": peer("AMSGrad", lambda: torch.optim.Adam, amsgrad=True),
    "bpgrad": peer("BPGrad", lambda: BPGrad, "momentum", told_the_loss),
    "dfw": prox("DFW", SingleStepFW),
    "sgd": peer("SGD", lambda: torch.optim.SGD, "momentum", nesterov=lambda c, _: c.momentum > 0),
    "multistep": prox("Multi-step FW", lambda: MultiStepFW(max_steps=3), update=by_closure, prepare=cheap_jvp),
    "dfw-full": prox("DFW, γ ≡ 1", FullStep),
    "alig": Recipe("ALI-G", alig, told_a_number),
    "momo": peer("MoMo", lambda: _resumable(of("momo", "Momo")()), "beta", told_the_loss),
    "prodigy": peer("Prodigy", of("prodigyopt", "Prodigy")),  # lr = 1 is its authors' setting for every task
    "schedulefree": peer("Schedule-Free", of("schedulefree", "SGDScheduleFree"), "momentum"),
    "adamw": peer("AdamW", lambda: torch.optim.AdamW),
    "schedulefree-adamw": peer("Schedule-Free AdamW", of("schedulefree", "AdamWScheduleFree"), warmup_steps=warm_up),
    "nadamw": peer("NAdamW", lambda: torch.optim.NAdam, decoupled_weight_decay=True),
    "soap": peer("SOAP", of("pytorch_optimizer", "SOAP"), max_precondition_dim=2048),  # of a vocabulary: a diagonal
    "muon": Recipe("Muon", lambda c, _, model, __: Muon(model, lr=c.lr, weight_decay=c.weight_decay)),
    "momo-adam": peer("MoMo-Adam", lambda: _resumable(of("momo", "MomoAdam")()), update=told_the_loss),
    "dog": peer("DoG", lambda: DoG),
}


def title(config: Config) -> str:
    return f"{OPTIMIZERS[config.optimizer].name} {config.lr}"


def recipe_of(config: Config) -> Recipe:
    """The optimizer's recipe, if its options fit."""
    recipe = OPTIMIZERS[known("optimizer", config.optimizer, OPTIMIZERS)]
    given = {"metric": config.metric, "average": config.average, "memory": config.memory, "lr": config.lr == "auto"}
    for name in (name for name, value in given.items() if value and not recipe.proximal):
        value = getattr(config, name)
        raise ValueError(f"{name} is {value!r}, which {config.optimizer} does not have: only proxsvm has it")
    return recipe


def _resumable(kind: type[Optimizer]) -> type[Optimizer]:
    """MoMo keeps its average loss and its count outside ``state_dict()``: a resumed run would lose them."""

    class Resumable(kind):  # type: ignore[misc, valid-type]
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict() | {"momo": [self._number_steps, getattr(self, "loss_avg", None)]}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            state = dict(state_dict)
            self._number_steps, self.loss_avg = state.pop("momo")
            super().load_state_dict(state)

    return Resumable


# Schedules by name: the hand-designed part that proxsvm does not need.

FALLS: dict[str, tuple[float, list[float]]] = {  # the factor, and after which fractions of the epochs
    "wrn-paper": (0.2, [0.3, 0.6, 0.9]),  # 60, 120 and 180 of 200 epochs: the paper's text
    "wrn-jobs": (0.2, [0.3, 0.6, 0.8]),  # 60, 120 and 160: the authors' published jobs, and the WRN's authors
    "densenet": (0.1, [0.5, 0.75]),  # 150 and 225 of 300
}
SCHEDULES = [*FALLS, "snli", "cosine"]
WARM_UP = 0.05  # fraction of the steps


def cosine(part: float) -> float:
    """The factor of the learning rate after a ``part`` of all steps: a linear warm-up, then half a cosine to 0.

    >>> [round(cosine(part), 3) for part in (0.0, 0.025, 0.05, 0.525, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if part < WARM_UP:
        return part / WARM_UP
    return (1 + math.cos(math.pi * (part - WARM_UP) / (1 - WARM_UP))) / 2


class Schedule:
    """A schedule by name; ``snli``: divide by five whenever the validation accuracy has not improved."""

    def __init__(self, config: Config, optimizer: Optimizer) -> None:
        self.name, self.lr, self.optimizer = known("schedule", config.schedule, SCHEDULES), config.lr, optimizer
        self.epochs, self.best, self.factor = config.epochs, -math.inf, 1.0

    def before_step(self, part: float) -> None:
        """``part`` of all steps are done."""
        if self.name == "cosine":
            self.factor = cosine(part)
        elif self.name in FALLS:
            factor, parts = FALLS[self.name]
            self.factor = factor ** sum(int(part * self.epochs) >= int(fall * self.epochs) for fall in parts)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * self.factor

    def after_epoch(self, accuracy: float) -> None:
        if self.name == "snli" and not accuracy > self.best:
            self.factor /= 5
        self.best = max(self.best, accuracy)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "factor": self.factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.factor = state["best"], state["factor"]
