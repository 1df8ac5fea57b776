"""In any order of calls a followed model evaluates and saves a plain average of its weights, and trains on."""

import copy
import tempfile
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import Tensor, nn

from proxsvm import checkpoint, follow
from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer
from tests.optimizer.test_follow import Interrupt

BETA, BY = 0.8, ("model", "optimizer")
FILES = ("averages.py", "follow.py", "state.py", "prox_optimizer.py")


class Averaging(RuleBasedStateMachine):
    """A body with batch norm and a head that may join later, beside averages that are kept by hand.

    By name: ``weights`` and ``means`` are what the training weights and the averages must be, ``counts`` how many steps
    were averaged, and ``begun`` whether there are two versions, as there are from the first step on.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = self.network()
        self.optimizer = self.prox(self.model)
        follow(self.model, self.optimizer)
        self.weights = self.in_place()
        self.means: dict[str, Tensor] = {k: x.clone() for k, x in self.weights.items() if not k.startswith("2.")}
        self.counts, self.begun = dict.fromkeys(self.means, 0), dict.fromkeys(self.means, False)
        self.averaged = False
        self.saved: Any = None

    def network(self) -> nn.Sequential:
        body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        return nn.Sequential(body, nn.ReLU(), nn.Linear(4, 3)).double()

    def prox(self, model: nn.Sequential) -> ProxOptimizer:
        params, options = model[0].parameters(), {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.01}
        return ProxOptimizer(MultiClassHinge(smooth=True), SingleStepFW(), params, average=BETA, **options)

    def in_place(self) -> dict[str, Tensor]:
        named = (*self.model.named_parameters(), *self.model.named_buffers())
        return {name: x.detach().clone() for name, x in named if x.is_floating_point()}

    def batch(self, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
        return x, torch.randint(3, (6,), generator=generator)

    @rule(seed=st.integers(0, 9), factor=st.sampled_from([1.0, 1.0, 1.0, float("nan"), float("inf")]))
    def step(self, seed: int, factor: float) -> None:
        """One step, or one that is skipped; refused where the averages are in place."""
        x, y = self.batch(seed)
        self.optimizer.zero_grad()
        (self.optimizer.loss(self.model(x), y) * factor).backward()
        self.averaged = self.averaged and not self.model.training  # a call in training mode put the weights back
        for name in ("0.1.running_mean", "0.1.running_var"):  # the call has moved what is in place
            versions = self.means if self.averaged and self.begun[name] else self.weights
            versions[name] = self.in_place()[name]
        if self.averaged:
            with pytest.raises(RuntimeError, match="averaged weights are in place"):
                self.optimizer.step()
            return
        self.optimizer.step()
        self.weights, self.begun = self.in_place(), dict.fromkeys(self.means, True)
        if factor == 1:
            for name, mean in self.means.items():
                beta = min(BETA, (1 + self.counts[name]) / (10 + self.counts[name]))
                self.means[name] = beta * mean + (1 - beta) * self.weights[name]
                self.counts[name] += 1

    @rule(seeds=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def train_a_little(self, seeds: list[int]) -> None:
        self.model.train()
        self.averaged = False
        for seed in seeds:
            self.step(seed, 1.0)

    @rule(averaged=st.booleans(), by=st.sampled_from(BY))
    def switch(self, averaged: bool, by: str) -> None:
        self.averaged = averaged
        getattr(self, by).eval() if averaged else getattr(self, by).train()

    @rule(mode=st.booleans(), part=st.booleans())
    def set_modes(self, mode: bool, part: bool) -> None:
        """A part of the model, or all of it but without ``train()``."""
        if part:
            self.model[0].train(mode)
        else:
            for module in self.model.modules():
                module.training = mode

    @precondition(lambda self: "2.weight" not in self.means)
    @rule()
    def add_param_group(self) -> None:
        self.optimizer.add_param_group({"params": self.model[2].parameters()})
        for name in ("2.weight", "2.bias"):
            self.means[name], self.counts[name], self.begun[name] = self.weights[name].clone(), 0, False

    @rule()
    def follow_again(self) -> None:
        follow(self.model, self.optimizer)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Averages that have not begun begin with the values of now."""
        self.means.update({name: self.weights[name].clone() for name, begun in self.begun.items() if not begun})

    @rule()
    def save(self) -> None:
        states = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        self.saved = states, dict(self.weights), dict(self.means), dict(self.counts), dict(self.begun)

    @precondition(lambda self: self.saved is not None)
    @rule(order=st.booleans(), fresh=st.booleans(), late=st.booleans())
    def load(self, order: bool, fresh: bool, late: bool) -> None:
        """Into the model and optimizer that are there, or into new ones, followed before or after."""
        (model, optimizer), *expected = copy.deepcopy(self.saved)
        if fresh or ("2.weight" in self.saved[2]) != ("2.weight" in self.means):
            self.model = self.network()
            self.optimizer = self.prox(self.model)
            if "2.weight" in self.saved[2]:
                self.optimizer.add_param_group({"params": self.model[2].parameters()})
            if not late:
                follow(self.model, self.optimizer)
        else:
            late = False
        acts = [lambda: self.model.load_state_dict(model), lambda: self.optimizer.load_state_dict(optimizer)]
        for act in acts if order else reversed(acts):
            act()
        if late:
            follow(self.model, self.optimizer)
        self.weights, self.means, self.counts, self.begun = expected
        self.begin_anew()
        self.averaged = self.optimizer.averaged

    @precondition(lambda self: self.saved and ("2.weight" in self.saved[2]) == ("2.weight" in self.means))
    @rule(order=st.booleans(), at=st.integers(1, 700))
    def load_a_file_and_be_interrupted(self, order: bool, at: int) -> None:
        """All of it is loaded, or nothing."""
        (model, optimizer), *expected = copy.deepcopy(self.saved)
        parts = {"model": self.model, "optimizer": self.optimizer}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.save(f"{folder}/last.pt", model=model, optimizer=optimizer)
            try:
                with Interrupt(at, FILES):
                    checkpoint.load(f"{folder}/last.pt", **dict(sorted(parts.items(), reverse=order)))
            except KeyboardInterrupt:  # also in the last line, when all of it is loaded
                with suppress(AssertionError):
                    self.what_is_in_place_and_what_is_saved_are_right()
                    return
        self.weights, self.means, self.counts, self.begun = expected
        self.begin_anew()
        self.averaged = self.optimizer.averaged

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load_the_weights_alone(self) -> None:
        state = {name: x for name, x in self.saved[0][0].items() if x.is_floating_point()}
        before = {name: x.clone() for name, x in self.model.state_dict().items()}
        self.model.load_state_dict(state, strict=False)
        for name, x in state.items():
            if self.averaged and self.begun.get(name) and torch.equal(before[name], x):
                continue  # the average that is in place
            self.weights[name] = x.clone()
            if name in self.means:
                self.means[name] = x.clone()
        self.begin_anew()

    @rule(
        seeds=st.lists(st.integers(0, 9), max_size=2),
        averaged=st.booleans(),
        how=st.sampled_from(["alone", "model first", "optimizer first"]),
        fresh=st.booleans(),
    )
    def there_and_back(self, seeds: list[int], averaged: bool, how: str, fresh: bool) -> None:
        self.save()
        if seeds:
            self.train_a_little(seeds)
        self.switch(averaged, "model")
        self.load_the_weights_alone() if how == "alone" else self.load(how == "model first", fresh, late=False)

    @rule()
    def copy(self) -> None:
        """A copy is a plain model with what is in place, and the original does not notice it."""
        other = copy.deepcopy(self.model).eval()
        for name, x in self.in_place().items():
            assert torch.equal(other.get_parameter(name) if "running" not in name else other.get_buffer(name), x)

    @invariant()
    def what_is_in_place_and_what_is_saved_are_right(self) -> None:
        assert self.optimizer.averaged == self.averaged
        saved = self.model.state_dict()
        for name, x in self.in_place().items():
            mean = self.means[name] if self.begun.get(name) else self.weights[name]
            if self.averaged:
                torch.testing.assert_close(x, mean, atol=1e-12, rtol=0)
            else:
                assert torch.equal(x, self.weights[name])
            torch.testing.assert_close(saved[name], mean, atol=1e-12, rtol=0)


TestAveraging = Averaging.TestCase
TestAveraging.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
