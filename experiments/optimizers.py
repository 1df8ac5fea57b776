"""Every optimizer of the experiments by name, with its published settings, the losses and the schedules.

ALI-G: Berrada, Zisserman and Kumar, ICML 2020. MoMo: Schaipp et al., ICML 2024. Prodigy: Mishchenko and Defazio, ICML
2024. Schedule-free: Defazio et al., NeurIPS 2024. SOAP: Vyas et al., ICLR 2025. All five come from packages (the extra
``peers``). Our own are two that no maintained package has, BPGrad (Zhang, Wu, Wang, CVPR 2018,
https://arxiv.org/abs/1711.06959) and DoG (Ivgi, Hinder, Carmon, ICML 2023, https://arxiv.org/abs/2302.12022), and Muon
with AdamW for what it does not train (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/; its step in
AdamW's size: Liu et al., 2025, https://arxiv.org/abs/2502.16982).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.config import Config, known
from proxsvm import DualPoint, ProxOptimizer, ProxProblem, losses
from proxsvm._extras import load
from proxsvm.linearization.cheap_jvp import cheap_jvp
from proxsvm.losses import L1Regression, MultiClassHinge
from proxsvm.metrics import Diagonal, Euclidean, Kronecker
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


# How an optimizer is created, and takes a step.


@dataclass(frozen=True)
class Recipe:
    """Its name and its factory ``(config, loss, model, steps of the whole training)``.

    ``told``: how its step is told the value of the loss, as "loss" or by a "closure", if it is. ``multistep``: the step
    differentiates by itself; ``prepare`` is applied to the network first. ``proximal`` marks ours.
    """

    name: str
    build: Callable[[Config, nn.Module, nn.Module, int], Optimizer]
    told: str = ""
    multistep: bool = False
    proximal: bool = False

    def prepare(self, network: nn.Module) -> nn.Module:
        return cheap_jvp(network) if self.multistep else network

    def update(self, optimizer: Optimizer, evaluate: Callable[[], Tensor]) -> Tensor:
        """A step on the loss that ``evaluate`` returns, and its value."""
        if self.multistep:
            return torch.as_tensor(optimizer.step(evaluate)).detach()  # type: ignore[arg-type]
        optimizer.zero_grad()
        value = evaluate()
        value.backward()
        value = value.detach()
        optimizer.step(**{self.told: value if self.told == "loss" else lambda: float(value)} if self.told else {})
        return value


METRICS = {"": Euclidean, "euclidean": Euclidean, "diagonal": Diagonal, "kronecker": Kronecker}


class FullStep(SingleStepFW):
    """γ ≡ 1: the difference to :class:`SingleStepFW` is what the line search adds."""

    def solve(self, problem: ProxProblem) -> DualPoint:
        return problem.first()


def prox(name: str, solver: Callable[[], Any], multistep: bool = False) -> Recipe:
    """Ours: every option is passed, so that a run does not depend on the defaults."""

    def build(c: Config, loss: nn.Module, model: nn.Module, _: int) -> Optimizer:
        options: dict[str, Any] = {"momentum": c.momentum, "memory": c.memory, "weight_decay": c.weight_decay}
        options["metric"] = METRICS[known("metric", c.metric, METRICS)]()
        options["average"] = float(c.average) if c.average else None
        return ProxOptimizer(loss, solver(), model.parameters(), c.lr, **options)

    return Recipe(name, build, multistep=multistep, proximal=True)


def peer(name: str, kind: str, momentum: str = "", told: str = "", **options: Any) -> Recipe:
    """Another's optimizer, and what it calls the momentum, if it has one; an option may depend on config and steps.

    Those of the extra ``peers`` are imported when they are used.
    """

    def build(c: Config, _: nn.Module, model: nn.Module, steps: int) -> Optimizer:
        given = {"lr": c.lr, "weight_decay": c.weight_decay} | ({momentum: c.momentum} if momentum else {})
        given |= {key: value(c, steps) if callable(value) else value for key, value in options.items()}
        return of(kind)(model.parameters(), **given)

    return Recipe(name, build, told)


def of(kind: str) -> Any:
    package, _, name = kind.rpartition(".")
    found = getattr(load(package, extra="peers"), name)
    return _resumable(found) if package == "momo" else found


def alig(c: Config, _: nn.Module, model: nn.Module, __: int) -> Optimizer:
    """lr is the cap of its step. It has no weight decay (its authors constrain the norm instead): none is applied."""
    return of("pytorch_optimizer.AliG")(model.parameters(), max_lr=c.lr, momentum=c.momentum)


WARM_UP = 0.05  # fraction of the steps, of the cosine and, as its authors recommend, of Schedule-Free AdamW
OPTIMIZERS: dict[str, Recipe] = {  # in the order of the tables: the paper's, then those that it does not have
    "adagrad": peer("Adagrad", "torch.optim.Adagrad"),
    "adam": peer("Adam", "torch.optim.Adam"),
    "amsgrad": peer("AMSGrad", "torch.optim.Adam", amsgrad=True),
    "bpgrad": peer("BPGrad", "experiments.optimizers.BPGrad", "momentum", "loss"),
    "dfw": prox("DFW", SingleStepFW),
    "sgd": peer("SGD", "torch.optim.SGD", "momentum", nesterov=lambda c, _: c.momentum > 0),
    "multistep": prox("Multi-step FW", lambda: MultiStepFW(max_steps=3), multistep=True),
    "dfw-full": prox("DFW, γ ≡ 1", FullStep),
    "alig": Recipe("ALI-G", alig, "closure"),
    "momo": peer("MoMo", "momo.Momo", "beta", "loss"),
    "prodigy": peer("Prodigy", "prodigyopt.Prodigy"),  # lr = 1 is its authors' setting for every task
    "schedulefree": peer("Schedule-Free", "schedulefree.SGDScheduleFree", "momentum"),
    "adamw": peer("AdamW", "torch.optim.AdamW"),
    "schedulefree-adamw": peer(
        "Schedule-Free AdamW", "schedulefree.AdamWScheduleFree", warmup_steps=lambda _, steps: round(WARM_UP * steps)
    ),
    "nadamw": peer("NAdamW", "torch.optim.NAdam", decoupled_weight_decay=True),
    "soap": peer("SOAP", "pytorch_optimizer.SOAP", max_precondition_dim=2048),  # of a vocabulary: a diagonal
    "muon": Recipe("Muon", lambda c, _, model, __: Muon(model, lr=c.lr, weight_decay=c.weight_decay)),
    "momo-adam": peer("MoMo-Adam", "momo.MomoAdam", told="loss"),
    "dog": peer("DoG", "experiments.optimizers.DoG"),
}


def recipe_of(config: Config) -> Recipe:
    """The optimizer's recipe, if its options fit."""
    recipe = OPTIMIZERS[known("optimizer", config.optimizer, OPTIMIZERS)]
    given = {"metric": config.metric, "average": config.average, "memory": config.memory, "lr": config.lr == "auto"}
    if odd := [name for name, value in given.items() if value and not recipe.proximal]:
        value = getattr(config, odd[0])
        raise ValueError(f"{odd[0]} is {value!r}, which {config.optimizer} does not have: only proxsvm has it")
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


