"""Any order of calls either works or raises a documented error, and never corrupts the weights."""

from __future__ import annotations

import copy
import warnings

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import nn

from proxsvm.losses import MultiClassHinge
from proxsvm.solvers import MultiStepFW, SingleStepFW
from tests.cases import PaperOptimizer as ProxOptimizer

BAD = st.sampled_from([float("nan"), float("inf"), -float("inf")])


def documented(error: Exception, text: str) -> None:
    assert text in str(error)


class Training(RuleBasedStateMachine):
    """A model of two layers, the second of which may join the optimizer later."""

    fused = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(3, 4).double(), nn.Linear(4, 3).double()
        self.model = nn.Sequential(self.body, nn.ReLU(), self.head)
        self.criterion = MultiClassHinge(smooth=True)
        self.optimizer = ProxOptimizer(
            self.criterion,
            SingleStepFW(),
            self.body.parameters(),
            lr=0.5,
            momentum=0.5,
            weight_decay=0.01,
            fused=self.fused,
        )
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.optimizer._opt_called = True  # torch warns where a scheduler steps first; any order is meant here
        self.values: list[torch.Tensor] = []
        self.saved = copy.deepcopy(self.optimizer.state_dict())
        self.differentiated = 0

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def batch(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        return x, torch.randint(3, (4,), generator=generator)

    @rule(to_none=st.booleans())
    def zero_grad(self, to_none: bool) -> None:
        self.optimizer.zero_grad(to_none)
        if len(self.optimizer.param_groups) == 1:
            self.head.zero_grad()  # else it would bring old gradients along when it joins
        self.differentiated = 0

    @rule(seed=st.integers(0, 9))
    def forward(self, seed: int) -> None:
        x, y = self.batch(seed)
        self.values.append(self.criterion(self.model(x), y))

    @rule(seed=st.integers(0, 9))
    def forward_without_grad(self, seed: int) -> None:
        x, y = self.batch(seed)
        with torch.no_grad():
            self.criterion(self.model(x), y)

    @precondition(lambda self: self.values)
    @rule(factor=st.sampled_from([1.0, 0.5, 3.0]))
    def backward(self, factor: float) -> None:
        value = self.values.pop()
        try:
            (value * factor).backward()
        except RuntimeError as error:  # the weights moved since this forward pass
            documented(error, "modified by an inplace operation")
        else:
            self.differentiated += 1

    @precondition(lambda self: self.values)
    @rule(bad=BAD)
    def backward_of_a_bad_value(self, bad: float) -> None:
        value = self.values.pop()
        try:
            (value * bad).backward()
        except RuntimeError as error:
            documented(error, "modified by an inplace operation")
        else:
            self.differentiated += 1

    @rule()
    def step(self) -> None:
        before = self.weights()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of gradients that no value is known for: test_attacks.py
                self.optimizer.step()
        except RuntimeError as error:
            documented(error, "step() has no loss value")
            assert not self.differentiated
            assert all(torch.equal(a, b) for a, b in zip(before, self.weights(), strict=True))

    @rule(seed=st.integers(0, 9), several=st.booleans(), bad=st.none() | BAD)
    def step_with_a_closure(self, seed: int, several: bool, bad: float | None) -> None:
        x, y = self.batch(seed)
        x = x if bad is None else x * bad
        skipped, before = int(self.optimizer.skipped), self.weights()
        self.optimizer.solver = MultiStepFW(3) if several else SingleStepFW()
        value = self.optimizer.step(lambda: self.criterion(self.model(x), y))
        self.optimizer.solver = SingleStepFW()
        assert value.isfinite() == (bad is None)
        if bad is not None:
            assert self.optimizer.skipped == skipped + 1
            assert all(torch.equal(a, b) for a, b in zip(before, self.weights(), strict=True))

    @rule(loss=st.floats(0, 10))
    def step_with_a_value(self, loss: float) -> None:
        self.optimizer.step(loss=loss)

    @precondition(lambda self: len(self.optimizer.param_groups) == 1)
    @rule(lr=st.sampled_from([0.1, -1.0]))
    def add_param_group(self, lr: float) -> None:
        try:
            self.optimizer.add_param_group({"params": self.head.parameters(), "lr": lr, "initial_lr": lr})
        except ValueError as error:
            documented(error, "expected η ≥ 0")
            assert len(self.optimizer.param_groups) == 1
        else:
            self.scheduler.base_lrs.append(lr)

    @rule()
    def save(self) -> None:
        self.saved = copy.deepcopy(self.optimizer.state_dict())

    @rule()
    def load(self) -> None:
        before = self.weights()
        groups = len(self.optimizer.param_groups)
        try:
            self.optimizer.load_state_dict(copy.deepcopy(self.saved))
        except ValueError as error:
            documented(error, "parameter groups")
            assert len(self.saved["param_groups"]) != groups
        assert all(torch.equal(a, b) for a, b in zip(before, self.weights(), strict=True))

    @rule()
    def schedule(self) -> None:
        self.scheduler.step()

    @invariant()
    def the_weights_are_finite_and_the_report_is_sound(self) -> None:
        assert all(p.isfinite().all() for p in self.model.parameters())
        assert all(s["z"].isfinite().all() for s in self.optimizer.state.values())
        last = self.optimizer.last
        assert last is None or last.dual.isnan() or not last.loss.isfinite() or 0 <= last.gamma <= 1


TestTraining = Training.TestCase
TestTraining.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


class FusedTraining(Training):
    """The same, by the compiled loops."""

    fused = None


TestFusedTraining = FusedTraining.TestCase
TestFusedTraining.settings = settings(max_examples=30, stateful_step_count=30, deadline=None, derandomize=True)