# Peers of our own.

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class BPGrad(torch.optim.Optimizer):
    """Steps along the gradient whose length a Lipschitz function needs at least to fall to zero.

    A function with Lipschitz constant L and values above 0 has no minimum nearer than f / L. That is the length of the
    step, and it shrinks with the loss; η = 1/L is the learning rate:

        v ← μ v − η f g / (‖g‖ + ε),        w ← w + v

    ‖g‖ is over all parameters. This is the one-batch case (m = 1 in the authors' solver), and what the Deep
    Frank-Wolfe paper's code does: there, as here, weight decay λ is a part of the objective, f + λ/2 ‖w‖² and
    g + λ w. That paper's text says Nesterov momentum for BPGrad; its code, and BPGrad's publication, have the above.

    Example: f(w) = ‖w‖ at (3, 4) is 5, and with η = 1 one step of that length is the minimum.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = BPGrad([w], lr=1.0, eps=0.0)
    >>> loss = w.norm()
    >>> loss.backward()
    >>> optimizer.step(loss=loss)
    >>> w.detach().abs().max() < 1e-6
    tensor(True)
    """

    def __init__(
        self, params: Params, lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0, eps: float = 1e-5
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.eps = eps

    @torch.no_grad()
    def step(self, *, loss: Tensor) -> None:  # type: ignore[override]
        """One step; ``loss`` is the value that was differentiated."""
        moved, grads = _decayed(self)
        value = loss + sum(group["weight_decay"] / 2 * p.square().sum() for group, p in moved)
        factor = value / (_norm(grads) + self.eps)
        for (group, p), g in zip(moved, grads, strict=True):
            velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
            p.add_(velocity.mul_(group["momentum"]).sub_(group["lr"] * factor * g))


class DoG(torch.optim.Optimizer):
    """SGD whose step-size is the distance from the start over the gradients' norms so far.

        η_t = r̄_t / √(Σ_{i≤t} ‖g_i‖² + ε),     r̄_t = max over i ≤ t of ‖w_i − w_0‖, at least r_ε (1 + ‖w_0‖)

    over all parameters; ``lr`` multiplies η_t, and 1 is its authors' setting for every task. They evaluate an average
    of the weights. Weight decay λ adds λ w to the gradient.

    Example: the first step has the length r_ε (1 + ‖w_0‖).

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = DoG([w], start=0.1)
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> round(5 - float(w.detach().norm()), 4)
    0.6
    """

    def __init__(
        self, params: Params, lr: float = 1.0, weight_decay: float = 0.0, start: float = 1e-6, eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "step_size": 0.0})
        self.start, self.eps = start, eps

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        moved, grads = _decayed(self)
        starts = [self.state[p].setdefault("start", p.clone()) for _, p in moved]
        totals = self.state[self.param_groups[0]["params"][0]]  # so that a state dict has them
        distance = _norm([p - start for (_, p), start in zip(moved, starts, strict=True)])
        totals["distance"] = torch.maximum(totals.get("distance", self.start * (1 + _norm(starts))), distance)
        totals["squares"] = totals.get("squares", 0.0) + _norm(grads).square()
        eta = totals["distance"] / (totals["squares"] + self.eps).sqrt()
        for (group, p), g in zip(moved, grads, strict=True):
            group["step_size"] = group["lr"] * eta
            p.sub_(group["step_size"] * g)


class Muon(torch.optim.Optimizer):
    """torch's Muon for the matrices of hidden layers, flattened convolutions included; AdamW for the rest.

    The rest is what its authors leave to AdamW: vectors, embeddings and the last matrix. Both have the same ``lr``:
    Muon's update is scaled to the size of AdamW's.
    """

    def __init__(self, model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        super().__init__(model.parameters(), {"lr": lr, "weight_decay": weight_decay})
        tables = {p for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
        matrices = [p for p in model.parameters() if p.dim() > 1 and p not in tables]
        self.matrices = matrices[:-1] or matrices
        self.flat = [nn.Parameter(p.detach().flatten(1).clone()) for p in self.matrices]
        rest = [p for p in model.parameters() if p not in set(self.matrices)]
        options = {"lr": lr, "weight_decay": weight_decay}
        self.parts = {"muon": torch.optim.Muon(self.flat, adjust_lr_fn="match_rms_adamw", **options)}
        self.parts |= {"adamw": torch.optim.AdamW(rest, **options)} if rest else {}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p, flat in zip(self.matrices, self.flat, strict=True):
            flat.copy_(p.flatten(1))
            flat.grad = None if p.grad is None else p.grad.flatten(1)
        for part in self.parts.values():
            part.param_groups[0]["lr"] = self.param_groups[0]["lr"]  # a schedule's
            part.step()
        for p, flat in zip(self.matrices, self.flat, strict=True):
            p.copy_(flat.view(p.shape))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        for name, part in self.parts.items():
            part.load_state_dict(state.pop(name))
        super().load_state_dict(state)


def _decayed(optimizer: torch.optim.Optimizer) -> tuple[list[tuple[dict[str, Any], Tensor]], list[Tensor]]:
    """The parameters that have gradients, with their groups, and the gradients of the objective with its decay."""
    moved = [(group, p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return moved, [p.grad.add(p, alpha=group["weight_decay"]) for group, p in moved]


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors)).norm()


# Schedules by name: the hand-designed part that proxsvm does not need.

FALLS: dict[str, tuple[float, list[float]]] = {  # the factor, and after which fractions of the epochs
    "wrn-paper": (0.2, [0.3, 0.6, 0.9]),  # 60, 120 and 180 of 200 epochs: the paper's text
    "wrn-jobs": (0.2, [0.3, 0.6, 0.8]),  # 60, 120 and 160: the authors' published jobs, and the WRN's authors
    "densenet": (0.1, [0.5, 0.75]),  # 150 and 225 of 300
}
SCHEDULES = [*FALLS, "snli", "cosine"]


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
        self.__dict__ |= state
